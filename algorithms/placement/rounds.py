"""A scheduler that looks at the queue now and then, and not whenever something happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy, RoundPolicy, Start
from ddlsched.policies.views import ClusterView, JobQueue
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import ns_from_s, s_from_ns


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Another placement, asked at multiples of an interval only.

    Parameters
    ----------
    placement
        Decides.
    interval_s
        Seconds from one round to the next; the first is at 0.
    in_order_between
        Whether jobs start between rounds too, whenever something happens, but in strict order: nobody before one who
        waits ahead. So Slurm's main scheduler goes on between two rounds of its backfilling.
    """

    placement: PlacementPolicy | RoundPolicy | str = "first-fit"
    interval_s: float = ranged(1.0, 1e-6, 1e6)
    in_order_between: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "rounds")
        resolve("placement", self.placement)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Rounds:
        """Return the policy with the other one begun."""
        return _Rounds(self, cluster, rng)


class _Rounds:
    def __init__(self, policy: Rounds, cluster: Cluster, rng: np.random.Generator) -> None:
        other: Any = resolve("placement", policy.placement)
        self._other = other.begin(cluster, rng) if hasattr(other, "begin") else other
        self._interval_ns, self._between = ns_from_s(policy.interval_s), policy.in_order_between
        self._waiting = False

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start jobs as the other does, or between rounds nobody, or those ahead."""
        waiting = len(queue)
        is_round = cluster.now_ns % self._interval_ns == 0
        for start in self._asked(queue, cluster) if is_round else self._ahead(queue, cluster):
            waiting -= 1
            yield start
        self._waiting = waiting > 0

    def wake_s(self, now_s: float) -> float | None:
        """Return the time of the next round, if somebody waits."""
        if not self._waiting:
            return None
        return s_from_ns((ns_from_s(now_s) // self._interval_ns + 1) * self._interval_ns)

    def _ahead(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        for place in range(len(queue) if self._between else 0):
            started = list(self._asked(queue[place : place + 1], cluster))
            yield from started
            if not started:
                return

    def _asked(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        if hasattr(self._other, "place_round"):
            yield from self._other.place_round(queue, cluster)
            return
        for job in queue:
            if len(cluster.eligible(job)) >= job.num_gpus:
                chosen = self._other.place(job, cluster)
                if chosen is not None:
                    yield job, chosen
