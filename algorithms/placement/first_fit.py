"""The first GPUs (FF), the least loaded ones (LS, list scheduling), or random ones (RAND), of any server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.cluster_view import GpuKey, TakesGpusInOrder
from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["FirstFit", "ListScheduling", "RandomFit"]


@dataclass(frozen=True, kw_only=True)
class FirstFit(TakesGpusInOrder):
    """The first GPUs, in server order, with enough free memory."""

    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return nothing: GPUs go by their number."""
        return ()


@dataclass(frozen=True, kw_only=True)
class ListScheduling:
    """The least-loaded eligible GPUs; ties go to the lower number. Blind to servers, so jobs spread."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the least-loaded eligible GPUs."""
        gpus = cluster.eligible(job)
        return cluster.least_loaded(gpus, job.num_gpus) if len(gpus) >= job.num_gpus else None


@dataclass(frozen=True, kw_only=True)
class RandomFit:
    """Random GPUs with enough free memory, every set as likely; repeatable by the run's seed."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _RandomFitRun:
        """Return the policy with this run's generator."""
        return _RandomFitRun(rng)


class _RandomFitRun:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        gpus = cluster.eligible_gpus(job)
        if len(gpus) < job.num_gpus:
            return None
        chosen: list[GpuId] = self._rng.choice(gpus, job.num_gpus, replace=False).tolist()
        return chosen
