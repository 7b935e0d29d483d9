"""An axis that does not begin at 0 says so, in every chart."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddlsched.comparisons.charts.style import new_figure, shown_figure

ROOT = Path(__file__).parents[3]
SOURCES = [path for room in ("ddlsched", "experiments", "docs") for path in sorted((ROOT / room).rglob("*.py"))]


def drawn(prepare: Callable[[Axes], object]) -> tuple[str, str]:
    """Return the labels of both axes of a figure that was drawn, twice."""
    figure, axes = new_figure(2.0)
    prepare(axes)
    for _ in range(2):
        FigureCanvasAgg(figure).draw()
    return axes.get_xlabel(), axes.get_ylabel()


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"xlim": (0, 5), "ylim": (-1, 1)}, ("Time (s)", "Change (%)")),
        ({"xlim": (2, 5), "ylim": (0, 1)}, ("Time (s)\naxis from 2", "Change (%)")),
        ({"xlim": (5, 2), "ylim": (-4, -1.25)}, ("Time (s)\naxis from 2", "Change (%)\naxis from -1.25")),
        ({"xlim": (0.1, 10), "xscale": "log"}, ("Time (s)\nlog scale", "Change (%)")),
        ({"xlim": (2, 5), "xticks": [3, 4], "xticklabels": ["one", "two"]}, ("Time (s)", "Change (%)")),
        ({"xlim": (2, 5), "xticks": []}, ("Time (s)", "Change (%)")),
    ],
)
def test_an_axis_of_numbers_says_where_it_begins_unless_at_0(settings: dict, labels: tuple[str, str]) -> None:
    assert drawn(lambda axes: axes.set(xlabel="Time (s)", ylabel="Change (%)", **settings)) == labels


@pytest.mark.long
def test_bars_of_names_say_nothing() -> None:
    assert drawn(lambda axes: axes.barh(["one", "two"], [3.0, 4.0])) == ("", "")


@pytest.mark.long
def test_an_axis_that_changes_says_the_new_beginning() -> None:
    figure, axes = new_figure(2.0)
    for first, said in ((2, "Time (s)\naxis from 2"), (0, "Time (s)")):
        axes.set(xlabel=axes.get_xlabel() or "Time (s)", xlim=(first, 5))
        FigureCanvasAgg(figure).draw()
        assert axes.get_xlabel() == said


@pytest.mark.long
def test_panels_that_share_an_axis_say_it_at_the_one_that_names_it() -> None:
    figure = shown_figure(4.0, 3.0)
    above, below = figure.subplots(2, 1, sharex=True)
    below.set(xlabel="JCT (s)", xscale="log", xlim=(1, 100))
    FigureCanvasAgg(figure).draw()
    assert (above.get_xlabel(), below.get_xlabel()) == ("", "JCT (s)\nlog scale")


def test_every_chart_is_a_figure_that_says_so() -> None:
    """Charts are made by ``new_figure``, ``new_panels`` or ``shown_figure``, and by nothing else."""
    made = [path.stem for path in SOURCES if re.search(r"(?<![\w.])Figure\(", path.read_text(encoding="utf-8"))]
    assert made == []
    others = [path.stem for path in SOURCES if re.search(r"import.* pyplot|\.pyplot", path.read_text(encoding="utf-8"))]
    assert others == []


def test_the_figures_of_the_style_are_all_of_that_kind() -> None:
    figure, _ = new_figure(2.0)
    assert type(figure) is not Figure
    assert isinstance(figure, Figure)
