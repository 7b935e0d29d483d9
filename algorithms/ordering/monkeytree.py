"""MonkeyTree's migrations that need room which others leave: jobs stop together and start at each other's places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.placement.monkeytree import MigrationPlanner, MonkeyTreePlacement
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, JobQueue, JobView

_MOMENT_S = 1e-3


@dataclass(frozen=True, kw_only=True)
class MonkeyTreeOrder(MonkeyTreePlacement):
    """First come, first served; where too many rings leave a rack, the jobs that are to swap places stop.

    For ``--placement monkeytree`` with the same parameters, which starts them again in the same round, where the same
    programme says. Asked only while somebody waits; when nobody does, jobs move into free blocks.

    Deviation: a job that stops loses the iteration under way; the paper's stops at its end.

    References
    ----------
    Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296.
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Stopping:
        """Return the planner of a run."""
        super().begin(cluster, rng)
        return _Stopping(self, cluster, "order")


class _Stopping(MigrationPlanner):
    _then: frozenset[tuple[int, tuple[int, ...]]] = frozenset()
    _looks_again_s = -1.0

    def key(self, job: JobView, now_s: float) -> int:
        """Return the time of arrival."""
        return job.arrival_ns

    def stops(self, running: Sequence[JobView], queue: JobQueue, cluster: ClusterView) -> list[JobView]:
        """Return the jobs that swap places."""
        now = frozenset((job.number, job.gpus) for job in running)
        if now == self._then:
            return []
        self._then = now
        held = {job: job.gpus for job in sorted(running, key=lambda job: job.number)}
        targets = self.targets(held, self._free(running[0], cluster), cluster.now_s, swaps=True)
        return [job for job in running if job.number in targets]

    def wake_s(self, now_s: float) -> float | None:
        """Return a moment after a round: jobs that it has placed may be too many for a rack."""
        if abs(now_s - self._looks_again_s) < _MOMENT_S / 2:
            return None
        self._looks_again_s = now_s + _MOMENT_S
        return self._looks_again_s
