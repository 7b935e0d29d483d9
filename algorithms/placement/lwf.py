"""Least-workload-first placement with consolidation (LWF-κ)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.units import is_whole

__all__ = ["LeastWorkloadFirst"]


@dataclass(frozen=True, kw_only=True)
class LeastWorkloadFirst:
    """Small jobs on the least-loaded GPUs anywhere, large ones server by server, the least-loaded first.

    Parameters
    ----------
    kappa
        Jobs of up to this many GPUs are small.

    References
    ----------
    Wang, Shi, Wang, Chu, arXiv 2002.10105, LWF-κ.
    """

    kappa: int = 1

    def __post_init__(self) -> None:
        if not is_whole(self.kappa, 0):
            raise InputError(f"lwf: kappa is {self.kappa}; expected a whole number from 0")

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs; ties of load go to the lower server, then the lower GPU."""
        gpus = cluster.eligible(job)
        if len(gpus) < job.num_gpus:
            return None
        if job.num_gpus <= self.kappa:
            return cluster.least_loaded(gpus, job.num_gpus)
        servers = cluster.servers_of(gpus)
        order = np.lexsort((gpus, cluster.loads_of(gpus), servers, cluster.server_ranks(servers)))
        chosen: list[GpuId] = gpus[order[: job.num_gpus]].tolist()
        return chosen
