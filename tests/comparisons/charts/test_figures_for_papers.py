"""Figures that go into a paper: which policies, called what, how large, in which format."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from command_line import run
from tiers import tried

from ddlsched import compare, simulate
from ddlsched.comparisons.charts import jct_charts
from ddlsched.comparisons.charts.style import SHADES
from ddlsched.comparisons.comparison import Comparison
from ddlsched.errors import InputError, UnknownNameError
from ddlsched.results.statistics import Interval

JOBS = "microsoft-160:scale=0.001"
CALLED = {"srsf-1": "SRSF(1), one transfer a link", "ada-srsf": "Ada-SRSF"}
CHARTS = ("average_jct", "changes", "jct", "jct_by_size", "network", "utilisation")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("papers") / "comparison"
    return compare(JOBS, ["ada-srsf", "srsf-1", "srsf-2"], seeds=2, processes=1, folder=folder)


def words(figure: Any) -> str:
    """Return all that a figure says, without line breaks."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    texts = (text.get_text() for text in figure.findobj(Text) if text.get_visible())
    return " | ".join(text.replace("\n", " ") for text in texts if text)


@pytest.mark.long
@pytest.mark.parametrize("name", tried(CHARTS, lambda place: place % 3 == 0))
def test_item_23_a_chart_shows_the_policies_that_are_asked_for_by_their_labels(comparison: Comparison, name: str):
    shown = words(getattr(comparison.plot, name)(policies=["srsf-1", "ada-srsf"], labels=CALLED))
    assert "SRSF(1), one transfer a link" in shown
    assert "srsf-2" not in shown
    assert "srsf-1" not in shown
    assert "srsf-2" in words(getattr(comparison.plot, name)())


@pytest.mark.long
def test_item_23_policies_come_in_the_order_in_which_they_are_asked_for(comparison: Comparison):
    axes, *_ = comparison.plot.average_jct(policies=["srsf-2", "ada-srsf"]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["srsf-2", "ada-srsf"]


@pytest.mark.long
def test_item_23_a_policy_keeps_its_colour_whatever_it_is_called(comparison: Comparison):
    (plain,), (called,) = (
        comparison.plot.average_jct(policies=["srsf-1"], labels=labels).axes for labels in ({}, {"srsf-1": "ours"})
    )
    assert plain.patches[0].get_facecolor() == called.patches[0].get_facecolor()


@pytest.mark.long
@pytest.mark.parametrize("name", CHARTS)
def test_item_23_a_chart_has_the_size_that_is_asked_for(comparison: Comparison, name: str):
    assert getattr(comparison.plot, name)(size=(7.0, 3.25)).get_size_inches().tolist() == [7.0, 3.25]


@pytest.mark.long
def test_item_23_charts_of_a_run_have_a_size():
    charts = simulate(JOBS).plot
    for name in ("jct", "phases", "placements", "utilisation"):
        assert getattr(charts, name)(size=(3.3, 2.5)).get_size_inches().tolist() == [3.3, 2.5]


@pytest.mark.long
def test_item_23_figures_are_written_as_pdf_with_text_that_can_be_searched_and_as_svg(
    comparison: Comparison, tmp_path: Path
):
    figure = comparison.plot.average_jct()
    for name in ("f.pdf", "f.svg"):
        figure.savefig(tmp_path / name)
    written = (tmp_path / "f.pdf").read_bytes()
    assert written.startswith(b"%PDF")
    assert b"/Type0" in written
    assert b"/Type3" not in written
    assert (tmp_path / "f.svg").read_text().count("<svg") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"policies": ["srsf-3"]}, "no policy is named 'srsf-3'. Did you mean 'srsf-"),
        ({"labels": {"srsf1": "x"}}, "no policy is named 'srsf1'. Did you mean 'srsf-1'"),
        ({"labels": ["x", "y"]}, "no mapping; expected a label by policy"),
        ({"labels": {"srsf-1": "x", "srsf-2": "x"}}, "calls two policies alike; expected a label for each"),
        ({"policies": []}, "nothing to show of []"),
        ({"size": (3,)}, "size is (3,); expected a width and a height of 0.5 to 100 inches"),
        ({"size": (3, float("nan"))}, "expected a width and a height"),
        ({"sizes": (3, 2)}, "a chart has no parameter 'sizes'. Did you mean 'size'"),
    ],
)
def test_item_23_what_a_chart_cannot_show_is_told(comparison: Comparison, asked: dict[str, Any], told: str):
    with pytest.raises(InputError) as caught:
        comparison.plot.jct(**asked)
    assert told in str(caught.value)


@pytest.mark.long
def test_one_policy_may_be_named_without_a_list(comparison: Comparison):
    with pytest.raises(UnknownNameError, match="no policy is named 'srsf-9'"):
        comparison.plot.jct(policies="srsf-9")
    (drawn,) = [text.get_text() for text in comparison.plot.jct(policies="srsf-1").legends[0].get_texts()]
    assert drawn == "srsf-1"


@pytest.mark.parametrize("policies", [2, 3, 5])
def test_item_23_marks_of_one_metric_stand_together(policies: int):
    measured = {f"policy {number}": Interval(1.0 + number, 0.5, 9.0, 5) for number in range(policies)}
    rows = [jct_charts.Change(metric, measured) for metric in ("Average JCT", "p99 JCT")]
    axes, *_ = jct_charts.changes(rows, axis="Change (%)").axes
    marks = [float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() in set("os^Dv")]
    gaps = np.diff(marks)
    assert len(marks) == 2 * policies
    assert gaps[policies - 1] >= 1.99 * max(np.delete(gaps, policies - 1))


def test_item_22_a_long_axis_title_has_several_lines_and_is_not_cut_off():
    intervals = {"a": Interval(1.0, 0.9, 1.1, 5), "b": Interval(2.0, 1.9, 2.1, 5)}
    title = "Change against a policy of mine that has a rather long name of its own, as they do (%)"
    figure = jct_charts.bars(intervals, axis=title)
    figure.draw_without_rendering()
    label = figure.axes[0].xaxis.label
    assert label.get_text().count("\n") >= 2
    extent = label.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1


@pytest.mark.long
@pytest.mark.parametrize(("values", "first"), [([20.0, 2e6], "10"), ([20.0, 400.0], "10"), ([0.02, 0.5], "0.01")])
def test_item_23_ticks_of_a_logarithmic_axis_are_plain_numbers(values: list[float], first: str):
    figure = jct_charts.distributions({"a": np.array(values), "b": np.array(values) * 3}, axis="JCT (s)")
    figure.draw_without_rendering()
    ticks = [text.get_text() for axis in figure.axes for text in axis.get_xticklabels(which="both") if text.get_text()]
    assert first in ticks
    assert not any("e+" in tick or "mathdefault" in tick or "$" in tick for tick in ticks)


@pytest.mark.long
def test_item_22_name_is_what_tables_call_a_policy(tmp_path: Path):
    flags = ["--seeds", 1, "--processes", 1, "--out", tmp_path / "out"]
    orders = ["--scheduler", "srsf-1", "--order", "fifo", "--order", "las"]
    done = run("compare", JOBS, *orders, "--name", "One", "--name", "First come", "--name", "LAS", *flags)
    assert done.exit_code == 0, done.stderr
    runs = Comparison.open(tmp_path / "out").runs
    assert list(runs["policy"]) == ["One", "First come", "LAS"]
    wrong = run("compare", JOBS, *orders, "--name", "One", *flags)
    assert wrong.exit_code == 2
    assert "--name: is given 1 times for 3 policies; expected one for each --scheduler" in wrong.stderr


@pytest.mark.slow
def test_item_23_the_page_on_figures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[3] / "docs" / "paper_figures.md").read_text(encoding="utf-8")
    program = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(program.replace("seeds=5", "seeds=2, processes=1"), "paper_figures.md", "exec"), {})
    assert Path("changes.pdf").read_bytes().startswith(b"%PDF")


def test_the_first_and_the_last_shade_are_of_half_as_much_as_the_others() -> None:
    figure = mock.MagicMock()
    jct_charts._shade_bar(figure, mock.MagicMock(), 80.0)
    shares = np.diff(figure.colorbar.call_args.args[0].norm.boundaries) / 80
    one = 1 / (len(SHADES) - 1)
    assert shares == pytest.approx([one / 2, *[one] * (len(SHADES) - 2), one / 2])


@pytest.mark.long
def test_a_chart_of_phases_says_what_its_colours_are() -> None:
    (legend,) = simulate(JOBS).plot.phases().legends
    assert len(legend.get_texts()) > 1
