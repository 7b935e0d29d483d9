"""The experiment's charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddlsched.comparisons.charts.jct_charts import legend_below
from ddlsched.comparisons.charts.style import DASHES, INK, MUTED, PALETTE, in_style, new_figure, new_panels, wrapped

COLOURS = ("blue", "vermillion", "green", "orange", "purple", "sky")


@in_style()
def error_chart(errors: pd.DataFrame, *, axis: str, title: str) -> Figure:
    """Return the tested error of each model: its mean over random halves, and where 95 % of them lie."""
    figure, axes = new_figure(0.9 + 0.27 * len(errors))
    for place, row in enumerate(errors.itertuples()):
        colour = PALETTE["blue" if row.simulated else "grey"]
        axes.plot([row.low, row.high], [place, place], color=colour, linewidth=1.6)
        axes.plot(row.error, place, "o" if row.simulated else "D", color=colour, markersize=4)
    axes.set_yticks(range(len(errors)), [wrapped(name, 30) for name in errors["model"]])
    axes.set_ylim(len(errors) - 0.5, -0.5)
    axes.set_xlim(0, 1.08 * errors["high"].max())
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel(axis, loc="right")
    figure.suptitle(title, x=0.01, ha="left", fontsize=8.5)
    return figure


@in_style()
def pair_chart(measured: np.ndarray, predictions: Mapping[str, np.ndarray], tested: np.ndarray) -> Figure:
    """Return measured against simulated throughput ratios of the pairs that were not fitted, a panel a model."""
    figure, panels = new_panels(3.0, len(predictions), width_inches=2.6 * len(predictions))
    for axes, (name, predicted), colour in zip(panels, predictions.items(), COLOURS, strict=False):
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
        axes.plot(measured[tested], predicted[tested], ".", color=PALETTE[colour], markersize=2.5, alpha=0.6)
        error = np.abs(predicted - measured)[tested].mean()
        axes.set_title(f"{wrapped(name, 32)}\n{error:.3f} off on average", loc="left")
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xlabel="Measured throughput / alone")
        axes.set_aspect("equal")
    panels[0].set_ylabel("Simulated throughput / alone")
    return figure


@in_style()
def latency_chart(times: pd.DataFrame) -> Figure:
    """Return time / (jobs x bytes) over the number of all-reduces at a time: measured (points), of models (lines)."""
    figure, axes = new_figure(3.0)
    axes.plot(times.index, times["measured"], "o", color=INK, markersize=3.2, label="measured")
    models = [name for name in times.columns if name != "measured"]
    for number, name in enumerate(models):
        axes.plot(times.index, times[name], color=PALETTE[COLOURS[number]], linestyle=DASHES[number % 5], label=name)
    axes.set(xlabel="All-reduces at a time", ylabel="Time / (jobs x bytes) (ns)")
    axes.set_ylim(0, 1.1 * times.to_numpy().max())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    legend_below(figure, [axes])
    return figure


@in_style()
def sync_chart(sync: pd.DataFrame) -> Figure:
    """Return how much communication prolongs a step, by servers and by most GPUs of a server, and what models say."""
    figure, axes = new_figure(3.1)
    measured = [name for name in sync.columns if "GPU" in name]
    for number, name in enumerate(measured):
        axes.plot(
            sync["servers"], sync[name], "os^D"[number % 4], color=PALETTE[COLOURS[number]], markersize=4, label=name
        )
    lines: Sequence[tuple[str, str]] = (("linear", "linear model"), ("ring", "max-min, equal share"))
    for number, (column, label) in enumerate(lines):
        axes.plot(sync["servers"], sync[column], color=(INK, MUTED)[number], linestyle=DASHES[number], label=label)
    axes.set(xlabel="Servers of the job", ylabel="Step - compute, relative to\ntwo servers of one GPU")
    axes.set_ylim(0, 1.1 * sync[measured].to_numpy().max())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    legend_below(figure, [axes])
    return figure
