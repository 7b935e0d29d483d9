"""What finished jobs of a kind took, for orders that predict from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from ddlsched.policies.views import JobView

__all__ = ["FinishedJobs", "Kind"]

Kind: TypeAlias = tuple[object, ...]


class FinishedJobs:
    """Counts the finished among the jobs that an order was asked about, by their kinds.

    Parameters
    ----------
    kinds
        The kinds that a job is of.
    took_ns
        What one that has finished took, nanoseconds.
    """

    def __init__(self, kinds: Callable[[JobView], Iterable[Kind]], took_ns: Callable[[JobView], float]) -> None:
        self._kinds, self._took_ns = kinds, took_ns
        self._unfinished: dict[int, JobView] = {}
        self._finished: dict[Kind, tuple[int, float]] = {}
        self._looked_s = -1.0

    def look(self, job: JobView, now_s: float) -> None:
        """Take note of a job; once an instant in which one queues, of those that have finished since."""
        if job.iterations_left:
            self._unfinished[job.number] = job
        if not job.servers and now_s != self._looked_s:
            self._looked_s = now_s
            for each in [each for each in self._unfinished.values() if not each.iterations_left]:
                del self._unfinished[each.number]
                for kind in self._kinds(each):
                    count, total_ns = self.of(kind)
                    self._finished[kind] = count + 1, total_ns + self._took_ns(each)

    def of(self, kind: Kind) -> tuple[int, float]:
        """Return how many of a kind have finished, and what they took together, nanoseconds."""
        return self._finished.get(kind, (0, 0.0))
