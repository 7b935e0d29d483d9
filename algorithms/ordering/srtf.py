"""Shortest remaining time first (SRTF)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ddlsched.compiled import CompiledRule, OrderRule
from ddlsched.views import JobView

__all__ = ["ShortestRemainingTimeFirst"]


@dataclass(frozen=True, kw_only=True)
class ShortestRemainingTimeFirst:
    """The job with the least remaining compute time on each of its GPUs (remaining service / GPUs)."""

    compiled: ClassVar[CompiledRule] = CompiledRule(OrderRule.REMAINING_SERVICE_PER_GPU)

    def key(self, job: JobView, now_s: float) -> Fraction:
        """Return the remaining service / GPUs, exact, nanoseconds."""
        return job.remaining_service_per_gpu_ns
