"""Shortest remaining time first (SRTF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.views import JobView

__all__ = ["ShortestRemainingTimeFirst"]


@dataclass(frozen=True, kw_only=True)
class ShortestRemainingTimeFirst:
    """The job with the least remaining compute time on each of its GPUs (remaining service / GPUs).

    Parameters
    ----------
    communication
        Add the contention-free time of the remaining all-reduces: 0 while queued and on one server.
    """

    communication: bool = False
    key_is_linear: ClassVar[bool] = True

    def key(self, job: JobView, now_s: float) -> tuple[int, float]:
        """Return the remaining time, whole nanoseconds and the rest, exact."""
        if self.communication:
            return job.remaining_time_ns
        return job.remaining_service_per_gpu_ns
