"""EASY backfilling: the first job that waits has a reservation; others may start if they do not delay it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from algorithms.placement.backfilling import Backfilling, BackfillingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Start
from ddlsched.policies.views import ClusterView, JobQueue, JobView
from ddlsched.units import MAX_NS

__all__ = ["EasyBackfill"]


@dataclass(frozen=True, kw_only=True)
class EasyBackfill(BackfillingPolicy):
    """A job behind the first starts if it is expected to end by the first's reservation, or takes spare GPUs only.

    The reservation is the earliest time at which enough GPUs are expected to be free for the first job; spare are those
    that it then leaves over. It is made anew whenever jobs come or go.

    References
    ----------
    Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; the rule as in Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Easy:
        """Return the policy with what it knows of the queue and of running jobs."""
        return _Easy(self, cluster, rng)


class _Easy(Backfilling):
    def __init__(self, policy: BackfillingPolicy, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__(policy, cluster, rng)
        self._reserved_ns: dict[int, int] = {}

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start jobs in order as long as they can, then those that do not delay the first that cannot."""
        self._take_note(queue, cluster)
        self._reserved_ns = {}
        for place, first in enumerate(queue):
            chosen = self._chosen_of_free(first, cluster)
            if chosen is None:
                yield from self._backfill(first, queue[place + 1 :], cluster)
                return
            yield self._start(first, chosen, cluster.now_ns)

    def reservations_ns(self) -> Mapping[int, int]:
        """Return when the first that waits is expected to start, by its number, nanoseconds."""
        return self._reserved_ns

    def _backfill(self, first: JobView, rest: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start those of the rest of the queue that do not delay the first, in order."""
        reserved_ns, usable = self._reservation(first, cluster)
        place = 0
        while (place := self._next(rest.numbers, place, first, reserved_ns, usable, cluster)) < len(rest):
            job = rest[place]
            place += 1
            chosen = self._chosen_of_free(job, cluster)
            if chosen is None:
                continue
            in_time = cluster.now_ns + int(self._run_ns_of[job.number]) <= reserved_ns
            if in_time or len(np.setdiff1d(usable, chosen)) >= first.num_gpus:
                yield self._start(job, chosen, cluster.now_ns)
                reserved_ns, usable = self._reservation(first, cluster)
        self._reserved_ns = {first.number: reserved_ns} if reserved_ns < MAX_NS else {}

    def _next(
        self,
        numbers: np.ndarray,
        place: int,
        first: JobView,
        reserved_ns: int,
        usable: np.ndarray,
        cluster: ClusterView,
    ) -> int:
        """Return the place of the next job that may start: not so large, or so long, that it surely cannot."""
        free = np.flatnonzero(~self._held)
        too_small = len(np.setdiff1d(free, usable))
        spare = len(usable) - first.num_gpus + too_small
        gpus, end_ns = self._gpus_of[numbers[place:]], cluster.now_ns + self._run_ns_of[numbers[place:]]
        may = (gpus <= len(free)) & ((end_ns <= reserved_ns) | (gpus <= spare))
        return place + int(may.argmax()) if may.any() else len(numbers)

    def _reservation(self, first: JobView, cluster: ClusterView) -> tuple[int, np.ndarray]:
        """Return when a job is expected to start, and the GPUs that it could then take, more than it needs perhaps.

        Of a job for which there are not enough GPUs now, the end of time.
        """
        gpus = self._could_hold(first, cluster)
        if len(gpus) < first.num_gpus:
            return MAX_NS, gpus
        free_from_ns = self._free_from_ns(cluster.now_ns)[gpus]
        reserved_ns = int(np.sort(free_from_ns)[first.num_gpus - 1])
        return reserved_ns, gpus[free_from_ns <= reserved_ns]
