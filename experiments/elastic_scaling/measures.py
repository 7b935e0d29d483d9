"""What the experiment measures of a run, beyond the metrics that every run has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ddlsched.results.result import Result


def elastic_measures(result: Result) -> dict[str, float]:
    """Return counts of jobs, times of those that finished, and how busy GPUs were while jobs arrived."""
    jobs = result.jobs
    finished = jobs[jobs["state"] == "finished"]
    samples = result.samples
    spans_s = np.diff(samples["time_s"], prepend=0.0)
    arriving = samples["time_s"] <= jobs["arrival_s"].max()
    busy_s = (samples["busy_gpus"] * spans_s)[arriving].sum()
    jct_s = finished["jct_s"].sum()
    return {
        "submitted": len(jobs),
        "completed": len(finished),
        "dropped_share": float((jobs["state"] == "dropped").mean()),
        "average_completion_s": float(finished["jct_s"].mean()),
        "average_queueing_s": float(finished["queueing_s"].mean()),
        "restart_share": float(finished["restart_s"].sum() / jct_s),
        "utilisation": float(busy_s / spans_s[arriving].sum() / result.cluster.num_gpus),
        "changes_per_job": len(result.finished.rescales) / len(jobs),
    }
