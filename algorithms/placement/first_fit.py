"""First-fit placement (FF)."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.cluster_view import GpuKey, TakesGpusInOrder

__all__ = ["FirstFit"]


@dataclass(frozen=True, kw_only=True)
class FirstFit(TakesGpusInOrder):
    """The first GPUs, in server order, with enough free memory."""

    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return nothing: GPUs go by their number."""
        return ()
