"""Least-workload-first placement with consolidation (LWF-κ)."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.errors import InputError
from ddlsched.policies.gpu_order import GpuKey, TakesGpusInOrder
from ddlsched.units import is_whole

__all__ = ["LeastWorkloadFirst"]


@dataclass(frozen=True, kw_only=True)
class LeastWorkloadFirst(TakesGpusInOrder):
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

    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return the load, or for a large job the server's first; ties of load go to the lower server and GPU."""
        return ("load",) if num_gpus <= self.kappa else ("server_load", "server", "load")
