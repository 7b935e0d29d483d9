"""Conservative backfilling: every job that waits has a reservation, and nobody delays one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.placement.backfilling import Backfilling, BackfillingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["ConservativeBackfill"]


@dataclass(frozen=True, kw_only=True)
class ConservativeBackfill(BackfillingPolicy):
    """A job starts when its reservation says.

    A job's reservation is the earliest time from which enough GPUs are expected to be free for as long as it is
    expected to run, beside all reservations made before. Whenever jobs come or go all are made anew, in the order of
    the times that they had, new jobs last: so a reservation moves later only if a job runs longer than expected, or a
    server fails. GPUs are counted, so a job must fit on any of them.

    References
    ----------
    Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2
    with Backfilling", IEEE TPDS 12(6), 2001.
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Conservative:
        """Return the policy with what it knows of the queue, of running jobs and of reservations."""
        return _Conservative(self, cluster, rng)


class _Conservative(Backfilling):
    def __init__(self, policy: BackfillingPolicy, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__(policy, cluster, rng)
        self.reserved_ns: dict[int, int] = {}

    def begin_round(self, queue: Sequence[JobView], cluster: ClusterView) -> None:
        super().begin_round(queue, cluster)
        before_ns = self.reserved_ns
        old = sorted((job for job in queue if job.number in before_ns), key=lambda job: before_ns[job.number])
        new = [job for job in queue if job.number not in before_ns]
        self._reserve([*old, *new], cluster)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        if not self._waiting:
            self._reserve([job], cluster)
        if self.reserved_ns.get(job.number) != cluster.now_ns:
            return None
        chosen = self._chosen_of_free(job, cluster)
        return None if chosen is None else self._start(job, chosen, cluster)

    def _reserve(self, jobs: Sequence[JobView], cluster: ClusterView) -> None:
        """Make the reservations of jobs, one after the other; none for a job that there are too few GPUs for."""
        self.reserved_ns = {}
        if not jobs:
            return
        largest = max(jobs, key=lambda job: job.memory_bytes)
        if (too_small := np.flatnonzero(self._memory_bytes < largest.memory_bytes)).size:
            raise InputError(
                f"job {largest.job_id!r} does not fit on GPU {too_small[0]}; conservative backfilling expects GPUs "
                "with the memory for every job"
            )
        there = self._could_hold(largest, cluster)
        profile = _Profile(cluster.now_ns, self._free_from_ns(cluster.now_ns)[there].tolist())
        for job in jobs:
            run_ns = self._expected_run_ns(job, cluster)
            start_ns = profile.earliest_ns(job.num_gpus, run_ns)
            if start_ns is not None:
                profile.take(job.num_gpus, start_ns, start_ns + run_ns)
                self.reserved_ns[job.number] = start_ns


class _Profile:
    """How many GPUs are expected to be free: ``free[i]`` from ``times_ns[i]`` to the next, the last for ever."""

    def __init__(self, now_ns: int, free_from_ns: list[int]) -> None:
        self.times_ns = sorted({now_ns, *free_from_ns})
        ascending = sorted(free_from_ns)
        self.free = [bisect_left(ascending, time_ns + 1) for time_ns in self.times_ns]

    def earliest_ns(self, num_gpus: int, run_ns: int) -> int | None:
        """Return from when so many GPUs are free for so long, or None."""
        start_ns = None
        for time_ns, free in zip(self.times_ns, self.free, strict=True):
            if start_ns is not None and time_ns >= start_ns + run_ns:
                break
            if free < num_gpus:
                start_ns = None
            elif start_ns is None:
                start_ns = time_ns
        return start_ns

    def take(self, num_gpus: int, from_ns: int, to_ns: int) -> None:
        """Count GPUs as taken from one time to another."""
        first, last = self._split(from_ns), self._split(to_ns)
        self.free[first:last] = [free - num_gpus for free in self.free[first:last]]

    def _split(self, time_ns: int) -> int:
        """Return the place of a time, which is put in if it is not there."""
        place = bisect_left(self.times_ns, time_ns)
        if place == len(self.times_ns) or self.times_ns[place] != time_ns:
            self.times_ns.insert(place, time_ns)
            self.free.insert(place, self.free[place - 1])
        return place
