"""What charts of tiny comparisons and runs draw: the places of lines, bars and texts, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ddlsched.comparisons.charts import jct_charts, placement_map, real_charts, run_charts, style, training_charts
from ddlsched.comparisons.charts.run_charts import Band, RunCharts
from ddlsched.errors import InputError
from ddlsched.results.statistics import Interval

MANY, ONE = Interval(10.0, 8.0, 13.0, 4), Interval(2.5, 2.5, 2.5, 4)


def boxes(axes: Any) -> list[tuple[float, ...]]:
    """Return left, bottom, width and height of each bar."""
    return [tuple(round(float(side), 9) for side in bar.get_bbox().bounds) for bar in axes.patches]


def lines(axes: Any) -> list[list[list[float]]]:
    """Return the points of each line."""
    return [np.round(np.asarray(line.get_xydata(), float), 9).tolist() for line in axes.lines]


def legend(figure: Figure) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def test_bars_lie_from_0_to_the_mean_with_a_line_between_the_ends_and_the_value_beside_it() -> None:
    figure = jct_charts.bars({"p": MANY, "q": ONE}, axis="JCT (s)", colour={"p": "#123456"})
    (axes,) = figure.axes
    assert boxes(axes) == [(0.0, -0.34, 10.0, 0.68), (0.0, 0.66, 2.5, 0.68)]
    assert to_hex(axes.patches[0].get_facecolor()) == "#123456"
    assert lines(axes) == [[[8.0, 0.0], [13.0, 0.0]], [[2.5, 1.0], [2.5, 1.0]]]
    assert [(text.get_text(), text.xy, text.xyann) for text in axes.texts] == [
        ("10", (13.0, 0), (4, 0)), ("2.5", (2.5, 1), (4, 0)),
    ]  # fmt: skip
    assert axes.get_xlim() == (0.0, pytest.approx(1.16 * 13))
    assert axes.get_ylim() == (1.55, -0.55)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["p", "q"]
    assert axes.get_xlabel() == "JCT (s)\nmean and 95 % interval over 4 seeds"
    assert figure.get_figheight() == pytest.approx(0.75 + 2 * 0.24)


def test_grouped_bars_have_a_panel_a_group_and_a_place_a_policy() -> None:
    figure = jct_charts.grouped_bars({"small": {"p": MANY, "q": ONE}, "large": {"q": MANY}}, axis="JCT (s)")
    first, second = figure.axes
    assert boxes(first) == [(-0.4, 0.0, 0.8, 10.0), (0.6, 0.0, 0.8, 2.5)]
    assert boxes(second) == [(0.6, 0.0, 0.8, 10.0)]
    assert lines(second) == [[[1.0, 8.0], [1.0, 13.0]]]
    assert (first.get_xlabel(), second.get_xlabel()) == ("small", "large")
    assert {axes.get_xlim() for axes in figure.axes} == {(-0.6, 1.6)}
    assert first.get_ylim()[0] == second.get_ylim()[0] == 0.0
    assert legend(figure) == ["p", "q"]


def test_cells_of_a_heat_map_are_squares_with_their_per_cent() -> None:
    shares = pd.DataFrame([[0.5, 0.25], [np.nan, 0.0]], index=["p", "q"], columns=["1 GPU", "2-4 GPUs"])
    axes, bar = jct_charts.heat_map(shares, axis="share").axes
    cells = [np.asarray(cell.get_paths()[0].get_extents().bounds).tolist() for cell in axes.collections]
    assert cells == [[0, -0.5, 1, 1], [1, -0.5, 1, 1], [0, 0.5, 1, 1], [1, 0.5, 1, 1]]
    shades = [to_hex(cell.get_facecolor()[0]) for cell in axes.collections]
    assert shades == [style.SHADES[5], style.SHADES[2], style.IDLE, style.SHADES[0]]
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [
        ("50.0", (0.5, 0)), ("25.0", (1.5, 0)), ("no job", (0.5, 1)), ("0.0", (1.5, 1)),
    ]  # fmt: skip
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 2), (1.5, -0.5))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1\nGPU", "2-4\nGPUs"]
    assert axes.get_xticks().tolist() == [0.5, 1.5]
    assert [label.get_text() for label in bar.get_xticklabels()] == ["0", "25", "50 %"]
    assert list(bar.get_xticks()) == [0.0, 25.0, 50.0]


def test_changes_stand_a_third_of_a_row_apart_beside_what_is_claimed() -> None:
    rows = [jct_charts.Change("one", {"p": MANY, "q": ONE}, claimed=7.0), jct_charts.Change("two", {"q": ONE})]
    figure = jct_charts.changes(rows, axis="Change (%)", claim="said")
    (axes,) = figure.axes
    sixth, over = round(1 / 6, 9), round(7 / 6, 9)
    zero, between, *marks = lines(axes)
    assert [x for x, _ in zero] == [0.0, 0.0]
    assert [y for _, y in between] == [0.5, 0.5]
    assert marks == [
        [[8.0, -sixth], [13.0, -sixth]], [[10.0, -sixth]], [[2.5, sixth], [2.5, sixth]], [[2.5, sixth]],
        [[7.0, -0.4], [7.0, 0.4]], [[2.5, over], [2.5, over]], [[2.5, over]],
    ]  # fmt: skip
    assert [axes.lines[place].get_marker() for place in (3, 5, 8)] == ["o", "s", "s"]
    assert legend(figure) == ["p", "q", "said"]
    assert figure.get_figheight() == pytest.approx(0.85 + 0.16 + 0.15 * 2 * 2.8)


def test_a_sixth_estimate_has_the_first_mark_again() -> None:
    names = [f"p{number}" for number in range(6)]
    (axes,) = jct_charts.changes([jct_charts.Change("one", dict.fromkeys(names, ONE))], axis="").axes
    assert [line.get_marker() for line in axes.lines[2::2]] == ["o", "s", "^", "D", "v", "o"]


@pytest.mark.parametrize(("other", "panels"), [(2.0, 1), (1.0, 2)])
def test_curves_have_their_differences_where_they_are_nearer_than_a_twentieth(other: float, panels: int) -> None:
    """Of 20 values the least one differs, which is a twentieth of them, or none."""
    rest = np.arange(3.0, 22.0)
    figure = jct_charts.distributions({"p": np.append(1.0, rest), "q": np.append(other, rest)}, axis="JCT (s)")
    assert len(figure.axes) == panels
    upper = figure.axes[0]
    assert lines(upper)[1][:2] == [[other, 0.05], [3.0, 0.1]]
    assert (upper.get_xscale(), upper.get_ylim(), upper.get_ylabel()) == ("log", (0.0, 1.01), "Share of jobs")
    assert upper.get_yticks().tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert figure.get_figheight() == pytest.approx(2.36 + (panels - 1))
    if panels == 2:
        assert {y for line in lines(figure.axes[1]) for _, y in line} == {0.0}
        assert figure.axes[1].get_title(loc="left") == "less the share of p"


def test_differences_of_curves_are_in_points() -> None:
    first = np.arange(1.0, 41.0)
    figure = jct_charts.distributions({"p": first, "q": first + 0.5}, axis="JCT (s)")
    first_line, other = lines(figure.axes[1])
    assert {y for _, y in first_line} == {0.0}
    assert {y for _, y in other} == {0.0}  # at its own values
    later = jct_charts.distributions({"p": first, "q": np.append(0.5, first[1:])}, axis="JCT (s)")
    assert lines(later.axes[1])[1][0] == [0.5, 2.5]


def test_utilisation_is_a_line_through_the_middles_of_bins_in_per_cent() -> None:
    band = Band(np.array([0.0, 10.0, 30.0]), np.array([0.5, 0.25]), np.array([0.25, 0.0]), np.array([0.75, 0.5]), 3)
    figure = run_charts.utilisation({"p": band})
    (axes,) = figure.axes
    mean, zero = lines(axes)
    assert mean == [[5.0, 50.0], [20.0, 25.0]]
    assert [y for _, y in zero] == [0.0, 0.0]
    (area,) = axes.patches
    values, edges, baseline = area.get_data()
    assert (values.tolist(), edges.tolist(), baseline.tolist()) == ([75.0, 50.0], [0.0, 10.0, 30.0], [25.0, 0.0])
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0.0
    assert axes.get_xlabel() == "Time (s)\nmean and 95 % interval over 3 seeds"


@pytest.mark.parametrize(("columns", "shown"), [(14, 14), (15, 14)])
def test_of_more_tenants_than_colours_the_smallest_are_one(
    columns: int, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pd.DataFrame({f"t{number}": [number, 1.0] for number in range(columns)}, index=[0.0, 5.0])
    monkeypatch.setattr(run_charts, "gpus_over_time", lambda _: table)
    figure = RunCharts(SimpleNamespace(cluster=SimpleNamespace(num_gpus=20))).tenants()  # type: ignore[arg-type]
    names = legend(figure)
    assert len(names) == shown
    assert ("others" in names) is (columns > shown)
    (axes,) = figure.axes
    tops = [cell.get_paths()[0].get_extents().y1 for cell in axes.collections]
    assert tops[-1] == sum(range(columns))
    assert axes.get_ylim() == (0.0, 21.0)
    assert [y for _, y in lines(axes)[0]] == [20.0, 20.0]


def test_others_are_the_sum_of_all_but_the_largest() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [9.0, 9.0], "c": [3.0, 4.0], "d": [5.0, 5.0]})
    found = run_charts._largest(table, 2)
    assert found.columns.tolist() == ["b", "d", "others"]
    assert found["others"].tolist() == [4.0, 6.0]


def test_who_has_no_finished_job_has_no_distribution() -> None:
    jobs = pd.DataFrame({"counted": [True, False], "jct_s": [np.nan, 3.0]})
    with pytest.raises(InputError, match="no counted job finished; expected one at least"):
        RunCharts(SimpleNamespace(jobs=jobs)).jct()  # type: ignore[arg-type]


def test_boxes_of_jobs_are_white_edged_rectangles_and_labels_stand_in_the_largest() -> None:
    stays = pd.DataFrame(
        [("a", 0, 0, 0.0, 4.0), ("b", 1, 0, 2.0, 6.0)], columns=["job_id", "gpu", "server", "from_s", "to_s"]
    )
    figure = placement_map.placement_map(stays, [2], title="t" * 49)
    (axes,) = figure.axes
    (drawn,) = [each for each in axes.collections if not hasattr(each, "get_segments")]
    assert [path.get_extents().bounds for path in drawn.get_paths()] == [(0.0, 0.0, 4.0, 1.0), (2.0, 1.0, 4.0, 1.0)]
    assert {(text.get_text(), text.get_position()) for text in axes.texts} == {("a", (2.0, 0.5)), ("b", (4.0, 1.5))}
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 6.0), (2.0, 0.0))
    assert figure.texts[0].get_text() == "t" * 48 + "\nt"
    assert to_hex(axes.get_facecolor()) == style.IDLE


@pytest.mark.parametrize(
    ("width_points", "row_points", "named"), [(5.7, 4.6, True), (5.7, 4.5, False), (5.6, 4.6, False)]
)
def test_a_job_is_named_where_its_name_has_room(width_points: float, row_points: float, named: bool) -> None:
    """One letter needs 0.75 x 5 x 1.5 = 5.625 points of width, and more than 0.9 x 5 of height; 1 s is 2 points."""
    axes = Figure().add_subplot()
    axes.set_xlim(0, 108)  # of 3 inches
    table = {
        "job_id": ["a"],
        "server": [0],
        "from_s": [1.0],
        "to_s": [1.0 + width_points / 2],
        "bottom": [0],
        "height": [1],
    }
    placement_map._label_boxes(axes, pd.DataFrame(table), row_points)
    assert bool(axes.texts) is named


def test_a_design_map_writes_white_on_what_is_darker_than_the_middle() -> None:
    figure = training_charts.heat_map(
        np.array([[1.0, 100.0], [np.nan, 10.0]]), rows=["r", "s"], columns=["4", "8"], row_axis="tensor",
        column_axis="pipeline", title="Step (s)",
    )  # fmt: skip
    axes = figure.axes[0]
    assert [(text.get_text(), text.get_position(), text.get_color()) for text in axes.texts] == [
        ("1", (0, 0), style.INK), ("100", (1, 0), "white"), ("-", (0, 1), style.INK), ("10", (1, 1), style.INK),
    ]  # fmt: skip
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["r", "s"]
    assert figure.get_size_inches().tolist() == [3.5, 2.3]
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["1", "10", "100"]


@pytest.mark.parametrize(("letters", "shown"), [(35, "Fastest: " + "x" * 35), (36, "Fastest: " + "x" * 32 + "...")])
def test_a_long_name_of_a_design_is_cut(letters: int, shown: str) -> None:
    figure = training_charts.pareto_chart(
        np.array([1.0, 2.0, 4.0]), np.array([9.0, 5.0, 1.0]), np.array([2, 0, 1]),
        names=["x" * letters, "middle", "cheap"], time_axis="t", cost_axis="c",
    )  # fmt: skip
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == f"{shown}\nCheapest: cheap"
    assert lines(axes) == [[[9.0, 1.0], [5.0, 2.0], [1.0, 4.0]], [[1.0, 4.0], [5.0, 2.0], [9.0, 1.0]]]


def test_bins_go_from_0_to_the_last_sample_of_all_or_to_1_s() -> None:
    def sampled(*time_s: float) -> pd.DataFrame:
        return pd.DataFrame({"time_s": time_s, "busy_gpus": [2.0] * len(time_s)}, dtype=float)

    bands = run_charts.utilisation_bands({"p": [sampled(3.0), sampled(6.0)], "q": []}, 4)
    assert [*bands] == ["p"]
    band = bands["p"]
    assert (band.edges_s[0], band.edges_s[-1], len(band.edges_s), band.seeds) == (0.0, 6.0, 97, 2)
    assert band.mean.tolist() == [0.5] * 48 + [0.25] * 48
    assert band.low.tolist() == [0.5] * 48 + [0.0] * 48
    assert band.high.tolist() == [0.5] * 48 + [1.0] * 48  # no share is beyond
    empty = run_charts.utilisation_bands({"p": [sampled(0.0)]}, 4)["p"]
    assert (empty.edges_s[-1], empty.mean.tolist()) == (1.0, [0.0] * 96)


def test_the_interval_of_a_bin_is_students() -> None:
    """Of 0.50, 0.52 and 0.54: t(2) at 97.5 % is 4.30265."""
    tables = [pd.DataFrame({"time_s": [1.0], "busy_gpus": [busy]}) for busy in (5.0, 5.2, 5.4)]
    band = run_charts.utilisation_bands({"p": tables}, 10)["p"]
    half = 4.302652729911275 * 0.02 / 3**0.5
    assert band.mean == pytest.approx([0.52] * 96)
    assert (band.low[0], band.high[0]) == (pytest.approx(0.52 - half), pytest.approx(0.52 + half))


def charts_of(jobs: pd.DataFrame, num_gpus: int = 8, **given: Any) -> RunCharts:
    return RunCharts(SimpleNamespace(jobs=jobs, cluster=SimpleNamespace(num_gpus=num_gpus), **given))  # type: ignore[arg-type]


def test_phases_are_the_mean_seconds_of_finished_jobs_that_count_by_gpus() -> None:
    names = list(run_charts.PHASES)
    rows = [(2, True, "finished", 1.0), (2, True, "finished", 3.0), (4, True, "finished", 5.0)]
    rows += [(4, False, "finished", 50.0), (4, True, "running", 50.0)]
    jobs = pd.DataFrame(rows, columns=["gpus", "counted", "state", names[1]]).assign(
        **{name: 0.0 for name in names if name != names[1]}
    )
    jobs[names[2]] = 0.5
    figure = charts_of(jobs).phases()
    (axes,) = figure.axes
    assert [(left, width) for left, _, width, _ in boxes(axes)] == [(0.0, 2.0), (0.0, 5.0), (2.0, 0.5), (5.0, 0.5)]
    assert legend(figure) == ["computing", "waiting for its GPUs"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "4"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert figure.get_figheight() == pytest.approx(1.5 + 2 * 0.24)
    assert charts_of(jobs[:0]).phases().get_figheight() == pytest.approx(1.74)


def test_tenants_have_a_row_of_waits_times_and_preemptions(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame(
        {"wait_s": [1.0, 2.0], "jct_s": [3.0, 4.0], "preemptions": [5, 6], "p95_wait_s": [7.0, 8.0]}, index=["a", "b"]
    )
    monkeypatch.setattr(run_charts, "tenant_table", lambda _: table)
    figure = charts_of(pd.DataFrame()).tenant_jobs(size=(5.0, 2.0))
    assert [[width for _, _, width, _ in boxes(axes)] for axes in figure.axes] == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert names == [["a", "b"], ["", ""], ["", ""]]
    segments = figure.axes[0].collections[0].get_segments()
    assert np.array(segments).tolist() == [[[0.0, 0.0], [7.0, 0.0]], [[0.0, 1.0], [8.0, 1.0]]]
    assert figure.get_size_inches().tolist() == [5.0, 2.0]


def test_free_gpus_and_fragments_are_areas_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"free": [4.0, 2.0], "fragments": [1.0, 2.0]}, index=[0.0, 5.0])
    monkeypatch.setattr(run_charts, "free_gpus_over_time", lambda _: table)
    figure = charts_of(pd.DataFrame()).fragmentation()
    (axes,) = figure.axes
    assert [area.get_paths()[0].get_extents().bounds for area in axes.collections] == [(0, 0, 5, 4), (0, 0, 5, 2)]
    assert legend(figure) == ["free", "of these beside jobs on their server"]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 5.0), (0.0, pytest.approx(8.4)))


@pytest.mark.parametrize(("held", "texts"), [(7200.0, ["2", "1"]), (0.0, ["0", "0"])])
def test_the_waterfall_falls_from_all_that_was_held_to_what_trained(
    held: float, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU seconds: half of them train, and the rest is lost to the first part."""
    parts = [*run_charts.GPU_TIME_PARTS]
    values = dict.fromkeys(parts, 0.0) | {"held": held, parts[0]: held / 2, "training": held / 2}
    monkeypatch.setattr(run_charts, "gpu_time_of", lambda _: pd.DataFrame([values]))
    (axes,) = charts_of(pd.DataFrame()).waterfall().axes
    hours = held / 3600
    assert [(left, width) for left, _, width, _ in boxes(axes)] == [
        (0.0, hours), (hours / 2, hours / 2), *[(hours / 2, 0.0)] * (len(parts) - 2), (0.0, hours / 2),
    ]  # fmt: skip
    shares = ["100.0%", "50.0%"] if held else ["0.0%"] * 2
    assert [text.get_text() for text in axes.texts][:2] == [f" {t} ({s})" for t, s in zip(texts, shares, strict=True)]
    assert [text.get_position() for text in axes.texts][:2] == [(hours, 0), (hours, 1)]
    assert axes.get_xlim()[1] == pytest.approx(max(1.7 * hours, 1e-9))


def errors() -> pd.DataFrame:
    rows = [("linear", 10.0, 12.0, 0.2), ("own", 20.0, 10.0, -0.5), ("linear", 4.0, 3.0, -0.25)]
    return pd.DataFrame(rows, columns=["model", "measured_jct_s", "simulated_jct_s", "jct_error"])


def test_times_are_points_beside_the_line_on_which_both_are_the_same() -> None:
    figure = real_charts.measured_against_simulated(errors())
    (axes,) = figure.axes
    assert lines(axes) == [[[10.0, 12.0], [4.0, 3.0]], [[20.0, 10.0]], [[0.0, 0.0], [22.0, 22.0]]]
    assert [line.get_marker() for line in axes.lines[:2]] == ["o", "s"]
    assert axes.get_xlim() == axes.get_ylim() == (0.0, pytest.approx(22.0))
    assert legend(figure) == ["linear", "own"]


def test_errors_are_steps_of_their_size_in_per_cent() -> None:
    (axes,) = real_charts.error_distribution(errors()).axes
    assert lines(axes) == [[[0.0, 0.0], [20.0, 50.0], [25.0, 100.0]], [[0.0, 0.0], [50.0, 100.0]]]
    assert (axes.get_ylim(), axes.get_xlim()[0]) == ((0.0, 100.0), 0.0)


def test_a_seventh_model_has_the_first_mark_again() -> None:
    rows = [(f"m{number}", 1.0, 1.0, 0.1) for number in range(7)]
    table = pd.DataFrame(rows, columns=["model", "measured_jct_s", "simulated_jct_s", "jct_error"])
    (axes,) = real_charts.measured_against_simulated(table).axes
    assert [line.get_marker() for line in axes.lines[:7]] == [*"os^DvPo"]
