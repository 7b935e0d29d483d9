"""Charts of comparisons: bars with intervals, by class too, changes, distributions of JCT, and heat maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.comparisons.charts import style
from ddlsched.deferred import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddlsched.results.statistics import Interval, Numbers

_MOST_POINTS = 1001
_COINCIDE = 0.05
"""Curves of distributions that are nearer than this everywhere lie on each other; their differences are drawn too."""
_LEGEND_LETTERS = 44
"""What two columns of a legend have room for, of the longest label of each together."""
_BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center_baseline", "bbox": _BLANK}
"""How a value stands beside its bar."""


@style.in_style()
def bars(intervals: Mapping[str, Interval], *, axis: str, colour: Mapping[str, str] | None = None) -> Figure:
    """Return a bar a policy, with its interval and its value, the first on top.

    Parameters
    ----------
    intervals
        By policy.
    axis
        What is measured, with its unit: ``"Average JCT (s)"``.
    colour
        Of some labels, in place of the style's own.
    """
    labels = [style.wrapped(label) for label in style.short_labels(list(intervals)).values()]
    figure, axes = style.new_figure(0.75 + sum(_row_inches(label) for label in labels))
    shade = style.colours(list(intervals), colour)
    widest = max(interval.high for interval in intervals.values())
    for place, (label, interval) in enumerate(intervals.items()):
        axes.barh(place, interval.mean, height=0.68, color=shade[label], alpha=0.85)
        ends = [interval.low, interval.high]
        axes.plot(ends, [place, place], color=style.INK, linewidth=1.0, marker="|", markersize=4)
        axes.annotate(style.short(interval.mean), (interval.high, place), (4, 0), **_BESIDE)
    axes.set_xlim(0, 1.16 * widest)
    _label_rows(axes, labels)
    _measure(axes, f"{axis}\n{over_seeds(interval.seeds for interval in intervals.values())}")
    return figure


@style.in_style()
def grouped_bars(
    groups: Mapping[str, Mapping[str, Interval]], *, axis: str, colour: Mapping[str, str] | None = None
) -> Figure:
    """Return a panel a group, with a bar and an interval a policy; each panel has its own scale from 0.

    Parameters
    ----------
    groups
        By group, then by policy: not every group need have every policy.
    axis
        What is measured, with its unit.
    colour
        Of some policies, in place of the style's own.
    """
    policies = list(dict.fromkeys(policy for group in groups.values() for policy in group))
    shade, called = style.colours(policies, colour), style.short_labels(policies)
    lines = legend_lines(called.values())
    figure, panels = style.new_panels(1.9 + 0.15 * lines, len(groups))
    for axes, (name, group) in zip(panels, groups.items(), strict=True):
        for place, policy in enumerate(policies):
            if policy in group:
                _upright_bar(axes, place, group[policy], shade[policy], legend_label(called[policy]))
        axes.set(xlabel=name, xlim=(-0.6, len(policies) - 0.4), xticks=[])
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(axis="y")
    over = over_seeds(interval.seeds for group in groups.values() for interval in group.values())
    figure.suptitle(style.axis_title(f"{axis}; each panel has its own scale;\n{over}"), x=0.01, ha="left", fontsize=8)
    legend_below(figure, panels)
    return figure


def _upright_bar(axes: Axes, place: int, interval: Interval, colour: str, label: str) -> None:
    axes.bar(place, interval.mean, width=0.8, color=colour, alpha=0.85, label=label)
    axes.plot([place, place], [interval.low, interval.high], color=style.INK, linewidth=1.0, marker="_", markersize=4)


@style.in_style()
def heat_map(shares: pd.DataFrame, *, axis: str) -> Figure:
    """Return a table of shares with the cells shaded, and the per cent in them.

    Parameters
    ----------
    shares
        From 0 to 1, a row a policy, a column a group of jobs; NaN where there are none.
    axis
        What is measured, and of what the columns are groups.
    """
    labels = [style.wrapped(label) for label in style.short_labels([str(label) for label in shares.index]).values()]
    columns = ["\n".join(str(name).split()) for name in shares.columns]  # on one line, neighbours would touch
    figure, axes = style.new_figure(1.27 + 1.1 * sum(_row_inches(label) for label in labels))
    values = shares.to_numpy(np.float64)
    most = max(float(np.nanmax(values, initial=0.0)), 1e-9)
    for (row, column), share in np.ndenumerate(values):
        fill = style.IDLE if np.isnan(share) else shade_of(share / most)
        axes.fill_between([column, column + 1], row - 0.5, row + 0.5, color=fill, edgecolor="white", linewidth=1.5)
        text = "no job" if np.isnan(share) else f"{100 * share:.1f}"
        axes.text(column + 0.5, row, text, ha="center", va="center_baseline")
    _label_rows(axes, labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(0, shares.shape[1])
    axes.set_xticks(np.arange(shares.shape[1]) + 0.5, columns)
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(style.axis_title(axis), loc="right")
    _shade_bar(figure, axes, 100 * most)
    return figure


def _shade_bar(figure: Figure, axes: Axes, most: float) -> None:
    """Put a scale of the shades under a heat map, from 0 to the most, per cent."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    # A shade is of the parts that are rounded to it, so the first and the last are half as wide.
    edges = most * np.clip((np.arange(len(style.SHADES) + 1) - 0.5) / (len(style.SHADES) - 1), 0, 1)
    mapped = ScalarMappable(BoundaryNorm(edges, len(style.SHADES)), ListedColormap(list(style.SHADES)))
    bar = figure.colorbar(mapped, ax=axes, location="bottom", aspect=40, pad=0.02, spacing="proportional")
    bar.set_ticks([0, most / 2, most], labels=["0", style.short(most / 2), f"{style.short(most)} %"])
    bar.outline.set_visible(False)


def shade_of(part: float) -> str:
    """Return the shade for a part of the most, from 0 to 1."""
    return style.SHADES[round(part * (len(style.SHADES) - 1))]


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


@style.in_style()
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
    called = style.short_labels(names)
    lines = legend_lines(called.values())
    figure, axes = style.new_figure(0.85 + 0.16 * lines + 0.15 * len(rows) * (len(names) + 0.8))
    shade = style.colours(names, colour)
    axes.axvline(0.0, color=style.MUTED, linewidth=0.8)
    for between in range(1, len(rows)):
        axes.axhline(between - 0.5, color="#dddddd", linewidth=0.6)
    for place, row in enumerate(rows):
        # The gap between rows is twice that between the marks of one row, so that these stand together.
        offsets = (np.arange(len(names)) - (len(names) - 1) / 2) / (len(names) + 1)
        for number, (name, offset) in enumerate(zip(names, offsets, strict=True)):
            if name in row.measured:
                interval, y = row.measured[name], place + float(offset)
                axes.plot([interval.low, interval.high], [y, y], color=shade[name], linewidth=1.4)
                look: dict[str, Any] = {"color": shade[name], "markersize": 4.5, "label": legend_label(called[name])}
                axes.plot(interval.mean, y, "os^Dv"[number % 5], **look)
        if row.claimed is not None:
            dotted: dict[str, Any] = {"color": style.INK, "linewidth": 1.2, "linestyle": ":", "label": claim}
            axes.plot([row.claimed] * 2, [place - 0.4, place + 0.4], **dotted)
    _label_rows(axes, [row.label for row in rows])
    _measure(axes, f"{axis}\n{over_seeds(i.seeds for row in rows for i in row.measured.values())}")
    legend_below(figure, [axes])
    return figure


@style.in_style()
def distributions(samples: Mapping[str, Numbers], *, axis: str, colour: Mapping[str, str] | None = None) -> Figure:
    """Return the cumulative distribution of each policy's values on a logarithmic axis.

    Parameters
    ----------
    samples
        All values > 0 of a policy; of many, their quantiles are drawn.
    axis
        What is measured, with its unit.
    colour
        Of some labels, in place of the style's own.
    """
    shade, called = style.colours(list(samples), colour), style.short_labels(list(samples))
    curves = {label: cumulative(np.asarray(values, dtype=np.float64)) for label, values in samples.items()}
    apart = len(curves) > 1 and _largest_gap(list(samples.values())) < _COINCIDE
    figure, panels = _stacked(2.2 + 0.16 * legend_lines(called.values()), 2 if apart else 1)
    axes = panels[0]
    for number, (label, (x, share)) in enumerate(curves.items()):
        look = {"color": shade[label], "linestyle": style.DASHES[number % 5]}
        axes.plot(x, share, drawstyle="steps-post", label=legend_label(called[label]), **look)
        if apart:
            first = np.asarray(next(iter(samples.values())), dtype=np.float64)
            panels[1].plot(x, 100 * (share - share_up_to(first, x)), drawstyle="steps-post", **look)
    axes.set_xscale("log")
    style.plain_ticks(axes.xaxis)
    axes.set_ylim(0, 1.01)
    axes.set_yticks(np.arange(6) / 5)
    axes.set_ylabel("Share of jobs")
    if apart:
        panels[1].set_title(f"less the share of {next(iter(called.values()))}", loc="left", fontsize=7.5)
        panels[1].set_ylabel("Points")
    for each in panels:
        each.grid(axis="y")
    _measure(panels[-1], axis)
    legend_below(figure, [axes])
    return figure


def _stacked(height_inches: float, panels: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with one pair of axes, or with a lower one under it that has the same horizontal axis."""
    if panels == 1:
        figure, axes = style.new_figure(height_inches)
        return figure, [axes]
    figure = style.shown_figure(style.COLUMN_INCHES, height_inches + 1.0)
    return figure, list(figure.subplots(2, 1, sharex=True, height_ratios=[3, 2]))


def share_up_to(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the share of values up to each of ``x``."""
    return np.searchsorted(np.sort(values), x, side="right") / len(values)


def _largest_gap(samples: Sequence[Numbers]) -> float:
    """Return by how much the shares of any two distributions differ at most."""
    arrays = [np.asarray(values, dtype=np.float64) for values in samples]
    x = np.unique(np.concatenate(arrays))
    shares = np.array([share_up_to(values, x) for values in arrays])
    return float(np.ptp(shares, axis=0).max())


def cumulative(values: np.ndarray, most_points: int = _MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return values in ascending order and the share of all up to each; of many values their quantiles."""
    if len(values) <= most_points:
        return np.sort(values), np.arange(1, len(values) + 1) / len(values)
    share = np.linspace(0.0, 1.0, most_points)
    return np.quantile(values, share), share


def over_seeds(counts: Iterable[int]) -> str:
    """Say of what a chart's intervals are, from how many seeds each is over."""
    seeds = sorted(set(counts))
    if seeds == [1]:
        return "one seed, so without an interval"
    return f"mean and 95 % interval over {' or '.join(map(str, seeds))} seeds"


def _row_inches(label: str) -> float:
    return max(0.24, 0.04 + 0.13 * (label.count("\n") + 1))


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)


def _measure(axes: Axes, axis: str) -> None:
    """Say what is measured to the right, with a grid."""
    # Under long names of policies a centred label would be cut off.
    axes.set_xlabel(style.axis_title(axis), loc="right")
    axes.grid(axis="x")


def legend_label(label: str) -> str:
    """Return a policy's label as a legend shows it; without the mark, matplotlib would hide those that begin with _."""
    return ("\N{WORD JOINER}" if label.startswith("_") else "") + style.wrapped(label, 60)


def legend_lines(labels: Iterable[str]) -> int:
    """Return how many lines a legend takes."""
    written = [legend_label(label) for label in labels]
    return -(-sum(label.count("\n") + 1 for label in written) // _legend_columns(written))


def _legend_columns(written: Sequence[str]) -> int:
    half = -(-len(written) // 2)
    letters = sum(max(map(len, column), default=0) for column in (written[:half], written[half:]))
    return 2 if letters <= _LEGEND_LETTERS else 1


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put the legend of all panels under them, each label once."""
    once: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        once |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in once}
    figure.legend(list(once.values()), list(once), loc="outside lower left", ncols=_legend_columns(list(once)))
