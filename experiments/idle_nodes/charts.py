"""The experiment's charts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tables import BASE, beyond_by_set, stream_changes, topology_changes

from ddlsched.comparisons.charts.jct_charts import Change, changes, legend_below, over_seeds
from ddlsched.comparisons.charts.style import MUTED, PALETTE, in_style, new_panels
from ddlsched.results.statistics import Interval, mean_interval, paired_difference

U_AXIS = "U: samples / those of trainers that\nshare the mean idle nodes evenly"
PUBLISHED_GAIN = 22.3
"""Per cent: "up to", of MalleTrain over FreeTrain."""


@in_style()
def sweep(table: pd.DataFrame) -> Figure:
    """Return U over the look-ahead, a panel a set of trainers, a line a set of rules."""
    kinds = list(dict.fromkeys(table["trainers"]))
    figure, panels = new_panels(2.9, len(kinds), width_inches=7.2)
    for axes, kind in zip(panels, kinds, strict=True):
        for rules, colour, marker in (("live", "blue", "o"), ("published", "vermillion", "s")):
            own = table[(table["trainers"] == kind) & (table["rules"] == rules)]
            style = {"color": PALETTE[colour], "marker": marker, "markersize": 4}
            axes.plot(own["lookahead_s"], own["u"], **style, label=f"{rules} rules")
        axes.set(title=f"{kind} trainers", xscale="log", xlabel="T_fwd: how far a decision looks ahead (s)")
        both = table.loc[table["trainers"] == kind, "u"]
        axes.set_ylim(both.min() - 0.01, both.max() + 0.01)
        axes.set_xticks(ticks := own["lookahead_s"].tolist(), [f"{tick:.0f}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(axis="y")
    panels[0].set_ylabel(U_AXIS)
    figure.suptitle(
        "One run each; each panel has its own scale, which does not begin at 0", x=0.01, ha="left", fontsize=8.5
    )
    legend_below(figure, panels)
    return figure


def streams(table: pd.DataFrame) -> Figure:
    """Return the gain over FreeTrain whose users suppose linear speed, beside the published one."""
    gains = stream_changes(table, "jobs_per_h", "FreeTrain, linear")
    rows = [Change(stream, own, PUBLISHED_GAIN) for stream, own in gains.items()]
    axis = "More jobs/h than FreeTrain whose users\nsuppose linear speed (%)"
    claim = f"published: MalleTrain up to {PUBLISHED_GAIN} %"
    return changes(rows, axis=axis, claim=claim, colour=STREAM_COLOURS)


STREAM_COLOURS = {
    "MalleTrain": PALETTE["vermillion"],
    "FreeTrain, average curve": PALETTE["orange"],
    "FreeTrain, 1 to 4 nodes": PALETTE["green"],
    "FreeTrain, true curves": PALETTE["blue"],
}


def topology(table: pd.DataFrame) -> Figure:
    """Return the change of samples/s against the star with counts alone, a row a network."""
    found = topology_changes(table)
    networks = list(dict.fromkeys(network for network, _ in found))
    base = Interval(0.0, 0.0, 0.0, max(change.seeds for change in found.values() if change))
    rows = [
        Change(network, {choice: change or base for (own, choice), change in found.items() if own == network})
        for network in networks
    ]
    axis = "Samples/s against the star,\nnodes by counts alone (%)"
    shade = {"counts alone": PALETTE["orange"], "link-aware": PALETTE["blue"]}
    figure = changes(rows, axis=axis, colour=shade)
    figure.axes[0].set_xlabel(figure.axes[0].get_xlabel().replace("seeds", "windows"), loc="right")
    return figure


@in_style()
def beyond(table: pd.DataFrame) -> Figure:
    """Return U of each policy and the bound, and in a second panel the gains, paired, without the bound."""
    u = beyond_by_set(table)
    figure, (left, right) = new_panels(2.3, 2, width_inches=7.2)
    for place, policy in enumerate(u):
        mean = mean_interval(u[policy])
        _point(left, place, mean.mean, mean.low, mean.high)
        if policy != BASE and not policy.startswith("bound"):
            gain = paired_difference(u[policy], u[BASE])
            _point(right, place, gain.mean, gain.low, gain.high)
    for axes in (left, right):
        axes.set_ylim(len(u.columns) - 0.5, -0.5)
        axes.set_yticks(range(len(u.columns)), u.columns if axes is left else [])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
    right.locator_params(axis="x", nbins=5)
    right.axvline(0.0, color=MUTED, linewidth=0.8)
    over = over_seeds([len(u)]).replace("seeds", "sets of nodes")
    left.set_xlabel(f"{U_AXIS}\n{over}")
    note = "T_fwd: how far a decision looks ahead. The scale of U does not begin at 0."
    figure.suptitle(note, x=0.01, ha="left", fontsize=8.5)
    right.set_xlabel(f"Gain in U over {BASE},\npaired; the bound is far to the right")
    return figure


@in_style()
def main_queue(table: pd.DataFrame) -> Figure:
    """Return the idle share over the load, a panel a source of jobs, a line a scheduler, with intervals over seeds."""
    sources = list(dict.fromkeys(table["source"]))
    figure, panels = new_panels(2.8, len(sources), width_inches=3.6 * len(sources))
    loads = sorted(table["load"].unique())
    for axes, source in zip(panels, sources, strict=True):
        for place, (scheduler, own) in enumerate(table[table["source"] == source].groupby("scheduler", sort=False)):
            means = [mean_interval(100 * own.loc[own["load"] == load, "idle"]) for load in loads]
            errors = [[m.mean - m.low for m in means], [m.high - m.mean for m in means]]
            style = {"color": list(PALETTE.values())[place], "marker": "os^"[place], "markersize": 4, "capsize": 2}
            axes.errorbar(range(len(loads)), [m.mean for m in means], yerr=errors, **style, label=str(scheduler))
        axes.set_xticks(range(len(loads)), ["all wait" if np.isinf(load) else f"{load:g}" for load in loads])
        axes.set(title=source, xlabel="Load of the main queue", ylabel="Idle nodes (%)")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    legend_below(figure, panels)
    return figure


def _point(axes, place: int, mean: float, low: float, high: float) -> None:
    axes.plot([low, high], [place, place], color=PALETTE["blue"], linewidth=1.4)
    axes.plot(mean, place, "o", color=PALETTE["blue"], markersize=4.5)


CHARTS: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "sweep": sweep,
    "streams": streams,
    "topology": topology,
    "beyond": beyond,
    "main_queue": main_queue,
    "logs": main_queue,
}
"""Of some parts."""
