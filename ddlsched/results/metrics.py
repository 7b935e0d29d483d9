"""What a run's table of jobs is measured by: slowdown, fairness, and where the time went.

:func:`ddlsched.comparisons.alone.job_metrics` makes the table, for which it simulates each job alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddlsched.results.fairness import jain_index
from ddlsched.results.result import PHASES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ON_NETWORK", "SIZE_CLASSES", "counted", "network_remark", "run_metrics", "size_class"]

SIZE_CLASSES = {1: "1", 2: "2-4", 5: "5-7", 8: "8+"}
"""Names of classes of jobs by the least number of GPUs of each."""

ON_NETWORK = ("communication", "network_wait")
"""Phases of a job's time that the network decides."""

_NETWORK_BOUND = 0.9
_UNFAIR = 1.0 + 1e-9
"""What ρ must pass to be called more than 1, whatever the rounding of sums."""


def size_class(gpus: np.ndarray) -> np.ndarray:
    """Return the name of each job's size class, from its number of GPUs."""
    names = np.array(list(SIZE_CLASSES.values()), dtype=object)
    return names[np.searchsorted(list(SIZE_CLASSES), gpus, side="right") - 1]


def counted(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs that enter averages if they finish: those that arrived, after the warm-up, before the end."""
    return jobs[jobs["counted"].to_numpy(bool) & (jobs["state"] != "future").to_numpy()]


def network_remark(queueing: float, communication: float, network_wait: float) -> str | None:
    """Return that the network is saturated, from parts of jobs' time, or None if jobs on their GPUs also compute."""
    on_gpus = 1.0 - queueing
    if not on_gpus > 0.0 or (share := (communication + network_wait) / on_gpus) < _NETWORK_BOUND:
        return None
    return f"the network is saturated, jobs on their GPUs communicate, or wait to, for {100 * share:.0f} % of the time."


def run_metrics(jobs: pd.DataFrame) -> dict[str, float]:
    """Return the metrics of a run beyond those of :meth:`Result.summary`.

    From the table of :func:`ddlsched.comparisons.alone.job_metrics`. ``jobs`` and ``unfinished_jobs`` count those of
    :func:`counted` and how many of them did not finish; all else is of those that did. ``average_slowdown``,
    ``median_slowdown``, ``p95_slowdown`` (numpy's linear rule); ``worst_finish_time_fairness`` and
    ``unfair_fraction``, the largest ρ and the share of jobs with ρ > 1; ``jain_index`` of 1 / slowdown, the speed
    that each job was given as a part of what it would have had alone; and for each phase of a job's time
    ``queueing_share`` and so on, the sum over jobs / the sum of their JCT. NaN where there is nothing to measure: no
    job with work finished, or for shares, none that took any time.
    """
    arrived = counted(jobs)
    finished = arrived[arrived["finish_s"].notna()]
    with_work = finished[finished["alone_s"] > 0.0]
    slowdown, rho = (with_work[name].to_numpy() for name in ("slowdown", "finish_time_fairness"))
    average, median, p95 = (slowdown.mean(), *np.quantile(slowdown, [0.5, 0.95])) if len(slowdown) else [np.nan] * 3
    jct_s = finished["jct_s"].sum()
    return {
        "jobs": len(arrived),
        "unfinished_jobs": len(arrived) - len(finished),
        "average_slowdown": float(average),
        "median_slowdown": float(median),
        "p95_slowdown": float(p95),
        "worst_finish_time_fairness": float(rho.max()) if len(rho) else np.nan,
        "unfair_fraction": float((rho > _UNFAIR).mean()) if len(rho) else np.nan,
        "jain_index": jain_index(1.0 / slowdown[slowdown > 0.0]),
        **{
            f"{phase.removesuffix('_s')}_share": float(finished[phase].sum() / jct_s) if jct_s else np.nan
            for phase in PHASES
        },
    }
