"""What jobs ask for beyond a number of GPUs, and a placement that gives it to them, shared out as Slurm does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.plugins.names import maker
from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["Demand", "Demanding", "slurm_shape"]


@dataclass(frozen=True)
class Demand:
    """So many GPUs on each node (0: any number), of one kind (empty: any)."""

    gpus_per_node: int = 0
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Demanding:
    """Shows another placement only the GPUs that a job may have, and makes its answer even where that was asked for.

    One that turns out to decide about the whole queue itself is left as it is.

    Parameters
    ----------
    placement
        Chooses GPUs.
    demands
        By job's number; looked up at each question.
    kinds
        Of each server's GPUs.
    """

    placement: Any
    demands: Mapping[int, Demand]
    kinds: Sequence[str]

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return the policy with the other one begun."""
        other = self.placement.begin(cluster, rng) if hasattr(self.placement, "begin") else self.placement
        if not hasattr(other, "place"):
            return other
        shape = slurm_shape(other).begin(cluster, rng)
        return _Demanding(shape, self.demands, np.array(self.kinds))


def slurm_shape(placement: Any) -> Any:
    """Return a placement with another's nodes, on which GPUs are shared out as Slurm does."""
    return maker("placement", "slurm-shape", supplied=["placement"])(placement=placement)


class _Demanding:
    def __init__(self, other: Any, demands: Mapping[int, Demand], kinds: np.ndarray) -> None:
        self._other, self._demands, self._kinds = other, demands, kinds

    def wake_s(self, now_s: float) -> float | None:
        """Return when the other policy wants to be asked again."""
        wake_s: float | None = self._other.wake_s(now_s) if hasattr(self._other, "wake_s") else None
        return wake_s

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        demand = self._demands.get(job.number, Demand())
        gpus = cluster.eligible(job)
        if demand.kind:
            gpus = gpus[self._kinds[cluster.servers_of(gpus)] == demand.kind]
        if not demand.gpus_per_node:
            return self._asked(job, cluster.restricted_to(gpus)) if len(gpus) >= job.num_gpus else None
        return self._evenly(job, cluster, gpus, demand.gpus_per_node)

    def _asked(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        chosen: Sequence[GpuId] | None = self._other.place(job, cluster)
        return chosen

    def _evenly(self, job: JobView, cluster: ClusterView, gpus: np.ndarray, on_each: int) -> Sequence[GpuId] | None:
        """Return so many GPUs on each of the nodes of which the other chooses the most, among those that have them."""
        servers = cluster.servers_of(gpus)
        whole = {server: gpus[servers == server][:on_each] for server in np.unique(servers).tolist()}
        whole = {server: own for server, own in whole.items() if len(own) == on_each}
        count = job.num_gpus // on_each
        if len(whole) < count:
            return None
        chosen = self._asked(job, cluster.restricted_to(np.concatenate(list(whole.values()))))
        if chosen is None:
            return None
        taken = [cluster.server_of(gpu) for gpu in chosen]
        by_use = sorted(whole, key=lambda server: (-taken.count(server), server))
        return [gpu for server in sorted(by_use[:count]) for gpu in whole[server].tolist()]
