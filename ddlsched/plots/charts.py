"""Charts of comparisons: bars with intervals, changes against a baseline, and distributions of JCT."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.plots.style import DASHES, INK, MUTED, colours, in_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddlsched.results.statistics import Interval, Numbers

__all__ = ["Change", "bars", "changes", "distributions"]

_MOST_POINTS = 1001
_BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


@in_style()
def bars(
    intervals: Mapping[str, Interval], *, axis: str, title: str = "", colour: Mapping[str, str] | None = None
) -> Figure:
    """Return a bar a policy, with its interval and its value, the first on top.

    Parameters
    ----------
    intervals
        By policy.
    axis
        What is measured, with its unit: ``"Average JCT (s)"``.
    title
        One line.
    colour
        Of some labels, in place of the style's own.
    """
    figure, axes = new_figure(0.75 + 0.24 * len(intervals))
    shade = colours(list(intervals), colour)
    widest = max(interval.high for interval in intervals.values())
    for place, (label, interval) in enumerate(intervals.items()):
        axes.barh(place, interval.mean, height=0.68, color=shade[label], alpha=0.85)
        axes.plot([interval.low, interval.high], [place, place], color=INK, linewidth=1.0, marker="|", markersize=4)
        value = _short(interval.mean)
        axes.annotate(
            value, (interval.high, place), (4, 0), textcoords="offset points", va="center_baseline", bbox=_BLANK
        )
    axes.set_xlim(0, 1.16 * widest)
    _label_rows(axes, list(intervals))
    _finish(figure, axes, f"{axis}\n{_over_seeds(intervals.values())}", title)
    return figure


@dataclass(frozen=True)
class Change:
    """A row of :func:`changes`: one or more estimates of the same change, each with its name.

    Parameters
    ----------
    label
        What is compared with what.
    measured
        Estimates by name, in the unit of the axis.
    claimed
        A published value, if there is one.
    """

    label: str
    measured: Mapping[str, Interval]
    claimed: float | None = None


@in_style()
def changes(
    rows: Sequence[Change], *, axis: str, claim: str = "published", colour: Mapping[str, str] | None = None
) -> Figure:
    """Return a row a comparison: each estimate as a point with its interval, beside the claimed value.

    Parameters
    ----------
    rows
        First on top.
    axis
        What is measured, with its unit.
    claim
        What the claimed values are called in the legend.
    colour
        Of some estimates, in place of the style's own.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.measured))
    figure, axes = new_figure(0.85 + 0.16 * len(names) + 0.17 * len(rows) * (len(names) + 1))
    shade = colours(names, colour)
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    for place, row in enumerate(rows):
        offsets = np.linspace(-0.27, 0.27, len(names)) if len(names) > 1 else [0.0]
        for number, (name, offset) in enumerate(zip(names, offsets, strict=True)):
            if name in row.measured:
                interval, y = row.measured[name], place + float(offset)
                axes.plot([interval.low, interval.high], [y, y], color=shade[name], linewidth=1.4)
                axes.plot(interval.mean, y, "os^Dv"[number % 5], color=shade[name], markersize=4.5, label=name)
        if row.claimed is not None:
            axes.plot(
                [row.claimed] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=1.2, linestyle=":", label=claim
            )
    _label_rows(axes, [row.label for row in rows])
    _finish(figure, axes, f"{axis}\n{_over_seeds(i for row in rows for i in row.measured.values())}", "")
    _legend_below(figure, axes, columns=1)
    return figure


@in_style()
def distributions(
    samples: Mapping[str, Numbers], *, axis: str, title: str = "", colour: Mapping[str, str] | None = None
) -> Figure:
    """Return the cumulative distribution of each policy's values on a logarithmic axis.

    Parameters
    ----------
    samples
        All values > 0 of a policy; of many, their quantiles are drawn.
    axis
        What is measured, with its unit.
    title
        One line.
    colour
        Of some labels, in place of the style's own.
    """
    rows = (len(samples) + 1) // 2
    figure, axes = new_figure(2.2 + 0.16 * rows)
    shade = colours(list(samples), colour)
    for number, (label, values) in enumerate(samples.items()):
        x, share = _cumulative(np.asarray(values, dtype=np.float64))
        axes.plot(x, share, drawstyle="steps-post", color=shade[label], linestyle=DASHES[number % 5], label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, 1.01)
    axes.set_yticks(np.arange(6) / 5)
    axes.set_ylabel("Share of jobs")
    axes.grid(axis="y")
    _finish(figure, axes, axis, title)
    _legend_below(figure, axes, columns=2)
    return figure


def _cumulative(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(values) <= _MOST_POINTS:
        return np.sort(values), np.arange(1, len(values) + 1) / len(values)
    share = np.linspace(0.0, 1.0, _MOST_POINTS)
    return np.quantile(values, share), share


def _over_seeds(intervals: Iterable[Interval]) -> str:
    seeds = sorted({interval.seeds for interval in intervals})
    return f"mean and 95 % interval over {' or '.join(map(str, seeds))} seeds"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)


def _finish(figure: Figure, axes: Axes, axis: str, title: str) -> None:
    axes.set_xlabel(axis, loc="right")  # under long names of policies a centred label would be cut off
    axes.grid(axis="x")
    if title:  # at the figure's edge: over the axes, long names of policies would push it out
        lines = textwrap.wrap(title, 52)
        figure.set_figheight(figure.get_figheight() + 0.14 * (len(lines) - 1))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=8.5)


def _legend_below(figure: Figure, axes: Axes, *, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(list(once.values()), list(once), loc="outside lower left", ncols=columns)
