"""Volcano's choice of HyperNodes, tier by tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView, as_list
from ddlsched.workload.groups import demands_of


@dataclass(frozen=True, kw_only=True)
class VolcanoHyperNodes:
    """The lowest tier of which one HyperNode has room, of these the fullest, in it the fullest servers first.

    HyperNodes are units of levels above servers. The level that a job requires is the highest tier allowed (``hard``):
    it waits for one. One that prefers a level (``soft``) goes to any tier, at last to several HyperNodes; one without
    either to the fullest servers of all. GPUs with a job are not shared; a pod is one GPU.

    References
    ----------
    Volcano 1.12, network-topology-aware scheduling (``networkTopology``: ``mode``, ``highestTierAllowed``), binpack.
    """

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, server by server, or None to wait."""
        required, preferred = demands_of(job.required_levels), demands_of(job.preferred_levels)
        if any(demand.part for demand in (*required, *preferred)) or len(required) > 1:
            raise InputError(
                f"volcano-hypernodes, job {job.job_id!r}: has required levels {job.required_levels!r} and preferred "
                f"ones {job.preferred_levels!r}; expected one level of the whole job"
            )
        gpus = cluster.free(job)
        if len(gpus) < job.num_gpus:
            return None
        tiers = [*cluster.network.levels][1:] if required or preferred else []
        if required and required[0].level in tiers:
            tiers = tiers[: tiers.index(required[0].level) + 1]
        elif required:
            tiers = [required[0].level]
        for tier in tiers:
            units = cluster.units(tier)[gpus]
            free = np.bincount(units)
            if (enough := np.flatnonzero(free >= job.num_gpus)).size:
                return self._fullest(gpus[units == enough[free[enough].argmin()]], job.num_gpus, cluster)
        return None if required else self._fullest(gpus, job.num_gpus, cluster)

    @staticmethod
    def _fullest(gpus: np.ndarray, count: int, cluster: ClusterView) -> list[GpuId]:
        servers = cluster.servers_of(gpus)
        return as_list(gpus[np.lexsort((gpus, servers, np.bincount(servers)[servers]))[:count]])
