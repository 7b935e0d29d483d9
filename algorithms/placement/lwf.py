"""Least-workload-first placement with consolidation (LWF-κ)."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.cluster_view import GpuKey, TakesGpusInOrder
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class LeastWorkloadFirst(TakesGpusInOrder, Checked, who="lwf"):
    """Small jobs on the least-loaded GPUs anywhere, large ones server by server, the least-loaded first.

    Parameters
    ----------
    kappa
        Jobs of up to this many GPUs are small.

    References
    ----------
    Wang, Shi, Wang, Chu, arXiv 2002.10105, LWF-κ.
    """

    kappa: int = ranged(1, 0)

    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return the load, or for a large job the server's first; ties of load go to the lower server and GPU."""
        return ("load",) if num_gpus <= self.kappa else ("server_load", "server", "load")
