"""Strict order: nobody starts before one who waits ahead (FCFS without backfilling)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.placement.backfilling import KnowsTheQueue
from ddlsched.cluster.cluster import Cluster
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy
from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["InOrder"]


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """The GPUs of another placement, for the first job that waits only. Jobs share GPUs if the other lets them.

    Parameters
    ----------
    placement
        Chooses the GPUs.
    """

    placement: PlacementPolicy | str = "first-fit"

    def __post_init__(self) -> None:
        resolve("placement", self.placement)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _InOrder:
        """Return the policy with what it knows of the queue."""
        return _InOrder(self.placement, cluster, rng)


class _InOrder(KnowsTheQueue):
    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        if self._first(job).number != job.number:
            return None
        chosen: Sequence[GpuId] | None = self._other.place(job, cluster)
        if chosen is not None:
            self._waiting.pop(job.number, None)
        return chosen
