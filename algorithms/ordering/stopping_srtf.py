"""Shortest remaining time first (SRTF), which also takes GPUs from running jobs."""

from __future__ import annotations

from dataclasses import dataclass

from algorithms.ordering.srtf import ShortestRemainingTimeFirst
from ddlsched.policies.stopping import StopsByKey
from ddlsched.policies.views import JobView
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import ns_from_s

__all__ = ["StoppingShortestRemainingTimeFirst"]


@dataclass(frozen=True, kw_only=True)
class StoppingShortestRemainingTimeFirst(ShortestRemainingTimeFirst, StopsByKey):
    """SRTF; a job that waits takes the GPUs of running jobs that have more left.

    Parameters
    ----------
    least_gain_s
        A running job is stopped only if it has more than this more left, seconds: what going on costs it, for example.
        To swap two jobs of as many GPUs lowers the sum of their completion times by the difference, less that cost.
        With 0 it is stopped for any job that goes before it; of two with as much left that is the lower number.
    """

    least_gain_s: float = ranged(0.0, 0.0, 1e9)

    def __post_init__(self) -> None:
        check_fields(self, "stopping-srtf")

    def stopping_key(self, job: JobView, now_s: float) -> tuple[float, ...]:
        """Return the remaining time of a job that waits and the least gain, whole nanoseconds and the rest.

        Of a gain that is asked for there is one number more, which puts it behind the key of a job that has just as
        much left, whatever their numbers.
        """
        whole_ns, rest = self.key(job, now_s)
        least_gain_ns = ns_from_s(self.least_gain_s)
        return (whole_ns + least_gain_ns, rest, 0) if least_gain_ns else (whole_ns, rest)
