"""Conservative backfilling: every job that waits has a reservation, and nobody delays one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from algorithms.placement.backfilling import Backfilling, BackfillingPolicy
from algorithms.placement.free_profile import NEVER, FreeProfile
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.doors import Start
from ddlsched.policies.views import ClusterView, JobQueue, JobView

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
    """During a run: the reservations, and the profile of free GPUs beside which they were made.

    While running jobs and servers do as expected, old reservations would be made again as they are: a job was given the
    earliest time beside those before it, whoever of them now comes after it has a later time, and takes nothing before
    that. So the profile of the round before is gone on with, and only new jobs are given a time. It is made anew when a
    job leaves before its time, outlives it or cannot start, and when a server fails or comes back.
    """

    def __init__(self, policy: BackfillingPolicy, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__(policy, cluster, rng)
        self._reserved_ns = np.zeros(0, np.int64)
        self._profile = FreeProfile(np.zeros(0, np.int64), 0)
        self._num_there = -1

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Make all reservations anew, and start the jobs whose reservation is now."""
        leave_ns = max((end_ns for _, end_ns in self._take_note(queue, cluster)), default=0)
        starts_ns = self._reserve(queue, cluster, as_expected=leave_ns <= cluster.now_ns)
        for place in np.flatnonzero(starts_ns == cluster.now_ns).tolist():
            job = queue[place]
            chosen = self._chosen_of_free(job, cluster)
            if chosen is not None:
                self._reserved_ns[job.number] = NEVER
                yield self._start(job, chosen, cluster.now_ns)

    def reservations_ns(self) -> Mapping[int, int]:
        """Return when each job that waits is expected to start, by number, nanoseconds."""
        return {n: ns for n, ns in enumerate(self._reserved_ns.tolist()) if ns < NEVER}

    def _reserve(self, queue: JobQueue, cluster: ClusterView, *, as_expected: bool) -> np.ndarray:
        """Make and return the reservations of the jobs of the queue; NEVER for one that there are too few GPUs for."""
        numbers = queue.numbers
        there = self._could_hold(self._largest(queue), cluster)
        missing = len(self._gpus_of) - len(self._reserved_ns)
        before_ns = np.pad(self._reserved_ns, (0, missing), constant_values=NEVER)[numbers]
        order = before_ns.argsort(kind="stable")
        starts_ns: np.ndarray = before_ns.copy()
        if as_expected and len(there) == self._num_there and before_ns[order[0]] >= cluster.now_ns:
            self._profile.go_on(cluster.now_ns)
            order = order[np.searchsorted(before_ns[order], NEVER) :]
        else:
            self._profile = FreeProfile(self._free_from_ns(cluster.now_ns)[there], cluster.now_ns)
        self._num_there = len(there)
        starts_ns[order] = self._profile.reserve(self._gpus_of[numbers[order]], self._run_ns_of[numbers[order]])
        self._reserved_ns = np.full(len(self._gpus_of), NEVER)
        self._reserved_ns[numbers] = starts_ns
        return starts_ns

    def _largest(self, queue: JobQueue) -> JobView:
        """Return the job of the queue with the most memory a GPU, which must fit on any GPU."""
        largest = queue[int(self._memory_of[queue.numbers].argmax())]
        if (too_small := np.flatnonzero(self._memory_bytes < largest.memory_bytes)).size:
            raise InputError(
                f"job {largest.job_id!r} does not fit on GPU {too_small[0]}; conservative backfilling expects GPUs "
                "with the memory for every job"
            )
        return largest
