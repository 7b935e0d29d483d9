"""The breakdown by job size: metrics of each class of a run, and their comparison over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.errors import InputError
from ddlsched.results.metrics import SIZE_CLASSES, counted, run_metrics
from ddlsched.results.paired_comparison import compare_runs, with_holm

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLASS_METRICS", "class_metrics", "compare_classes"]

CLASS_METRICS = ("average_jct_s", "median_jct_s", "p95_jct_s", "average_slowdown", "worst_finish_time_fairness")
"""What classes are compared by unless told otherwise."""


def class_metrics(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return a row a size class that has jobs that count, from :func:`ddlsched.comparisons.alone.job_metrics`.

    Columns: size_class; average_jct_s, median_jct_s, p95_jct_s of those that finished (NaN if none did); and
    all of :func:`ddlsched.results.metrics.run_metrics`.
    """
    import pandas as pd

    rows = []
    for name in SIZE_CLASSES.values():
        own = jobs[jobs["size_class"] == name]
        rows.append({"size_class": name, **_jct(counted(own)["jct_s"].dropna().to_numpy()), **run_metrics(own)})
    classes = pd.DataFrame(rows)
    return classes[classes["jobs"] > 0].reset_index(drop=True)


def _jct(jct_s: np.ndarray) -> dict[str, float]:
    median, p95 = np.quantile(jct_s, [0.5, 0.95]) if len(jct_s) else (np.nan, np.nan)
    average = jct_s.mean() if len(jct_s) else np.nan
    return {"average_jct_s": float(average), "median_jct_s": float(median), "p95_jct_s": float(p95)}


def compare_classes(
    classes: pd.DataFrame, *, baseline: str, metrics: Sequence[str] = CLASS_METRICS, by: str = "policy"
) -> pd.DataFrame:
    """Return what :func:`ddlsched.results.paired_comparison.compare_runs` does, for each size class by itself.

    A seed whose workload has no job of a class says nothing of it: ``seeds`` counts those that have some. A
    seed in which no job of the class finished under some policy is left out for all and counted in
    ``seeds_left_out``; then there is no verdict. ``p_holm`` is over all classes together.

    Parameters
    ----------
    classes
        The rows of :func:`class_metrics` of all runs, with their ``seed`` and their policy in the column
        ``by``; every policy on every seed.
    baseline, metrics, by
        As for runs.

    Raises
    ------
    InputError
        A policy lacks a seed, or there is no such baseline or metric.
    """
    import pandas as pd

    parts = []
    for name in SIZE_CLASSES.values():
        own = classes[classes["size_class"] == name]
        if len(own):
            compared = compare_runs(own, baseline=baseline, metrics=metrics, by=by)
            compared.insert(0, "size_class", name)
            parts.append(compared)
    if not parts:
        raise InputError(
            "comparison of size classes: no job counts; expected at least one that arrives after the warm-up"
        )
    return with_holm(pd.concat(parts, ignore_index=True))
