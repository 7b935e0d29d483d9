"""An order that knows how long each kind of job takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.views import JobView
from ddlsched.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class KindsKnown:
    """As ``history``, by the limit that a job states: here the mean of its kind, known from the start."""

    patience: float
    compiled: ClassVar[bool] = False

    def key(self, job: JobView, now_s: float) -> float:
        """Return the time from which the job counts, nanoseconds."""
        return job.arrival_ns + self.patience * NS_PER_S * (job.time_limit_s or 0.0)
