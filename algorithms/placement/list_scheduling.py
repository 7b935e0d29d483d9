"""List scheduling (LS): the least-loaded GPUs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.views import ClusterView, GpuId, JobView

__all__ = ["ListScheduling"]


@dataclass(frozen=True, kw_only=True)
class ListScheduling:
    """The least-loaded eligible GPUs; ties go to the lower number. Blind to servers, so jobs spread."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the least-loaded eligible GPUs."""
        gpus = cluster.eligible(job)
        if len(gpus) < job.num_gpus:
            return None
        chosen: list[GpuId] = gpus[np.lexsort((gpus, cluster.loads_of(gpus)))[: job.num_gpus]].tolist()
        return chosen
