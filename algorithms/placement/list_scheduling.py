"""List scheduling (LS): the least-loaded GPUs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["ListScheduling"]


@dataclass(frozen=True, kw_only=True)
class ListScheduling:
    """The least-loaded eligible GPUs; ties go to the lower number. Blind to servers, so jobs spread."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the least-loaded eligible GPUs."""
        gpus = cluster.eligible(job)
        return cluster.least_loaded(gpus, job.num_gpus) if len(gpus) >= job.num_gpus else None
