"""Shortest remaining time first (SRTF), which also takes GPUs from running jobs."""

from __future__ import annotations

from dataclasses import dataclass

from algorithms.ordering.srtf import ShortestRemainingTimeFirst
from ddlsched.errors import InputError
from ddlsched.policies.stopping import StopsByKey
from ddlsched.policies.views import JobView
from ddlsched.units import ns_from_s

__all__ = ["StoppingShortestRemainingTimeFirst"]


@dataclass(frozen=True, kw_only=True)
class StoppingShortestRemainingTimeFirst(ShortestRemainingTimeFirst, StopsByKey):
    """SRTF; a job that waits takes the GPUs of running jobs that have more left.

    Parameters
    ----------
    communication
        As for ``srtf``.
    least_gain_s
        How much more a running job must have left to be stopped, seconds: what going on costs it, for example. To swap
        two jobs of as many GPUs lowers the sum of their completion times by the difference, less that cost.
    """

    least_gain_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.least_gain_s <= 1e9:
            raise InputError(f"stopping-srtf: least_gain_s is {self.least_gain_s}; expected seconds from 0 to 1e9")

    def stopping_key(self, job: JobView, now_s: float) -> tuple[int, float]:
        """Return the remaining time of a job that waits and the least gain, whole nanoseconds and the rest."""
        whole_ns, rest = self.key(job, now_s)
        return whole_ns + ns_from_s(self.least_gain_s), rest
