"""Shortest remaining time first (SRTF)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ddlsched.policies.compiled import CompiledRule, OrderRule
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

    @property
    def compiled(self) -> CompiledRule:
        """The engine's form of this order."""
        rule = OrderRule.REMAINING_TIME if self.communication else OrderRule.REMAINING_SERVICE_PER_GPU
        return CompiledRule(rule)

    def key(self, job: JobView, now_s: float) -> Fraction:
        """Return the remaining time, exact, nanoseconds."""
        return job.remaining_time_ns if self.communication else job.remaining_service_per_gpu_ns
