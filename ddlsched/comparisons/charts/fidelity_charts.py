"""Charts of simulated against measured times: a scatter plot, and the distribution of the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.jct_charts import legend_below
from ddlsched.comparisons.charts.style import DASHES, INK, PALETTE, colours, in_style, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["error_distribution", "measured_against_simulated"]

_COLOURS = {
    "max-min": PALETTE["blue"],
    "equal-share": PALETTE["green"],
    "linear without penalty": PALETTE["sky"],
    "linear": PALETTE["vermillion"],
    "size-shares": PALETTE["purple"],
    "connection-shares": PALETTE["orange"],
    "packet-rings": INK,
}
"""Of contention models, in every chart."""
_MARKERS = "os^DvP"


@in_style()
def measured_against_simulated(errors: pd.DataFrame) -> Figure:
    """Return each job's JCT, simulated over measured, a marker a model; on the line both are the same."""
    figure, axes = new_figure(3.0)
    shade = colours(errors.model.unique().tolist(), _COLOURS)
    for number, (model, part) in enumerate(errors.groupby("model", sort=False)):
        marker, label = _MARKERS[number % len(_MARKERS)], str(model)
        axes.plot(part.measured_jct_s, part.simulated_jct_s, marker, color=shade[label], markersize=2.6, label=label)
    ends = [0.0, 1.1 * errors[["measured_jct_s", "simulated_jct_s"]].to_numpy().max()]
    axes.plot(ends, ends, color=INK, linewidth=0.6)
    axes.set(xlabel="JCT measured (s)", ylabel="JCT simulated (s)", xlim=ends, ylim=ends)
    axes.grid()
    legend_below(figure, [axes])
    return figure


@in_style()
def error_distribution(errors: pd.DataFrame) -> Figure:
    """Return for each model which part of the jobs is at most so far off."""
    figure, axes = new_figure(2.4)
    shade = colours(errors.model.unique().tolist(), _COLOURS)
    for number, (model, part) in enumerate(errors.groupby("model", sort=False)):
        off = np.sort(part.jct_error.abs().to_numpy()) * 100
        shares = np.arange(1, len(off) + 1) / len(off) * 100
        dashes, label = DASHES[number % len(DASHES)], str(model)
        axes.step(
            [0, *off], [0, *shares], where="post", color=shade[label], linestyle=dashes, linewidth=1.0, label=label
        )
    axes.set(xlabel="Error of a job's JCT, at most (%)", ylabel="Jobs (%)", ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.grid()
    legend_below(figure, [axes])
    return figure
