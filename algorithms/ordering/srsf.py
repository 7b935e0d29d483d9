"""Shortest remaining service first (SRSF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.views import JobView


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
    key_is_linear: ClassVar[bool] = True

    def key(self, job: JobView, now_s: float) -> int:
        """Return the remaining service, nanoseconds."""
        if self.communication:
            return job.remaining_service_ns + job.remaining_communication_ns
        return job.remaining_service_ns
