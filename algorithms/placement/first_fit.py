"""First-fit placement (FF), and list scheduling (LS): the first GPUs, or the least loaded ones anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.cluster_view import GpuKey, TakesGpusInOrder


@dataclass(frozen=True, kw_only=True)
class FirstFit(TakesGpusInOrder):
    """The first GPUs, in server order, with enough free memory."""

    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return nothing: GPUs go by their number."""
        return ()


@dataclass(frozen=True, kw_only=True)
class ListScheduling(TakesGpusInOrder):
    """The least-loaded eligible GPUs; ties go to the lower number. Blind to servers, so jobs spread."""

    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return the load."""
        return ("load",)
