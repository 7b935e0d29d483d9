"""Charts: the right marks, nothing cut off or over something else, and the same bytes each time."""

from __future__ import annotations

import functools
import itertools
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from tiers import tried

from ddlsched.comparisons.charts.jct_charts import (
    Change,
    bars,
    changes,
    distributions,
    grouped_bars,
    heat_map,
    shade_of,
)
from ddlsched.comparisons.charts.placement_map import placement_map
from ddlsched.comparisons.charts.run_charts import utilisation, utilisation_bands
from ddlsched.comparisons.charts.style import (
    COLUMN_INCHES,
    DARK_PAGE,
    INK,
    JOB_COLOURS,
    PALETTE,
    SHADES,
    colours,
    in_style,
    on_dark,
    save,
    short_labels,
    wrapped,
)
from ddlsched.results.statistics import Interval

SVG = "{http://www.w3.org/2000/svg}"
LONG = "Preemptive, by service per GPU"
NASTY = "_mine.py:Path/Without/Any/Space:alpha=$0.1,beta=</b>"


def a_bar_chart() -> Figure:
    intervals = {
        "SRSF(1)": Interval(1411.0, 1276.0, 1546.0, 100),
        "Ada-SRSF": Interval(1404.0, 1300.0, 1508.0, 100),
        LONG: Interval(1304.0, 1149.0, 1460.0, 100),
    }
    return bars(intervals, axis="Average JCT (s)")


def a_change_chart() -> Figure:
    measured = {"bytes conserved": Interval(1.3, 0.2, 2.4, 100), "published": Interval(-26.5, -27.8, -25.1, 100)}
    rows = [Change("Ada-SRSF\nagainst SRSF(1)", measured, claimed=-20.1), Change("the other", measured)]
    return changes(rows, axis="Change of the average JCT (%)", claim="the paper's abstract")


def a_distribution_chart() -> Figure:
    rng = np.random.default_rng(1)
    samples = {label: np.exp(rng.normal(6.0, 1.0, size)) for label, size in (("SRSF(1)", 50), (LONG, 5000), ("FF", 7))}
    return distributions(samples, axis="JCT (s)")


def a_chart_of_classes() -> Figure:
    policies = ["SRSF(1)", LONG, NASTY]
    group = {
        policy: Interval(mean, 0.9 * mean, 1.2 * mean, 8) for policy, mean in zip(policies, (3, 4, 5), strict=True)
    }
    larger = {policy: interval.scaled(1234.5) for policy, interval in group.items()}
    return grouped_bars({"1 GPU": group, "2–4 GPUs": group, "5–7 GPUs": larger, "8+ GPUs": larger}, axis="JCT (s)")


def a_heat_map() -> Figure:
    shares = {"1 GPU": [0.0, 0.0], "2–4 GPUs": [0.123, np.nan], "8+ GPUs": [0.9, 0.456], "all jobs": [0.7, 0.8]}
    return heat_map(pd.DataFrame(shares, index=["SRSF(1)", NASTY]), axis="Communicating (% of JCT)")


def a_utilisation_chart() -> Figure:
    rng = np.random.default_rng(3)
    time_s = np.linspace(1.0, 90.0, 90)
    tables = {
        policy: [pd.DataFrame({"time_s": time_s, "busy_gpus": rng.uniform(0, 64, 90)}) for _ in range(7)]
        for policy in ("SRSF(1)", NASTY, LONG)
    }
    return utilisation(utilisation_bands(tables, 64))


def a_placement_map(gpus: int = 64) -> Figure:
    rng = np.random.default_rng(4)
    rows = []
    for job in range(3 * gpus):
        first, from_s = int(rng.integers(gpus)), rng.uniform(0, 100)
        own = range(first, min(first + int(rng.choice([1, 2, 4, 8])), gpus))
        rows += [(f"j{job}", gpu, gpu // 4, from_s, from_s + 20.0) for gpu in own]
    placements = pd.DataFrame(rows, columns=["job_id", "gpu", "server", "from_s", "to_s"])
    return placement_map(placements, [4] * (gpus // 4), title=NASTY)


def a_large_placement_map() -> Figure:
    return a_placement_map(1000)


CHARTS = [a_bar_chart, a_change_chart, a_distribution_chart, a_chart_of_classes, a_heat_map, a_utilisation_chart]
MAPS = [a_placement_map, a_large_placement_map]


# ---- Colours


@pytest.mark.parametrize(
    "names", [("SRSF(1)", "srsf-1"), ("Ada-SRSF", "lwf:kappa=1", "κ=1", "LWF-1"), ("FF", "first-fit")]
)
def test_a_policy_has_one_colour_under_all_its_names(names):
    assert len({colours([name])[name] for name in names}) == 1


def test_labels_of_a_chart_have_different_colours():
    labels = ["SRSF(1)", "SRSF(2)", "Ada-SRSF", *(f"mine {n}" for n in range(8))]
    found = colours(labels)
    assert len(set(found.values())) == len(labels)
    assert found["SRSF(1)"] == colours(["SRSF(1)"])["SRSF(1)"]


def test_a_users_policy_looks_like_none_of_the_built_in_ones_beside_it():
    built_in = ["srsf-1", "srsf-2", "ada-srsf"]
    unlike = {PALETTE[name] for name in ("vermillion", "purple", "sky", "wine", "rose")}
    assert {colours([*built_in, f"mine {n}"])[f"mine {n}"] for n in range(100)} == unlike


def test_a_given_colour_wins():
    assert colours(["FF", "mine"], {"FF": "#123456"})["FF"] == "#123456"


def test_more_labels_than_colours():
    assert set(colours([f"mine {n}" for n in range(50)]).values()) <= set(PALETTE.values())


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""
    light = []
    for colour in (one, other):
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
        light.append(float(np.dot([0.2126, 0.7152, 0.0722], linear)) + 0.05)
    return max(light) / min(light)


@pytest.mark.parametrize("colour", PALETTE.values())
def test_all_colours_stand_out_from_white_and_from_a_dark_page(colour):
    assert contrast(colour, "white") > 1.9
    assert contrast(on_dark(colour), DARK_PAGE) >= 3.0


def test_only_colours_too_dark_for_a_dark_page_change_there():
    assert on_dark(PALETTE["orange"]) == PALETTE["orange"]
    assert on_dark(PALETTE["indigo"]) != PALETTE["indigo"]


@pytest.mark.parametrize("colour", [*SHADES, *JOB_COLOURS])
def test_text_on_shades_and_jobs_can_be_read(colour):
    assert contrast(colour, INK) >= 4.5


def test_shades_go_from_little_to_much():
    assert [shade_of(part) for part in (0.0, 0.5, 1.0)] == [SHADES[0], SHADES[2], SHADES[-1]]
    assert all(contrast(one, "white") < contrast(other, "white") for one, other in itertools.pairwise(SHADES))


@pytest.mark.long
@given(st.text(max_size=80), st.integers(4, 40))
def test_wrapping_a_label_loses_nothing_and_is_narrow(label, width):
    lines = wrapped(label, width).split("\n")
    assert "".join("".join(lines).split()) == "".join(label.split())
    assert max(map(len, lines)) <= width


def test_labels_are_wrapped_after_marks():
    assert wrapped("first-fit + srsf + bounded-overlap:limit=1").split("\n") == [
        "first-fit + srsf +",
        "bounded-overlap:limit=1",
    ]


# ---- Charts


@functools.cache
@in_style()
def drawn_texts(chart):
    """A figure, and every text that is drawn, with its box in pixels."""
    figure = chart()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in _out_of_view(axis)}
    found = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    found = [text for text in found if text not in hidden]
    return figure, [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in found]


def _out_of_view(axis):
    low, high = sorted(axis.get_view_interval())
    labels = zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
    return [label for label, place in labels if not low <= place <= high]


@pytest.mark.long
@pytest.mark.parametrize("chart", [*CHARTS, *MAPS])
def test_no_text_is_cut_off_or_overlaps(chart):
    figure, found = drawn_texts(chart)
    assert figure.get_figwidth() == COLUMN_INCHES
    for text, box in found:
        assert figure.bbox.x0 - 1 <= box.x0, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert figure.bbox.y0 - 1 <= box.y0, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    for (one, box), (other, second) in itertools.combinations(found, 2):
        assert not box.padded(-1).overlaps(second.padded(-1)), (one, other)


@pytest.mark.long
@pytest.mark.parametrize("chart", CHARTS)
def test_axes_name_their_unit_and_the_legend_is_beside_the_data(chart):
    figure, found = drawn_texts(chart)
    assert any("(s)" in text or "(%" in text for text, _ in found)
    for legend in figure.legends:
        assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_bars_say_how_many_seeds():
    (axes,) = a_bar_chart().axes
    assert axes.get_xlabel() == "Average JCT (s)\nmean and 95 % interval over 100 seeds"
    assert [bar.get_width() for bar in axes.patches] == [1411.0, 1404.0, 1304.0]
    assert axes.get_xlim()[0] == 0


def test_changes_show_each_estimate_once_in_the_legend():
    (legend,) = a_change_chart().legends
    assert [text.get_text() for text in legend.get_texts()] == ["bytes conserved", "published", "the paper's abstract"]


def test_distributions_are_those_of_the_values():
    figure = distributions({"a": [4.0, 1.0, 2.0, 2.0]}, axis="JCT (s)")
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == [1.0, 2.0, 2.0, 4.0]
    assert line.get_ydata().tolist() == [0.25, 0.5, 0.75, 1.0]


def test_distributions_of_many_values_keep_their_quantiles():
    values = np.random.default_rng(2).uniform(1.0, 9.0, 100_000)
    (line,) = distributions({"a": values}, axis="JCT (s)").axes[0].lines
    assert len(line.get_xdata()) == 1001
    assert np.interp(0.5, line.get_ydata(), line.get_xdata()) == pytest.approx(np.median(values))
    assert line.get_xdata()[-1] == values.max()


@pytest.mark.parametrize("chart", [a_chart_of_classes, a_utilisation_chart])
def test_legends_name_policies_as_they_are(chart):
    (legend,) = chart().legends
    names = ["".join(text.get_text().replace("\N{WORD JOINER}", "").split()) for text in legend.get_texts()]
    policies = ["SRSF(1)", LONG, NASTY]
    assert set(names) == {"".join(label.split()) for label in short_labels(policies).values()}


@pytest.mark.long
def test_each_class_has_a_panel_from_0_with_its_policies():
    panels = a_chart_of_classes().axes
    assert [axes.get_xlabel() for axes in panels] == ["1 GPU", "2–4 GPUs", "5–7 GPUs", "8+ GPUs"]
    assert [[bar.get_height() for bar in axes.patches] for axes in panels[:2]] == [[3, 4, 5]] * 2
    assert panels[2].patches[0].get_height() == 3 * 1234.5
    assert all(axes.get_ylim()[0] == 0 for axes in panels)


def test_a_heat_map_writes_the_per_cent_into_the_cells():
    axes, _ = a_heat_map().axes
    assert [text.get_text() for text in axes.texts] == ["0.0", "12.3", "90.0", "70.0", "0.0", "no job", "45.6", "80.0"]


# ---- Utilisation


@pytest.mark.long
@given(
    st.lists(st.tuples(st.floats(0.001, 50.0), st.floats(0.0, 64.0)), min_size=1, max_size=40),
    st.lists(st.tuples(st.floats(0.001, 50.0), st.floats(0.0, 64.0)), min_size=1, max_size=40),
)
def test_utilisation_keeps_the_gpu_seconds_of_each_run(first, second):
    tables = [
        pd.DataFrame({"time_s": np.cumsum([s for s, _ in run]), "busy_gpus": [g for _, g in run]})
        for run in (first, second)
    ]
    band = utilisation_bands({"a": tables}, 64)["a"]
    expected = sum(step_s * gpus for run in (first, second) for step_s, gpus in run) / 2
    assert 64 * (band.mean * np.diff(band.edges_s)).sum() == pytest.approx(expected, abs=1e-6)
    assert (band.low <= band.mean + 1e-12).all()
    assert (band.mean <= band.high + 1e-12).all()


def test_utilisation_is_the_mean_over_seeds_with_students_interval():
    levels = [16.0, 32.0, 24.0]
    tables = [pd.DataFrame({"time_s": [5.0, 10.0], "busy_gpus": [level, level]}) for level in levels]
    band = utilisation_bands({"a": tables}, 64)["a"]
    assert band.seeds == 3
    assert band.mean == pytest.approx(24 / 64)
    half = 4.302653 * 8 / np.sqrt(3) / 64  # t of 2 degrees of freedom; the levels' standard deviation is 8
    assert band.high == pytest.approx(24 / 64 + half)
    assert band.low == pytest.approx(24 / 64 - half)


def test_policies_share_bins_and_a_run_that_is_over_computes_nothing():
    tables = {"short": [pd.DataFrame({"time_s": [50.0], "busy_gpus": [8.0]})]}
    tables["long"] = [pd.DataFrame({"time_s": [100.0], "busy_gpus": [8.0]})]
    bands = utilisation_bands(tables, 8)
    assert (bands["short"].edges_s == bands["long"].edges_s).all()
    assert bands["long"].mean == pytest.approx(1.0)
    assert bands["short"].mean[:48] == pytest.approx(1.0)
    assert bands["short"].mean[48:] == pytest.approx(0.0)


# ---- Files


@pytest.mark.long
@pytest.mark.parametrize("chart", tried([*CHARTS, a_placement_map], lambda place: place in (0, 3)))
def test_files_are_the_same_bytes_each_time(chart, tmp_path):
    first = save(chart(), tmp_path / "one" / "chart.v2")
    second = save(chart(), tmp_path / "two" / "chart.v2")
    assert [path.name for path in first] == ["chart.v2.png", "chart.v2.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert ElementTree.parse(first[1]).getroot().tag == f"{SVG}svg"


@pytest.mark.long
def test_style_leaves_matplotlib_as_it_was(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    save(a_bar_chart(), tmp_path / "chart")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.long
def test_a_chart_that_is_stopped_half_way_leaves_the_one_before_whole(tmp_path, monkeypatch):
    paths = save(a_bar_chart(), tmp_path / "chart")
    before = [path.read_bytes() for path in paths]

    def stopped(figure, path, **_):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    figure = a_bar_chart()
    monkeypatch.setattr(type(figure), "savefig", stopped)
    with pytest.raises(KeyboardInterrupt):
        save(figure, tmp_path / "chart")
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_style_overrules_the_users_own():
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        figure = a_bar_chart()
    assert figure.axes[0].get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert figure.axes[0].xaxis.label.get_fontsize() == 8
