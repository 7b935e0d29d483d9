"""Slurm's choice of nodes by blocks (topology/block)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.policies.elastic_views import best_fit
from ddlsched.policies.views import ClusterView, GpuId, JobView, as_list


@dataclass(frozen=True, kw_only=True)
class SlurmBlock:
    """The block with the fewest free servers that hold the job, else the one with the most, and so on for the rest.

    Of equal blocks the last is taken; of its servers the first. A job has whole servers, or part of one. It waits until
    it can have as few blocks as it would have if all servers were free.

    Parameters
    ----------
    level
        The level of the topology whose units are blocks.

    References
    ----------
    Slurm 24.11, topology/block with one size of blocks; benchmarks/slurm_decisions.py compares with it.
    """

    level: str = "rack"

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, server by server, or None to wait."""
        gpus, each = cluster.eligible(job), min(job.num_gpus, len(cluster.gpus_of(0)))
        counts, needed = np.bincount(cluster.servers_of(gpus), minlength=1), -(-job.num_gpus // each)
        room = np.flatnonzero(counts >= each)
        blocks: dict[int, list[int]] = {}
        units = cluster.network.units(self.level)
        for server in room.tolist():
            blocks.setdefault(units[server], []).append(server)
        servers: list[int] = []
        for _ in range(min(-(-needed // int(np.bincount(units).max())), len(blocks))):
            lacking, sizes = (
                needed - len(servers),
                {block: len(blocks[block]) for block in sorted(blocks, reverse=True)},
            )
            servers += blocks.pop(best_fit(sizes, lacking))[:lacking]
        if len(servers) < needed:
            return None
        return as_list(gpus[np.isin(cluster.servers_of(gpus), servers)][: job.num_gpus])
