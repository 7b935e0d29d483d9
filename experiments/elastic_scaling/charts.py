"""The experiment's charts: ratios on a logarithmic axis beside the abstract's claim, and lines over a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddlsched.comparisons.charts.jct_charts import legend_below, over_seeds
from ddlsched.comparisons.charts.style import INK, MUTED, PALETTE, in_style, new_panels
from ddlsched.results.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "elastic": PALETTE["blue"],
    "smallest batch": PALETTE["orange"],
    "largest batch": PALETTE["green"],
    "random batch": PALETTE["purple"],
}
MARKERS = {"elastic": "D", "smallest batch": "o", "largest batch": "s", "random batch": "^"}


@in_style()
def ratios(panels: Mapping[str, Mapping[str, Mapping[str, Interval]]], *, axis: str, claim: float) -> Figure:
    """Return a panel a cluster, a row a workload, a point and interval a baseline, and the claim as a line."""
    rows = list(next(iter(panels.values())))
    figure, drawn = new_panels(1.3 + 0.3 * len(rows), len(panels), width_inches=7.2)
    for axes, (title, workloads) in zip(drawn, panels.items(), strict=True):
        axes.axvline(1.0, color=MUTED, linewidth=0.8)
        axes.axvline(claim, color=INK, linewidth=1.2, linestyle=":", label=f"the abstract's {claim:g}x")
        for place, row in enumerate(rows):
            for number, (baseline, ratio) in enumerate(workloads.get(row, {}).items()):
                y, colour = place + 0.26 * (number - 1), COLOURS[baseline]
                axes.plot([ratio.low, ratio.high], [y, y], color=colour)
                label = f"against the {baseline}"
                axes.plot(ratio.mean, y, MARKERS[baseline], color=colour, markersize=4, label=label)
        axes.set(xscale="log", title=title, ylim=(len(rows) - 0.5, -0.5), yticks=range(len(rows)))
        axes.set_yticklabels(rows if axes is drawn[0] else [])
        ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(axis="x")
        axes.set_xlabel(over_seeds(r.seeds for found in workloads.values() for r in found.values()))
    figure.suptitle(axis, x=0.01, ha="left", fontsize=8.5)
    legend_below(figure, drawn)
    return figure
