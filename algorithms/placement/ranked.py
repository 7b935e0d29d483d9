"""The GPUs of another placement, with the job's ranks on them in an order of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.placement.backfilling import PlacesOthers
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, label
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy, RankOrder
from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["Ranked"]


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Another placement chooses the GPUs, an order of ranks which worker gets which: what crosses the slow links.

    Parameters
    ----------
    placement
        Chooses the GPUs.
    ranks
        Orders them.
    """

    placement: PlacementPolicy | str = "levels"
    ranks: RankOrder | str = "least-bytes"

    def __post_init__(self) -> None:
        resolve("placement", self.placement)
        resolve("ranks", self.ranks)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Ranked:
        """Return the policy with the other one begun."""
        return _Ranked(self, cluster, rng)


class _Ranked(PlacesOthers):
    def __init__(self, policy: Ranked, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__(policy.placement, cluster, rng)
        self._ranks: RankOrder = resolve("ranks", policy.ranks)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs in the order of the job's workers."""
        chosen = self._other.place(job, cluster)
        if chosen is None:
            return None
        gpus = list(self._ranks.order(job, chosen, cluster))
        if sorted(gpus) != sorted(chosen):
            given = f"expected the {len(chosen)} GPUs that it was given, each once"
            raise InputError(f"ranks {label(self._ranks)} answered {gpus[:8]}; {given}")
        return gpus
