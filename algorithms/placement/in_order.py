"""Strict order: nobody starts before one who waits ahead (FCFS without backfilling)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from algorithms.placement.backfilling import PlacesOthers
from ddlsched.cluster.cluster import Cluster
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy, Start
from ddlsched.policies.views import ClusterView, JobQueue

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
        """Return the policy with the other one begun."""
        return _InOrder(self.placement, cluster, rng)


class _InOrder(PlacesOthers):
    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        for job in queue:
            chosen = self._other.place(job, cluster)
            if chosen is None:
                return
            yield job, chosen
