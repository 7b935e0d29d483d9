"""Charts of simulated against measured times: a scatter plot, and the distribution of the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.jct_charts import legend_below
from ddlsched.comparisons.charts.style import DASHES, INK, PALETTE, in_style, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["error_distribution", "measured_against_simulated"]

_COLOURS = ("blue", "orange", "green", "vermillion", "purple", "wine")
_MARKERS = "os^DvP"


@in_style()
def measured_against_simulated(errors: pd.DataFrame) -> Figure:
    """Return each job's JCT, simulated over measured, a marker a model; on the line both are the same."""
    figure, axes = new_figure(3.0)
    for number, (model, part) in enumerate(errors.groupby("model", sort=False)):
        colour = PALETTE[_COLOURS[number % len(_COLOURS)]]
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot(part.measured_jct_s, part.simulated_jct_s, marker, color=colour, markersize=2.6, label=str(model))
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
    for number, (model, part) in enumerate(errors.groupby("model", sort=False)):
        off = np.sort(part.jct_error.abs().to_numpy()) * 100
        shares = np.arange(1, len(off) + 1) / len(off) * 100
        colour, dashes = PALETTE[_COLOURS[number % len(_COLOURS)]], DASHES[number % len(DASHES)]
        axes.step(
            [0, *off], [0, *shares], where="post", color=colour, linestyle=dashes, linewidth=1.0, label=str(model)
        )
    axes.set(xlabel="Error of a job's JCT, at most (%)", ylabel="Jobs (%)", ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.grid()
    legend_below(figure, [axes])
    return figure
