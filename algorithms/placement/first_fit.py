"""First-fit placement (FF)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["FirstFit"]


@dataclass(frozen=True, kw_only=True)
class FirstFit:
    """The first GPUs, in server order, with enough free memory."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the first eligible GPUs."""
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None
