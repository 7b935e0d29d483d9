"""Room for jobs that wait: those that run move over, and long ones stop for a while."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from algorithms.ordering.history import ShortByHistory, took_ns
from algorithms.placement.near_enough import NearEnough, PlacesNear
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import OrderingPolicy
from ddlsched.policies.views import ClusterView, JobQueue, JobView
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import NS_PER_S, ns_from_s, s_from_ns

__all__ = ["MakeRoom"]

_CANDIDATES = 4
"""How many places are looked at for a job, those whose jobs have the fewest GPUs first."""


@dataclass(frozen=True, kw_only=True)
class MakeRoom:
    """The queue of ``history``; jobs that run make room for one that ``near-enough`` has wait. Knows no lengths.

    For the first job in the queue for which it can be done, jobs stop whose GPUs make up what ``whole-racks`` would
    give it, those with the fewest GPUs, if each of them either finds other GPUs at once or is long. A long job has run
    ``long_s`` or more and four times what the other has; it goes after all that are not long. It is long no more once
    stops have had it wait more than ``most_delay`` of its run. Nobody stops within ``least_run_s`` of a start.

    For ``--placement near-enough`` on exclusive GPUs. It is asked in Python: it remembers who is to start where others
    were.

    A run time is what the service so far takes where the job runs now: after a move between one server and several it
    jumps by what all-reduces take. A job that a failure stopped counts as new. Whether those that stop find other GPUs
    is asked as if the job that they make room for sent nothing yet.

    Parameters
    ----------
    least_run_s
        What a job runs at least between two stops, seconds: several times what a stop costs. While jobs wait it is
        looked so often whether room can be made.
    long_s
        From which run time on a job may have to wait for another, seconds.
    most_delay
        For what share of its run time.
    patience
        Of ``history``; 0: first come, first served.
    """

    least_run_s: float = ranged(300.0, 0.001, 1e9)
    long_s: float = ranged(4800.0, 0.0, 1e9)
    most_delay: float = ranged(1.0, 0.0, 1e6)
    patience: float = ranged(2.0, 0.0, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "make-room")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Room:
        """Return the order of a run.

        Raises
        ------
        InputError
            Servers differ in their GPUs.
        """
        order = ShortByHistory(patience=self.patience).begin(cluster, rng)
        return _Room(self, order, NearEnough().begin(cluster, rng))

    def key(self, job: JobView, now_s: float) -> float:
        """Return the arrival, nanoseconds: all that counts before anybody has run."""
        return float(job.arrival_ns)


class _Room:
    compiled: ClassVar[bool] = False

    def __init__(self, policy: MakeRoom, order: OrderingPolicy, places: PlacesNear) -> None:
        self._policy, self._order, self._places = policy, order, places
        self._planned = dict[int, int]()
        """Who starts first in this round, by job number; of the instant :attr:`_now_ns`."""
        self._now_ns = -1
        self._ran_ns = dict[int, float]()
        """What jobs had run when they were stopped last."""
        self._first = dict[int, tuple[int, float]]()
        """When they were stopped first, and what they had run by then, nanoseconds."""

    def key(self, job: JobView, now_s: float) -> tuple[int, bool, float]:
        """Return whether a job is to start now, is long, and its place by history."""
        planned = self._planned.get(job.number, 0) if now_s == s_from_ns(self._now_ns) else 0
        return planned, self._is_long(job, ns_from_s(now_s)), self._order.key(job, now_s)

    def wake_s(self, now_s: float) -> float:
        """Return the next multiple of the interval."""
        interval_s = self._policy.least_run_s
        return (math.floor(now_s / interval_s + 1e-9) + 1) * interval_s

    def stops(self, running: Sequence[JobView], queue: JobQueue, cluster: ClusterView) -> list[JobView]:
        """Return the jobs that make room for one that waits."""
        first, waiting = list[JobView](), set[tuple[int, float]]()
        for job in queue:
            like = job.num_gpus, self._run_ns(job)
            if like in waiting:
                continue
            gpus = self._places.place(job, cluster)
            if gpus is not None:
                first.append(job)
                cluster = cluster.restricted_to(np.setdiff1d(cluster.eligible(job), gpus))
                continue
            waiting.add(like)
            for victims in self._candidates(job, running, cluster):
                if self._can_stop(victims, job, cluster):
                    self._ran_ns |= {other.number: self._run_ns(other) for other in victims}
                    for other in victims:
                        self._first.setdefault(other.number, (cluster.now_ns, self._ran_ns[other.number]))
                    order = [*first, job, *victims]
                    self._planned = {other.number: place - len(order) for place, other in enumerate(order)}
                    self._now_ns = cluster.now_ns
                    return victims
        return []

    def _run_ns(self, job: JobView) -> float:
        return took_ns(job) if job.gpus else self._ran_ns.get(job.number, 0.0)

    def _is_long(self, job: JobView, now_ns: int) -> bool:
        run_ns = self._run_ns(job)
        then_ns, by_then_ns = self._first.get(job.number, (now_ns, run_ns))
        waited_ns = now_ns - then_ns - (run_ns - by_then_ns)
        return run_ns >= self._policy.long_s * NS_PER_S and waited_ns <= self._policy.most_delay * run_ns

    def _candidates(self, job: JobView, running: Sequence[JobView], cluster: ClusterView) -> Iterator[list[JobView]]:
        """Yield sets of jobs, the largest first, on whose GPUs and free ones a job could start."""
        whole = [1, *self._places.units(cluster), cluster.num_gpus]
        place = next((place for place, unit in enumerate(whole) if unit >= job.num_gpus), 0)
        below, unit = whole[max(place - 1, 0)], whole[place]
        if cluster.num_gpus % unit or unit % below:
            return
        cost = np.full(cluster.num_gpus, np.inf)
        cost[cluster.eligible(job)] = 0.0
        least_ns = self._policy.least_run_s * NS_PER_S
        for other in running:
            if self._run_ns(other) - self._ran_ns.get(other.number, 0.0) >= least_ns:
                cost[list(other.gpus)] = other.num_gpus
        parts = cost.reshape(-1, unit // below, below).sum(axis=2)
        chosen = np.argsort(parts, axis=1, kind="stable")[:, : -(-job.num_gpus // below)]
        totals = np.take_along_axis(parts, chosen, axis=1).sum(axis=1)
        for row in np.argsort(totals, kind="stable")[:_CANDIDATES].tolist():
            if totals[row] < np.inf:
                there = set((row * (unit // below) + chosen[row]).tolist())
                victims = [other for other in running if any(gpu // below in there for gpu in other.gpus)]
                yield sorted(victims, key=lambda other: (-other.num_gpus, other.number))

    def _can_stop(self, victims: Sequence[JobView], job: JobView, cluster: ClusterView) -> bool:
        """Return whether the job could start without them, and each of them elsewhere if it need not wait."""
        room, now_ns = cluster.without(victims), cluster.now_ns
        for each in (job, *victims):
            gpus = self._places.place(each, room)
            if gpus is not None:
                room = room.restricted_to(np.setdiff1d(room.eligible(each), gpus))
            elif each is job or not self._is_long(each, now_ns) or self._run_ns(each) < 4 * self._run_ns(job):
                return False
        return True
