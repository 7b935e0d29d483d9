"""Room for jobs that wait: those that run move over, and long ones stop for a while."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from algorithms.ordering.history import FinishedJobs, kinds_of
from algorithms.placement.near_enough import NearEnough, PlacesNear
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, JobQueue, JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S, ns_from_s, s_from_ns

_CANDIDATES = 4
"""How many places are looked at for a job, those whose jobs have the fewest GPUs first."""


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

    For ``--placement near-enough`` on exclusive GPUs. It is asked in Python: history is kept by texts, and the key
    reads what ``stops``, which no policy has compiled, plans. Whether those that stop find other GPUs is asked as if
    the job that they make room for sent nothing yet.

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

    def key(self, job: JobView, now_s: float) -> float:
        """Return the arrival, nanoseconds: all that counts before anybody has run."""
        return float(job.arrival_ns)


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
        first, waiting, rested = list[JobView](), set[tuple[float, ...]](), list[JobView]()
        for job in queue:
            like = job.num_gpus, job.memory_bytes, job.compute_ns, job.message_bytes, self._left_ns(job)
            if like in waiting:
                continue
            gpus = self._places.place(job, cluster)
            if gpus is not None:
                first.append(job)
                cluster = cluster.restricted_to(np.setdiff1d(cluster.eligible(job), gpus))
                continue
            waiting.add(like)
            rested = rested or [other for other in running if self._has_rested(other)]
            for victims in self._candidates(job, rested, cluster):
                if self._can_stop(victims, job, cluster):
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

    def _may_wait(self, job: JobView, other: JobView, now_ns: int) -> bool:
        """Return whether a job may be stopped for another and find no GPUs."""
        fills = job.num_gpus <= self._wanted
        return fills and self._is_long(job, now_ns) and self._left_ns(job) >= 4 * self._left_ns(other)

    def _candidates(self, job: JobView, rested: Sequence[JobView], cluster: ClusterView) -> Iterator[list[JobView]]:
        """Yield sets of jobs, the largest first, on whose GPUs and free ones a job could start."""
        whole = [1, *self._places.units(cluster), cluster.num_gpus]
        place = next((place for place, unit in enumerate(whole) if unit >= job.num_gpus), 0)
        below, unit = whole[max(place - 1, 0)], whole[place]
        if cluster.num_gpus % unit or unit % below:
            return
        for stopped in (rested, [other for other in rested if self._may_wait(other, job, cluster.now_ns)]):
            sizes = [len(other.gpus) for other in stopped]
            gpus, by = np.array([gpu for other in stopped for gpu in other.gpus], np.int64), np.arange(len(stopped))
            by, cost = by.repeat(sizes), np.full(cluster.num_gpus, np.inf)
            cost[cluster.eligible(job)] = 0.0
            cost[gpus] = np.array([other.num_gpus for other in stopped], float)[by]
            parts = cost.reshape(-1, unit // below, below).sum(axis=2)
            chosen = np.argsort(parts, axis=1, kind="stable")[:, : -(-job.num_gpus // below)]
            totals = np.take_along_axis(parts, chosen, axis=1).sum(axis=1)
            for row in np.argsort(totals, kind="stable")[:_CANDIDATES].tolist():
                if totals[row] < np.inf:
                    there = np.unique(by[np.isin(gpus // below, row * (unit // below) + chosen[row])]).tolist()
                    yield sorted((stopped[one] for one in there), key=lambda other: (-other.num_gpus, other.number))

    def _can_stop(self, victims: Sequence[JobView], job: JobView, cluster: ClusterView) -> bool:
        """Return whether the job could start without them, and each of them elsewhere if it need not wait."""
        may_wait = {other.number for other in victims if self._may_wait(other, job, cluster.now_ns)}
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
