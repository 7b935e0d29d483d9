"""Pairwise GPU sharing where it pays (SJF-BSBF's best sharing benefit first)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class BestSharingBenefitFirst(Checked, who="sjf-bsbf"):
    """Free GPUs, server by server; if there are too few, GPUs of one other job where sharing beats waiting for it.

    With T the time left alone (compute, and all-reduces of the job that runs) and slowdown ξ, sharing ends on
    average at t = T_long / 2 + (1 - 1 / (2 ξ)) ξ T_short, one after the other at T_running + T_new / 2; shared GPUs
    are those with the largest benefit. At most two jobs share a GPU. Meant for an order by shortest job.

    Parameters
    ----------
    slowdown
        ξ, how much slower a job is expected to be that shares its GPUs, at least 1.

    References
    ----------
    arXiv 2407.13088, SJF-BSBF, with one ξ for all pairs.
    """

    slowdown: float = ranged(1.5, 1.0, 1000.0)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return free GPUs first, then those with the largest benefit."""
        fitting = cluster.eligible_gpus(job)
        free = cluster.free(job).tolist()
        free_on = Counter(map(cluster.server_of, free))
        free.sort(key=lambda gpu: (-free_on[cluster.server_of(gpu)], gpu))
        if len(free) < job.num_gpus:
            benefit = {gpu: self._benefit_ns(job, cluster.residents(gpu)) for gpu in fitting if gpu not in free}
            free += sorted((gpu for gpu in benefit if benefit[gpu] > 0), key=lambda gpu: (-benefit[gpu], gpu))
        return free[: job.num_gpus] if len(free) >= job.num_gpus else None

    def _benefit_ns(self, job: JobView, residents: list[JobView]) -> float:
        """Return by how much sharing with the one resident beats waiting for it; 0 where two share already."""
        if len(residents) != 1:
            return 0.0
        new, running = _time_left_ns(job), _time_left_ns(residents[0])
        factor = self.slowdown * (1.0 - 1.0 / (2.0 * self.slowdown))
        together = max(new, running) / 2.0 + factor * min(new, running)
        return running + new / 2.0 - together


def _time_left_ns(job: JobView) -> int:
    return job.iterations_left * (job.compute_ns + job.communication_ns)
