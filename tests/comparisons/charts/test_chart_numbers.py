"""The numbers, colours and texts behind charts: small cases whose answers are worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ddlsched.comparisons.charts import jct_charts, real_charts, run_charts, style, training_charts
from ddlsched.errors import InputError


@pytest.mark.parametrize(
    ("values", "most_points", "x", "share"),
    [
        ([3.0, 1.0, 2.0], 3, [1.0, 2.0, 3.0], [1 / 3, 2 / 3, 1.0]),
        ([3.0, 1.0, 2.0, 5.0], 3, [1.0, 2.5, 5.0], [0.0, 0.5, 1.0]),
        ([4.0], 3, [4.0], [1.0]),
    ],
)
def test_of_more_values_than_points_quantiles_are_drawn(
    values: list[float], most_points: int, x: list[float], share: list[float]
) -> None:
    found = jct_charts.cumulative(np.array(values), most_points)
    assert (found[0].tolist(), found[1].tolist()) == (x, share)


def test_a_share_is_of_the_values_up_to_a_place() -> None:
    values = np.array([2.0, 1.0, 2.0, 8.0])
    assert jct_charts.share_up_to(values, np.array([0.5, 1.0, 2.0, 7.9, 8.0])).tolist() == [0.0, 0.25, 0.75, 0.75, 1.0]


def test_the_largest_gap_is_between_any_two_distributions() -> None:
    assert jct_charts._largest_gap([[1.0, 2.0], [1.0, 2.0], [1.0, 5.0]]) == 0.5
    assert jct_charts._largest_gap([[1.0, 2.0], [2.0, 1.0]]) == 0.0
    assert jct_charts._largest_gap([[1.0], [2.0]]) == 1.0


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([1, 1], "one seed, so without an interval"),
        ([2, 2], "mean and 95 % interval over 2 seeds"),
        ([3, 1, 3], "mean and 95 % interval over 1 or 3 seeds"),
    ],
)
def test_a_chart_says_over_how_many_seeds_its_intervals_are(counts: list[int], said: str) -> None:
    assert jct_charts.over_seeds(counts) == said


@pytest.mark.parametrize(
    ("letters", "lines"),
    [([22, 22], 1), ([22, 23], 2), ([22, 10, 22], 2), ([22, 10, 23], 3), ([5], 1), ([61], 2), ([60], 1), ([], 0)],
)
def test_a_legend_has_two_columns_while_their_longest_labels_have_room(letters: list[int], lines: int) -> None:
    assert jct_charts.legend_lines("x" * count for count in letters) == lines


def test_a_label_that_matplotlib_would_hide_gets_a_mark() -> None:
    assert [jct_charts.legend_label(label) for label in ("_mine", "my_own")] == ["\N{WORD JOINER}_mine", "my_own"]


@pytest.mark.parametrize(
    ("part", "place"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.5, 2), (0.69, 3), (0.71, 4), (0.89, 4), (0.91, 5), (1.0, 5)]
)
def test_a_shade_is_the_nearest_of_six(part: float, place: int) -> None:
    assert jct_charts.shade_of(part) == style.SHADES[place]


@pytest.mark.parametrize(("lines", "inches"), [(1, 0.24), (2, 0.30), (4, 0.56)])
def test_a_row_is_as_high_as_its_lines(lines: int, inches: float) -> None:
    assert jct_charts._row_inches("\n".join("x" * lines)) == pytest.approx(inches)


@pytest.mark.parametrize(
    ("light", "dark", "part", "between"),
    [
        ("#000000", "#ffffff", 0.0, "#000000"),
        ("#000000", "#ffffff", 1.0, "#ffffff"),
        ("#102030", "#304050", 0.5, "#203040"),
        ("#ff0000", "#00ff08", 0.25, "#bf4002"),
    ],
)
def test_a_colour_between_two_is_mixed_of_both(light: str, dark: str, part: float, between: str) -> None:
    assert style._between(light, dark, part) == between


def test_luminance_is_that_of_the_standard() -> None:
    """Of WCAG 2: black, white, the three primaries, and a grey on either side of the linear part."""
    colours = ("#000000", "#ffffff", "#ff0000", "#00ff00", "#0000ff")
    assert [style._luminance(colour) for colour in colours] == pytest.approx([0.0, 1.0, 0.2126, 0.7152, 0.0722])
    assert style._luminance("#0a0a0a") == pytest.approx(10 / 255 / 12.92, rel=1e-9)
    assert style._luminance("#808080") == pytest.approx(((128 / 255 + 0.055) / 1.055) ** 2.4, rel=1e-9)


@pytest.mark.parametrize("colour", ["#000000", "#332288", "#117733", "#0072b2", "#aa4499", "#882255"])
def test_a_dark_colour_gets_just_as_much_white_as_it_needs_on_a_dark_page(colour: str) -> None:
    """In steps of a twentieth; the contrast is at least 3.2."""
    page = style._luminance(style.DARK_PAGE) + 0.05
    steps = [style._between(colour, "#ffffff", step / 20) for step in range(20)]
    enough = [step for step in steps if (style._luminance(step) + 0.05) / page >= 3.2]
    assert style.on_dark(colour) == enough[0]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (1.0, "1"), (12.345, "12.3"), (99.96, "100"), (100.0, "100"), (1234.5, "1234"), (-99.0, "-99")],
)
def test_a_number_has_three_figures_or_is_whole(value: float, said: str) -> None:
    assert style.short(value) == said


@pytest.mark.parametrize(
    ("size", "taken"),
    [((0.5, 100), True), ((3, 2.5), True), ((0.49, 2), False), ((3, 101), False), ((3,), False), (3, False)],
)
def test_a_side_of_a_figure_is_from_half_an_inch_to_a_hundred(size: Any, taken: bool) -> None:
    if taken:
        assert style.resized(Figure(), size).get_size_inches().tolist() == [*size]
        return
    with pytest.raises(InputError, match=r"size is .*; expected a width and a height of 0.5 to 100 inches"):
        style.resized(Figure(), size)


def test_labels_of_three_values_of_a_parameter_have_shades_in_their_order() -> None:
    found = style.colours(["x:k_1", "x:k_3", "x:k_2"])
    assert (found["x:k_1"], found["x:k_3"]) == ("#86c8dc", "#0b2a5b")
    assert found["x:k_2"] == style._between("#86c8dc", "#0b2a5b", 0.5)
    assert style._ordered(["x:k_1", "x:k_2", "x:k_2"]) == {}


def test_a_bins_mean_keeps_the_gpu_seconds() -> None:
    """2 GPUs for 1 s, 4 for 2 s, then none: over bins of 1.5 s."""
    table = pd.DataFrame({"time_s": [1.0, 3.0], "busy_gpus": [2.0, 4.0]})
    found = run_charts._binned(table, np.array([0.0, 1.5, 3.0, 4.5]))
    assert found == pytest.approx([(2 + 2) / 1.5, 6 / 1.5, 0.0])


ROWS = [
    {"time_s": time_s, "what": what, "job": job, "nodes": nodes}
    for time_s, what, job, nodes in (
        ("0.5", "nodes", "", "2"),
        ("1.0", "started", "a", "1"),
        ("1.5", "step", "a", "7"),
        ("2.0", "regrouped", "b", "3"),
        ("3.0", "failed", "a", "1"),
        ("4.0", "step", "b", "3"),
    )
]


def test_the_nodes_of_jobs_change_where_they_begin_and_end() -> None:
    times_s, nodes = real_charts._sizes(ROWS, ["a", "b"])
    assert times_s == [0.0, 0.5, 1.0, 2.0, 3.0, 4.0]
    assert nodes == [[0, 2, 2, 2, 2, 2], [0, 0, 1, 1, 0, 0], [0, 0, 0, 3, 3, 3]]
    assert real_charts._sizes([], []) == ([0.0, 0.0], [[0, 0]])


@pytest.mark.parametrize(("palette", "edged"), [(training_charts._COMPUTE, True), (training_charts._SEND, False)])
def test_what_is_computed_has_white_edges_and_what_is_sent_its_own(palette: tuple[str, ...], edged: bool) -> None:
    axes = Figure().add_subplot()
    slices = pd.DataFrame({"start_ns": [5_000_000, 8_000_000, 9_000_000], "end_ns": [7_000_000, 8_500_000, 12_000_000]})
    training_charts._draw(axes, slices, 1.5, ["f", "b", "f"], palette, {}, 5_000_000)
    shades = [style.PALETTE[palette[place]] for place in (0, 1, 0)]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == shades
    assert [to_hex(bar.get_edgecolor()) for bar in axes.patches] == (["#ffffff"] * 3 if edged else shades)
    places = [bar.get_bbox().bounds for bar in axes.patches]  # type: ignore[attr-defined]
    expected = [(0.0, 1.5, 2.0, 0.4), (3.0, 1.5, 0.5, 0.4), (4.0, 1.5, 3.0, 0.4)]
    assert np.array(places) == pytest.approx(np.array(expected))
