"""Fills in missing scalability by short controlled runs, before an allocator trusts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ddlsched.errors import InputError
from ddlsched.units import is_whole
from ddlsched.workload.malleable.trainers import Numbers, rates_at

__all__ = ["Candidate", "ProfilingAdvisor", "extrapolated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An admitted job, as the advisor sees it.

    Attributes
    ----------
    job_id
        Its name.
    nodes
        How many it has now.
    min_nodes, max_nodes
        Fewest and most on which it runs.
    measured
        Sizes at which its speed is known.
    settled
        Whether no change of its size is still under way.
    """

    job_id: str
    nodes: int
    min_nodes: int
    max_nodes: int
    measured: frozenset[int]
    settled: bool


@dataclass
class ProfilingAdvisor:
    """Pins one job at a time to one size after another, the largest first, for a short hold each.

    After one expensive step up every further step is a cheap one down. A profile begins only if no running job would
    have to stop for it: each keeps its fewest nodes. A size that has become too large for what is there is left out.

    Parameters
    ----------
    scales
        Sizes to measure.
    hold_s
        How long a size is held once the job trains at it, seconds.

    References
    ----------
    arXiv 2404.15668 (MalleTrain): the Job Profiling Advisor.
    """

    scales: tuple[int, ...] = (4, 3, 2, 1)
    hold_s: float = 20.0
    pinned: tuple[str, int] | None = field(default=None, init=False)
    held_since_s: float | None = field(default=None, init=False)
    _tried: dict[str, set[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.scales or not all(is_whole(scale, 1) for scale in self.scales):
            raise InputError(f"profiling: scales are {self.scales}; expected whole numbers from 1")
        if not 0 < self.hold_s < np.inf:
            raise InputError(f"profiling: hold_s is {self.hold_s}; expected seconds above 0")

    def advise(self, jobs: Sequence[Candidate], num_nodes: int, now_s: float) -> Mapping[str, int]:
        """Return the size to which a job is pinned now, by its name; nothing if no profile is to run.

        Asked whenever nodes are shared out, and at :meth:`wake_s`. A job is measured by whoever asks.
        """
        there = {job.job_id: job for job in jobs}
        self._go_on(there, num_nodes, now_s)
        if self.pinned is None:
            self._begin(jobs, num_nodes)
        return {} if self.pinned is None else dict([self.pinned])

    def wake_s(self) -> float | None:
        """Return when the hold under way ends, or None."""
        return None if self.held_since_s is None else self.held_since_s + self.hold_s

    def is_done(self, job: Candidate) -> bool:
        """Return whether there is nothing left to measure of a job."""
        return not self._missing(job)

    def next_size(self, sizes: Sequence[int], after: int | None) -> int | None:
        """Return which of the sizes that are missing and fit is measured next, after one or first of all; None ends."""
        return max((size for size in sizes if after is None or size < after), default=None)

    def _go_on(self, there: Mapping[str, Candidate], num_nodes: int, now_s: float) -> None:
        """End a hold that is over, whose job has gone, or whose size no longer fits."""
        if self.pinned is None:
            return
        job_id, size = self.pinned
        job = there.get(job_id)
        if job is None or not self._fits(job, size, there.values(), num_nodes):
            self._end()
        elif job.nodes == size and job.settled:
            if self.held_since_s is None:
                self.held_since_s = now_s
            elif now_s >= self.held_since_s + self.hold_s - 1e-6:
                self._end()
                self._pin(job, self._fitting(job, there.values(), num_nodes), size)

    def _begin(self, jobs: Sequence[Candidate], num_nodes: int) -> None:
        for job in jobs:
            self._pin(job, self._fitting(job, jobs, num_nodes), None)
            if self.pinned is not None:
                return

    def _pin(self, job: Candidate, sizes: Sequence[int], after: int | None) -> None:
        size = self.next_size(sizes, after)
        if size is not None:
            self.pinned, self.held_since_s = (job.job_id, size), None
            self._tried.setdefault(job.job_id, set()).add(size)

    def _end(self) -> None:
        self.pinned = self.held_since_s = None

    def _fitting(self, job: Candidate, jobs: Iterable[Candidate], num_nodes: int) -> list[int]:
        return [size for size in self._missing(job) if self._fits(job, size, jobs, num_nodes)]

    def _missing(self, job: Candidate) -> list[int]:
        known = job.measured | self._tried.get(job.job_id, set())
        return [size for size in self.scales if size not in known and job.min_nodes <= size <= job.max_nodes]

    @staticmethod
    def _fits(job: Candidate, size: int, jobs: Iterable[Candidate], num_nodes: int) -> bool:
        others = sum(other.min_nodes for other in jobs if other.nodes and other.job_id != job.job_id)
        return size + others <= num_nodes


def extrapolated(measured: Mapping[int, float], max_nodes: int) -> Numbers:
    """Return believed rates at 0, 1, ..., ``max_nodes``: linear between the measured, a power law beyond the largest.

    The power is that between the two largest measured sizes, from 0 to 1; with one size measured, 1.
    """
    rates = rates_at(list(measured.items()), max_nodes)
    largest = max(measured)
    power = 1.0
    if len(measured) > 1:
        before = sorted(measured)[-2]
        power = np.log(measured[largest] / measured[before]) / np.log(largest / before)
    beyond = np.arange(largest, max_nodes + 1)
    rates[largest:] = measured[largest] * (beyond / largest) ** float(np.clip(power, 0.0, 1.0))
    return rates
