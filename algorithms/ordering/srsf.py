"""Shortest remaining service first (SRSF)."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.compiled import CompiledRule, OrderRule
from ddlsched.policies.views import JobView

__all__ = ["ShortestRemainingServiceFirst"]


@dataclass(frozen=True, kw_only=True)
class ShortestRemainingServiceFirst:
    """The job with the least remaining compute time x GPUs.

    Parameters
    ----------
    communication
        Count the contention-free time of the remaining all-reduces too, x GPUs: as the Ada-SRSF paper's text
        does; its authors' simulator does not.
    """

    communication: bool = False

    @property
    def compiled(self) -> CompiledRule:
        """The engine's form of this order."""
        if self.communication:
            return CompiledRule(OrderRule.REMAINING_SERVICE_AND_COMMUNICATION)
        return CompiledRule(OrderRule.REMAINING_SERVICE)

    def key(self, job: JobView, now_s: float) -> int:
        """Return the remaining service, nanoseconds."""
        return job.remaining_service_ns + (job.remaining_communication_ns if self.communication else 0)
