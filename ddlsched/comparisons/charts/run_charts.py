"""Charts of one run: ``result.plot.jct()`` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.jct_charts import distributions, legend_below
from ddlsched.comparisons.charts.placement_map import placement_map
from ddlsched.comparisons.charts.style import PALETTE, Size, in_style, new_figure, resized
from ddlsched.comparisons.charts.utilisation import utilisation, utilisation_bands
from ddlsched.errors import InputError
from ddlsched.results.result import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlsched.results.result import Result

__all__ = ["RunCharts"]

_PHASE_COLOURS = dict(
    zip(PHASES, map(PALETTE.__getitem__, ("grey", "blue", "sky", "green", "vermillion", "purple")), strict=True)
)
_PHASE_NAMES = (
    "in the queue",
    "computing",
    "waiting for its GPUs",
    "communicating",
    "waiting for the network",
    "restart",
)


class RunCharts:
    """Charts of one run, each a matplotlib figure, which notebooks show and ``figure.savefig`` writes.

    ``size`` is width and height, inches.
    """

    def __init__(self, result: Result) -> None:
        self._result = result

    def __repr__(self) -> str:
        return "<charts of a run: jct, phases, placements, utilisation>"

    def jct(self, *, size: Size = None) -> Figure:
        """Return the cumulative distribution of the completion times of the counted jobs that finished.

        Raises
        ------
        InputError
            None did.
        """
        jobs = self._result.jobs
        jct_s = jobs.loc[jobs["counted"], "jct_s"].dropna()
        if jct_s.empty:
            raise InputError("no counted job finished; expected one at least, for the distribution of JCT")
        return resized(distributions({"jobs": jct_s.to_numpy()}, axis="JCT (s)"), size)

    @in_style()
    def phases(self, *, size: Size = None) -> Figure:
        """Return where the time of jobs went from arrival to finish: a bar a number of GPUs, mean seconds a job."""
        jobs = self._result.jobs
        means = jobs[jobs["counted"] & (jobs["state"] == "finished")].groupby("gpus")[list(PHASES)].mean()
        figure, axes = new_figure(1.5 + 0.24 * max(len(means), 1))
        left = np.zeros(len(means))
        for phase, name in zip(PHASES, _PHASE_NAMES, strict=True):
            if means[phase].any():
                axes.barh(range(len(means)), means[phase], left=left, color=_PHASE_COLOURS[phase], label=name)
                left += means[phase].to_numpy()
        axes.set_yticks(range(len(means)), [str(gpus) for gpus in means.index])
        axes.invert_yaxis()
        axes.set_ylabel("GPUs of a job")
        axes.set_xlabel("Mean time from arrival to finish (s)", loc="right")
        axes.grid(axis="x")
        legend_below(figure, [axes])
        return resized(figure, size)

    def placements(self, *, size: Size = None) -> Figure:
        """Return which job was on which GPU when, a row a GPU."""
        counts = np.diff(self._result.cluster.first_gpus).tolist()
        return resized(placement_map(self._result.placements, counts), size)

    def utilisation(self, *, size: Size = None) -> Figure:
        """Return the share of GPUs that computed, over time."""
        bands = utilisation_bands({"run": [self._result.samples]}, self._result.cluster.num_gpus)
        return resized(utilisation(bands), size)
