"""Shortest remaining time first (SRTF), for jobs that keep their GPUs and ones that stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.stopping import StopsByKey
from ddlsched.policies.views import JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import ns_from_s


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


@dataclass(frozen=True, kw_only=True)
class StoppingShortestRemainingTimeFirst(ShortestRemainingTimeFirst, StopsByKey, Checked, who="stopping-srtf"):
    """SRTF; a job that waits takes the GPUs of running jobs that have more left.

    Parameters
    ----------
    least_gain_s
        A running job is stopped only if it has more than this more left, seconds: what going on costs it, for example.
        To swap two jobs of as many GPUs lowers the sum of their completion times by the difference, less that cost.
        With 0 it is stopped for any job that goes before it; of two with as much left that is the lower number.
    """

    least_gain_s: float = ranged(0.0, 0.0, 1e9)

    def stopping_key(self, job: JobView, now_s: float) -> tuple[float, ...]:
        """Return the remaining time of a job that waits and the least gain, whole nanoseconds and the rest.

        Of a gain that is asked for there is one number more, which puts it behind the key of a job that has just as
        much left, whatever their numbers.
        """
        whole_ns, rest = self.key(job, now_s)
        least_gain_ns = ns_from_s(self.least_gain_s)
        return (whole_ns + least_gain_ns, rest, 0) if least_gain_ns else (whole_ns, rest)
