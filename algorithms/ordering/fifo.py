"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.views import JobView


@dataclass(frozen=True, kw_only=True)
class FirstInFirstOut:
    """The job that arrived first. One that does not fit is skipped, as under every order."""

    key_is_linear: ClassVar[bool] = True

    def key(self, job: JobView, now_s: float) -> int:
        """Return the arrival, nanoseconds."""
        return job.arrival_ns
