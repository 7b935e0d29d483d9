"""Which arrivals of a stream count, so that neither the empty cluster at its start nor that at its end does."""

from __future__ import annotations

from ddlsched.units import MAX_NS
from ddlsched.workload.job import Workload

__all__ = ["steady_part_ns"]


def steady_part_ns(workload: Workload) -> tuple[int, int]:
    """Return from when on and before when a job must arrive to count, nanoseconds.

    The first fifth of the jobs fills the cluster, and the last tenth keeps it full while those before it end. Fewer
    than 10 jobs have no last tenth.
    """
    arrivals_ns = sorted(job.arrival_ns for job in workload)
    count = len(arrivals_ns)
    first, end = count // 5, count - count // 10
    return arrivals_ns[first], arrivals_ns[end] if end < count else MAX_NS
