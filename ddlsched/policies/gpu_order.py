"""Placement policies that are an order of GPUs: a job gets the first that have room for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from ddlsched.policies.cluster_view import ClusterView
from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import GpuId

__all__ = ["GpuKey", "TakesGpusInOrder", "is_gpu_order"]

GpuKey: TypeAlias = Literal["load", "server", "server_load"]
"""What GPUs are ordered by, the least first: their load; their server's number; the mean load of that's GPUs."""


class TakesGpusInOrder:
    """A placement policy that only says by what eligible GPUs are ordered; a job waits until enough are eligible.

    What asks such a policy very often, as :class:`~ddlsched.envs.OrderVectorEnv` does, does the same in compiled code.
    A subclass with a ``place`` of its own is asked in Python.
    """

    @abstractmethod
    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return by what the GPUs are ordered of a job of so many; what is equal in all goes by the GPU's number."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the first GPUs in the order."""
        gpus, num_gpus = cluster.eligible(job), job.num_gpus
        if len(gpus) < num_gpus:
            return None
        order = self.gpu_order(num_gpus)
        if order == ("load",):
            return cluster.least_loaded(gpus, num_gpus)
        columns = [_column(key, gpus, cluster) for key in reversed(order)]
        first: list[GpuId] = gpus[np.lexsort((gpus, *columns))[:num_gpus]].tolist()
        return first


def _column(key: GpuKey, gpus: np.ndarray, cluster: ClusterView) -> np.ndarray:
    if key == "load":
        return cluster.loads_of(gpus)
    servers = cluster.servers_of(gpus)
    return servers if key == "server" else cluster.server_ranks(servers)


def is_gpu_order(policy: object) -> bool:
    """Return whether all that a placement policy does is to take GPUs in its order."""
    return isinstance(policy, TakesGpusInOrder) and type(policy).place is TakesGpusInOrder.place
