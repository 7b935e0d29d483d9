"""Conservative backfilling: every job that waits has a reservation, and nobody delays one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numba
import numpy as np

from algorithms.placement.backfilling import Backfilling, BackfillingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.doors import Start
from ddlsched.policies.views import ClusterView, JobQueue, JobView

NEVER = np.int64(2**63 - 1)
_DIGITS = 63
_part = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles what only compiled code calls."""


class FreeProfile:
    """How many GPUs are free from each of some times on, beside running jobs and reservations.

    Parameters
    ----------
    free_from_ns
        From when each GPU is free, at least ``now_ns``.
    """

    def __init__(self, free_from_ns: np.ndarray, now_ns: int) -> None:
        first_ns, counts = np.unique(np.append(free_from_ns, now_ns), return_counts=True)
        counts[0] -= 1  # ``now_ns`` itself is no GPU
        self._length = len(first_ns)
        self._times_ns, self._free = first_ns.astype(np.int64), np.cumsum(counts)

    def reserve(self, num_gpus: np.ndarray, run_ns: np.ndarray) -> np.ndarray:
        """Give each job in turn the earliest time from which enough GPUs are free for as long as it runs.

        Returns these times, NEVER for a job that wants more GPUs than there are.
        """
        self._make_room(2 * len(num_gpus))
        starts_ns = np.empty(len(num_gpus), np.int64)
        self._length = _fill(self._times_ns, self._free, self._length, num_gpus, run_ns, np.unique(num_gpus), starts_ns)
        return starts_ns

    def go_on(self, now_ns: int) -> None:
        """Forget what was before ``now_ns``."""
        self._length = _forget(self._times_ns, self._free, self._length, now_ns)

    def _make_room(self, num_times: int) -> None:
        if (needed := self._length + num_times) > len(self._times_ns):
            more = needed - len(self._times_ns)
            self._times_ns, self._free = np.pad(self._times_ns, (0, more)), np.pad(self._free, (0, more))


@numba.njit(cache=True)
def _fill(times_ns, free, length, num_gpus, run_ns, sizes, starts_ns):  # type: ignore[no-untyped-def]
    """``free[i]`` GPUs are free from ``times_ns[i]`` to the next of ``length`` times, the last for ever."""
    latest_ns = np.zeros((len(sizes), _DIGITS + 1), np.int64)
    for job in range(len(num_gpus)):
        begin = np.searchsorted(times_ns[:length], _too_early(sizes, latest_ns, num_gpus[job], run_ns[job]))
        first = _earliest(times_ns, free, begin, length, num_gpus[job], run_ns[job])
        if first < 0:
            starts_ns[job] = NEVER
            continue
        starts_ns[job] = times_ns[first]
        _note(sizes, latest_ns, num_gpus[job], run_ns[job], starts_ns[job])
        last, length = _split(times_ns, free, length, times_ns[first] + run_ns[job])
        for place in range(first, last):
            free[place] -= num_gpus[job]
    return length


@_part
def _earliest(times_ns, free, begin, length, num_gpus, run_ns):  # type: ignore[no-untyped-def]
    """Return the place of the first time from which so many GPUs are free for so long, from ``begin`` on, or -1."""
    first = -1
    for place in range(begin, length):
        if first >= 0 and times_ns[place] >= times_ns[first] + run_ns:
            break
        if free[place] < num_gpus:
            first = -1
        elif first < 0:
            first = place
    return first


# A job that does not fit before some time shows that no job of as many GPUs or more, for as long or longer, does: GPUs
# are only taken while jobs are given theirs. ``latest_ns`` has the latest such time by GPUs (a row for each number in
# ``sizes``) and by the binary digits of how long a job runs.


@_part
def _digits(run_ns):  # type: ignore[no-untyped-def]
    """Return how many binary digits a time has."""
    count = 0
    while run_ns:
        run_ns >>= 1
        count += 1
    return count


@_part
def _too_early(sizes, latest_ns, num_gpus, run_ns):  # type: ignore[no-untyped-def]
    """Return a time before which a job does not fit."""
    digits, latest = _digits(run_ns), 0
    for row in range(len(sizes)):
        if sizes[row] > num_gpus:
            break
        latest = max(latest, latest_ns[row, digits])
    return latest


@_part
def _note(sizes, latest_ns, num_gpus, run_ns, time_ns):  # type: ignore[no-untyped-def]
    """Note that a job did not fit before a time, for jobs that run for a binary digit longer or more."""
    row = np.searchsorted(sizes, num_gpus)
    for digits in range(_digits(run_ns) + 1, _DIGITS + 1):
        latest_ns[row, digits] = max(latest_ns[row, digits], time_ns)


@_part
def _split(times_ns, free, length, time_ns):  # type: ignore[no-untyped-def]
    """Return the place of a time, which is put in if it is not there, and the new length."""
    place = np.searchsorted(times_ns[:length], time_ns)
    if place < length and times_ns[place] == time_ns:
        return place, length
    for behind in range(length, place, -1):
        times_ns[behind], free[behind] = times_ns[behind - 1], free[behind - 1]
    times_ns[place], free[place] = time_ns, free[place - 1]
    return place, length + 1


@numba.njit(cache=True)
def _forget(times_ns, free, length, now_ns):  # type: ignore[no-untyped-def]
    """Let the profile begin now, without times at which nothing changes, and return the new length."""
    kept = 0
    for place in range(length):
        if kept > 0 and times_ns[place] > now_ns and free[place] == free[kept - 1]:
            continue
        if times_ns[place] > now_ns and kept > 0:
            kept += 1
        else:
            kept = 1
        times_ns[kept - 1], free[kept - 1] = max(times_ns[place], now_ns), free[place]
    return kept


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

    asked = _Conservative
