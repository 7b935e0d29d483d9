"""Least attained service (LAS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.views import JobView

__all__ = ["LeastAttainedService"]


@dataclass(frozen=True, kw_only=True)
class LeastAttainedService:
    """The job that has had the least compute time x GPUs; needs no knowledge of durations.

    The continuous form: Tiresias' two-dimensional LAS without its discretised queues, and without stopping a
    placed job.

    References
    ----------
    Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.2.
    """

    key_is_linear: ClassVar[bool] = True

    def key(self, job: JobView, now_s: float) -> int:
        """Return the attained service, nanoseconds."""
        return job.attained_service_ns
