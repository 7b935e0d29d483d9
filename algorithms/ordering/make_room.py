"""Room for jobs that wait: those that run move over, and long ones stop for a while."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

import numba
import numpy as np

from algorithms.ordering.history import FinishedJobs, kinds_of
from algorithms.placement.near_enough import NearEnough, PlacesNear
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.cluster_view import looked_up_once
from ddlsched.policies.views import ClusterView, JobQueue, JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S, ns_from_s, s_from_ns

_CANDIDATES = 4
"""How many places are looked at for a job, those whose jobs have the fewest GPUs first."""
_NEVER = 2**40
"""The cost of a GPU that nobody gives up."""


@dataclass(frozen=True, kw_only=True)
class MakeRoom(Checked, who="make-room"):
    """The queue of ``history``; jobs that run make room for one that ``near-enough`` has wait. Knows no lengths.

    For the first job in the queue for which it can be done, jobs stop whose GPUs make up what ``whole-racks`` would
    give it, those with the fewest GPUs, if each of them either finds other GPUs at once or is long, by history has four
    times as much left as the other, and has no more GPUs than are waited for; if that cannot be, only such jobs are
    looked at. A long job has run ``long_s`` or more; it goes after all that are not long. It is long no more once stops
    have had it wait more than ``most_delay`` of its run for each job that waits. Nobody stops within ``least_run_s`` of
    a start.

    What a job has left is what those took beyond its run time of the finished jobs that took longer, weighed by kinds
    as in ``history``, and as one job more what it has run. A run time is compute, and all-reduces alone where the job
    was.

    For ``--placement near-enough`` on exclusive GPUs. It is asked in Python: a compiled key sees one job, not who has
    finished, and keeps nothing by texts; the search for places is compiled. Whether those that stop find other GPUs is
    asked as if the job that they make room for sent nothing yet.

    Parameters
    ----------
    least_run_s
        What a job runs at least between two stops, seconds: several times what a stop costs. While jobs wait it is
        looked so often whether room can be made.
    long_s
        From which run time on a job may have to wait for another, seconds.
    most_delay
        For what share of its run time at most, times the jobs that wait.
    patience
        Of ``history``; 0: first come, first served.
    slower
        Of ``near-enough``, as it is there.
    """

    least_run_s: float = ranged(300.0, 0.001, 1e9)
    long_s: float = ranged(4800.0, 0.0, 1e9)
    most_delay: float = ranged(0.1, 0.0, 1e6)
    patience: float = ranged(2.0, 0.0, 1e6)
    slower: float = ranged(0.1, 0.0, 100.0)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Room:
        """Return the order of a run.

        Raises
        ------
        InputError
            Servers differ in their GPUs.
        """
        return _Room(self, NearEnough(slower=self.slower).begin(cluster, rng))


class _Room:
    compiled: ClassVar[bool] = False

    def __init__(self, policy: MakeRoom, places: PlacesNear) -> None:
        self._policy, self._places = policy, places
        self._history = FinishedJobs(kinds_of, self._run_ns)
        self._planned = dict[int, int]()
        """Who starts first in this round, by job number; of the instant :attr:`_now_ns`."""
        self._now_ns = -1
        self._ran = dict[int, tuple[float, float, float]]()
        """What jobs had computed when looked at last and run by then, nanoseconds; the latter per the former there."""
        self._by_stop_ns = dict[int, float]()
        """What they had run by then when they were stopped last."""
        self._first = dict[int, tuple[int, float]]()
        """When they were stopped first, and what they had run by then, nanoseconds."""
        self._waiting, self._wanted = 1, 0
        """How many jobs waited when that was looked at last, and for how many GPUs."""

    def key(self, job: JobView, now_s: float) -> tuple[int, bool, float]:
        """Return whether a job is to start now, is long, and its place by history."""
        self._history.look(job, now_s)
        planned = self._planned.get(job.number, 0) if now_s == s_from_ns(self._now_ns) else 0
        counts_ns = job.arrival_ns + self._policy.patience * self._history.left_ns(job)
        return planned, self._is_long(job, ns_from_s(now_s)), counts_ns

    def wake_s(self, now_s: float) -> float:
        """Return the next multiple of the interval."""
        interval_s = self._policy.least_run_s
        return (math.floor(now_s / interval_s + 1e-9) + 1) * interval_s

    def stops(self, running: Sequence[JobView], queue: JobQueue, cluster: ClusterView) -> list[JobView]:
        """Return the jobs that make room for one that waits."""
        self._waiting, self._wanted = len(queue), sum(job.num_gpus for job in queue)
        first, waiting, rested = list[JobView](), set[tuple[float, ...]](), self._rested((), cluster.now_ns)
        cluster = looked_up_once(cluster)
        for job in queue:
            left_ns = self._left_ns(job)
            like = job.num_gpus, job.memory_bytes, job.compute_ns, job.message_bytes, left_ns
            if like in waiting:
                continue
            gpus = self._places.place(job, cluster)
            if gpus is not None:
                first.append(job)
                cluster = cluster.restricted_to(np.setdiff1d(cluster.eligible(job), gpus))
                continue
            if not waiting:
                rested = self._rested(running, cluster.now_ns)
            waiting.add(like)
            may_wait = rested.left_ns >= 4 * left_ns
            waits = {rested.jobs[place].number for place in np.flatnonzero(may_wait).tolist()}
            for victims in self._candidates(job, rested, may_wait, cluster):
                if self._can_stop(victims, waits, job, cluster):
                    for other in victims:
                        self._by_stop_ns[other.number] = run_ns = self._run_ns(other)
                        self._first.setdefault(other.number, (cluster.now_ns, run_ns))
                    order = [*first, job, *victims]
                    self._planned = {other.number: place - len(order) for place, other in enumerate(order)}
                    self._now_ns = cluster.now_ns
                    return victims
        return []

    def _run_ns(self, job: JobView) -> float:
        """Return how long a job has run, its all-reduces taken alone where they were."""
        then_ns, run_ns, rate = self._ran.get(job.number, (0.0, 0.0, 1.0))
        if job.servers:
            rate = 1.0 + job.communication_ns / max(job.compute_ns, 1)
        computed_ns = job.attained_service_ns / job.num_gpus
        run_ns += (computed_ns - then_ns) * rate
        self._ran[job.number] = computed_ns, run_ns, rate
        return run_ns

    def _left_ns(self, job: JobView) -> float:
        return self._history.left_ns(job, self._run_ns(job))

    def _has_rested(self, job: JobView) -> bool:
        return self._run_ns(job) - self._by_stop_ns.get(job.number, 0.0) >= self._policy.least_run_s * NS_PER_S

    def _is_long(self, job: JobView, now_ns: int) -> bool:
        run_ns = self._run_ns(job)
        then_ns, by_then_ns = self._first.get(job.number, (now_ns, run_ns))
        waited_ns = now_ns - then_ns - (run_ns - by_then_ns)
        return (
            run_ns >= self._policy.long_s * NS_PER_S and waited_ns <= self._policy.most_delay * self._waiting * run_ns
        )

    def _rested(self, running: Sequence[JobView], now_ns: int) -> _Rested:
        """Return the jobs that may stop."""
        jobs = [job for job in running if self._has_rested(job)]
        fill = (job.num_gpus <= self._wanted and self._is_long(job, now_ns) for job in jobs)
        left_ns = [self._left_ns(job) if fills else -np.inf for job, fills in zip(jobs, fill, strict=True)]
        gpus = np.array([gpu for job in jobs for gpu in job.gpus], np.int64)
        places = np.arange(len(jobs)).repeat([len(job.gpus) for job in jobs])
        return _Rested(jobs, np.array(left_ns), np.array([job.num_gpus for job in jobs], np.int64), gpus, places)

    def _candidates(
        self, job: JobView, rested: _Rested, may_wait: np.ndarray, cluster: ClusterView
    ) -> Iterator[list[JobView]]:
        """Yield sets of jobs, the largest first, on whose GPUs and free ones a job could start."""
        whole = [1, *self._places.units(cluster), cluster.num_gpus]
        place = next((place for place, unit in enumerate(whole) if unit >= job.num_gpus), 0)
        below, unit = whole[max(place - 1, 0)], whole[place]
        if cluster.num_gpus % unit or unit % below:
            return
        free, shape = cluster.eligible(job), (cluster.num_gpus, unit, below, -(-job.num_gpus // below))
        for may_stop in self._may_stop(may_wait):
            there = may_stop[rested.places]
            for found in _cheapest(free, rested.gpus[there], rested.places[there], rested.num_gpus, shape):
                victims = (rested.jobs[one] for one in np.flatnonzero(found).tolist())
                yield sorted(victims, key=lambda other: (-other.num_gpus, other.number))

    def _may_stop(self, may_wait: np.ndarray) -> Iterator[np.ndarray]:
        """Yield who of those that have rested is looked at."""
        yield np.ones_like(may_wait)
        if not may_wait.all():
            yield may_wait

    def _can_stop(self, victims: Sequence[JobView], may_wait: Set[int], job: JobView, cluster: ClusterView) -> bool:
        """Return whether the job could start without them, and each of them elsewhere if it need not wait."""
        gpus = sum(other.num_gpus for other in victims if other.number in may_wait)
        least = min((job, *victims), key=lambda each: each.memory_bytes)
        if len(cluster.eligible(least)) + gpus < job.num_gpus:  # with whatever GPUs for the others
            return False
        room = cluster.without(victims)
        for each in (job, *victims):
            found = self._places.place(each, room)
            if found is not None:
                room = room.restricted_to(np.setdiff1d(room.eligible(each), found))
            elif each.number not in may_wait:
                return False
        return True


@dataclass(frozen=True)
class _Rested:
    """Jobs that may stop: who they are, and their GPUs.

    Attributes
    ----------
    left_ns
        What those have left that are long and have no more GPUs than are waited for; -infinity for others.
    gpus, places
        The GPUs of all, and the place of the job of each.
    """

    jobs: Sequence[JobView]
    left_ns: np.ndarray
    num_gpus: np.ndarray
    gpus: np.ndarray
    places: np.ndarray


@numba.njit(cache=True)
def _cheapest(free, gpus, places, num_gpus, shape):  # type: ignore[no-untyped-def]
    """Return who stops, a row a unit, for ``wanted`` parts of it: those where jobs have the fewest GPUs, units so, too.

    A job's GPUs count once for each that is there.
    """
    all_gpus, unit, below, wanted = shape
    cost, parts = np.full(all_gpus, _NEVER), np.zeros(all_gpus // below, np.int64)
    cost[free] = 0
    for i in range(len(gpus)):
        cost[gpus[i]] = num_gpus[places[i]]
    for gpu in range(all_gpus):
        parts[gpu // below] += cost[gpu]
    each, taken, totals = unit // below, np.zeros(len(parts), np.bool_), np.zeros(all_gpus // unit, np.int64)
    for row in range(len(totals)):
        for _ in range(min(wanted, each)):
            best = -1
            for part in range(row * each, row * each + each):
                if not taken[part] and (best < 0 or parts[part] < parts[best]):
                    best = part
            taken[best] = True
            totals[row] += parts[best]
    found = np.zeros((_CANDIDATES, len(num_gpus)), np.bool_)
    for count in range(_CANDIDATES):
        least = int(np.argmin(totals))
        if totals[least] >= _NEVER:
            return found[:count]
        totals[least] = _NEVER
        for i in range(len(gpus)):
            if gpus[i] // unit == least and taken[gpus[i] // below]:
                found[count, places[i]] = True
    return found
