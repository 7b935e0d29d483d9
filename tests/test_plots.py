"""Charts: the right marks, nothing cut off or over something else, and the same bytes each time."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from ddlsched.plots.charts import Change, bars, changes, distributions
from ddlsched.plots.style import COLUMN_INCHES, PALETTE, colours, in_style, save
from ddlsched.results.statistics import Interval

SVG = "{http://www.w3.org/2000/svg}"
LONG = "Preemptive, by service per GPU"


def a_bar_chart() -> Figure:
    intervals = {
        "SRSF(1)": Interval(1411.0, 1276.0, 1546.0, 100),
        "Ada-SRSF": Interval(1404.0, 1300.0, 1508.0, 100),
        LONG: Interval(1304.0, 1149.0, 1460.0, 100),
    }
    return bars(intervals, axis="Average JCT (s)", title="A title longer than a column of a paper is wide, by far")


def a_change_chart() -> Figure:
    measured = {"bytes conserved": Interval(1.3, 0.2, 2.4, 100), "published": Interval(-26.5, -27.8, -25.1, 100)}
    rows = [Change("Ada-SRSF\nagainst SRSF(1)", measured, claimed=-20.1), Change("the other", measured)]
    return changes(rows, axis="Change of the average JCT (%)", claim="the paper's abstract")


def a_distribution_chart() -> Figure:
    rng = np.random.default_rng(1)
    samples = {label: np.exp(rng.normal(6.0, 1.0, size)) for label, size in (("SRSF(1)", 50), (LONG, 5000), ("FF", 7))}
    return distributions(samples, axis="JCT (s)", title="Communication, under LWF-1")


CHARTS = [a_bar_chart, a_change_chart, a_distribution_chart]


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


def test_a_given_colour_wins():
    assert colours(["FF", "mine"], {"FF": "#123456"})["FF"] == "#123456"


def test_more_labels_than_colours():
    assert set(colours([f"mine {n}" for n in range(50)]).values()) <= set(PALETTE.values())


def test_all_colours_stand_out_from_white():
    for colour in PALETTE.values():
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
        luminance = float(np.dot([0.2126, 0.7152, 0.0722], linear))
        assert 1.05 / (luminance + 0.05) > 1.9


# ---- Charts


def texts(figure: Figure):
    """Every text that is drawn, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = [text for text in figure.findobj(Text) if text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in found if text.get_visible()]


@in_style()
def drawn_texts(chart):
    figure = chart()
    inside = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    shown = {label.get_text() for axis in inside for label in axis.get_ticklabels()}
    hidden = shown - {text for axis in inside for text in _in_view(axis)}
    return figure, [(text, box) for text, box in texts(figure) if text not in hidden]


def _in_view(axis):
    low, high = sorted(axis.get_view_interval())
    return [
        label.get_text()
        for label, place in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
        if low <= place <= high
    ]


@pytest.mark.parametrize("chart", CHARTS)
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


@pytest.mark.parametrize("chart", CHARTS)
def test_axes_name_their_unit_and_the_legend_is_beside_the_data(chart):
    figure, _ = drawn_texts(chart)
    (axes,) = figure.axes
    assert "(s)" in axes.get_xlabel() or "(%)" in axes.get_xlabel()
    for legend in figure.legends:
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())


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


# ---- Files


@pytest.mark.parametrize("chart", CHARTS)
def test_files_are_the_same_bytes_each_time(chart, tmp_path):
    first = save(chart(), tmp_path / "one" / "chart.v2")
    second = save(chart(), tmp_path / "two" / "chart.v2")
    assert [path.name for path in first] == ["chart.v2.png", "chart.v2.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert ElementTree.parse(first[1]).getroot().tag == f"{SVG}svg"


def test_style_leaves_matplotlib_as_it_was(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    save(a_bar_chart(), tmp_path / "chart")
    assert dict(matplotlib.rcParams) == before


def test_style_overrules_the_users_own():
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        figure = a_bar_chart()
    assert figure.axes[0].get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert figure.axes[0].xaxis.label.get_fontsize() == 8
