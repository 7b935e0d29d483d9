"""Random placement (RAND)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, GpuId, JobView, as_list


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
        return as_list(self._rng.choice(gpus, job.num_gpus, replace=False))
