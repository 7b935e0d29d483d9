"""Charts of the training-time model: predicted against measured, heat maps, time against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, new_figure, plain_ticks, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["heat_map", "pareto_chart", "predicted_against_measured"]

_SHADES = (PALETTE["sky"], PALETTE["vermillion"], PALETTE["blue"], PALETTE["orange"])


@in_style()
def predicted_against_measured(series: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Return points of (measured, predicted) step times, seconds, by series, with lines at 10 % off."""
    figure, axes = new_figure(3.4)
    everything = np.concatenate([values for pair in series.values() for values in pair])
    ends = np.array([everything.min() / 1.3, everything.max() * 1.3])
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    for factor, label in ((1.1, "10 % off"), (1 / 1.1, None)):
        axes.plot(ends, factor * ends, color=MUTED, linewidth=0.7, linestyle=(0, (4, 2)), label=label)
    for (name, (measured_s, predicted_s)), colour, marker in zip(series.items(), _SHADES, "o^sD", strict=False):
        error = np.abs(predicted_s / measured_s - 1).mean()
        label = f"{name}: {100 * error:.1f} % off on average"
        axes.plot(measured_s, predicted_s, marker, color=colour, markersize=2.6, alpha=0.75, label=label, linestyle="")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="Measured step (s)", ylabel="Predicted step (s)")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    axes.legend(loc="upper left")
    axes.set_aspect("equal")
    return figure


@in_style()
def heat_map(
    values: np.ndarray, *, rows: Sequence[str], columns: Sequence[str], row_axis: str, column_axis: str, title: str
) -> Figure:
    """Return a table of values as shades, each written in its cell; NaN (nothing fits) stays empty.

    Parameters
    ----------
    values
        A row a row of the map, the first at the bottom.
    rows, columns
        Labels.
    row_axis, column_axis, title
        What is varied, and what is shown, with units.
    """
    figure, axes = new_figure(max(2.3, 1.4 + 0.26 * len(rows)), width_inches=max(3.5, 1.0 + 0.42 * len(columns)))
    shades = np.log10(values)
    image = axes.imshow(shades, origin="lower", cmap="cividis_r", aspect="auto")
    middle = np.nanmean([np.nanmin(shades), np.nanmax(shades)])
    for (row, column), value in np.ndenumerate(values):
        text, dark = ("-", False) if np.isnan(value) else (short(value), bool(shades[row, column] > middle))
        axes.text(column, row, text, ha="center", va="center", fontsize=6.2, color="white" if dark else INK)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=column_axis, ylabel=row_axis)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(title, loc="left")
    image.set_rasterized(False)
    _scale(figure, axes, image)
    return figure


def _scale(figure: Figure, axes: Axes, image: AxesImage) -> None:
    """Put the scale of the shades, which are of logarithms, under a heat map: its ends and its middle."""
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, pad=0.02)
    ends = np.array(image.get_clim())
    bar.set_ticks([ends[0], ends.mean(), ends[1]])
    bar.ax.xaxis.set_major_formatter(lambda shade, _: short(10**shade))
    bar.outline.set_visible(False)


@in_style()
def pareto_chart(
    times: np.ndarray, costs: np.ndarray, front: np.ndarray, *, names: Sequence[str], time_axis: str, cost_axis: str
) -> Figure:
    """Return all configurations as points and those on the front joined by a line; the names of its ends above."""
    figure, axes = new_figure(2.6)
    axes.plot(costs, times, ".", color=MUTED, markersize=2.5, alpha=0.4, rasterized=True, label="all that fit")
    order = front[np.argsort(costs[front])]
    axes.plot(
        costs[order],
        times[order],
        "o-",
        color=PALETTE["vermillion"],
        markersize=3.5,
        drawstyle="steps-post",
        label="Pareto front",
    )
    ends = f"Fastest: {names[order[-1]]}", f"Cheapest: {names[order[0]]}"
    axes.set_title("\n".join(end if len(end) <= 44 else f"{end[:41]}..." for end in ends), loc="left")
    axes.set(xscale="log", yscale="log", xlabel=cost_axis, ylabel=time_axis)
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    axes.legend(loc="lower right")
    axes.grid()
    return figure
