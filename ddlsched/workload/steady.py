"""Which arrivals of a stream count, so that neither the empty cluster at its start nor that at its end does."""

from __future__ import annotations

import numpy as np

from ddlsched.workload.job import Workload

__all__ = ["steady_part"]


def steady_part(workload: Workload) -> np.ndarray:
    """Return whether each job counts, in the order of the workload; at least one does.

    The first fifth of the jobs fills the cluster, and the last tenth keeps it full while those before it end. Fewer
    than 10 jobs have no last tenth. Jobs that arrive at once are told apart by their place in the workload.
    """
    order = np.argsort([job.arrival_ns for job in workload], kind="stable")
    counted = np.zeros(len(order), bool)
    counted[order[len(order) // 5 : len(order) - len(order) // 10]] = True
    return counted
