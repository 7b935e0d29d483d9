"""Discretised two-dimensional least attained service (Tiresias)."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.errors import InputError
from ddlsched.policies.views import JobView
from ddlsched.units import NS_PER_S, is_whole

__all__ = ["Tiresias", "queue_thresholds_gpu_s"]


@dataclass(frozen=True, kw_only=True)
class Tiresias:
    """Jobs in few queues by attained compute time x GPUs, first come first served within each.

    Needs no durations; unlike :class:`~algorithms.ordering.las.LeastAttainedService` it does not switch between
    jobs that have had about the same. It orders the queue, GPUs and transfers; a placed job keeps its GPUs,
    which Tiresias would take away.

    Parameters
    ----------
    threshold_gpu_s
        Attained service at which a job moves to the second queue, GPU-seconds.
    queues
        How many; each threshold is ten times the one before.

    References
    ----------
    Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.3.
    """

    threshold_gpu_s: float = 100.0
    queues: int = 3

    def __post_init__(self) -> None:
        queue_thresholds_gpu_s(self.threshold_gpu_s, self.queues)

    def key(self, job: JobView, now_s: float) -> tuple[int, int]:
        """Return the queue and the arrival, nanoseconds."""
        attained_gpu_s = job.attained_service_ns / NS_PER_S
        queue = 0
        factor = 1
        while queue < self.queues - 1 and attained_gpu_s >= self.threshold_gpu_s * factor:
            queue += 1
            factor *= 10
        return queue, job.arrival_ns


def queue_thresholds_gpu_s(first: float, queues: int) -> list[float]:
    """Return the attained service, GPU-seconds, at which a job moves to the second queue, the third and so on.

    Raises
    ------
    InputError
        A number out of range.
    """
    if not 0 < first <= 1e9:
        raise InputError(f"tiresias: threshold_gpu_s is {first}; expected a number > 0, to 1e9")
    if not is_whole(queues, 1, 10):
        raise InputError(f"tiresias: queues is {queues}; expected a whole number from 1 to 10")
    return [first * 10**queue for queue in range(queues - 1)]
