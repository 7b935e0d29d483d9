"""The nodes of another placement, with GPUs on them as Slurm shares them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from algorithms.placement.backfilling import OfAnother, PlacesOthers
from ddlsched.policies.views import ClusterView, GpuId, JobView


class _SlurmShape(PlacesOthers):
    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        chosen = self._other.place(job, cluster)
        if chosen is None:
            return None
        servers = sorted({cluster.server_of(gpu) for gpu in chosen})
        eligible = cluster.eligible(job)
        on = cluster.servers_of(eligible)
        taken: list[GpuId] = []
        for place, server in enumerate(servers):
            following = len(servers) - place - 1
            free: list[GpuId] = eligible[on == server].tolist()
            taken += free[: job.num_gpus - len(taken) - following]
        return taken


@dataclass(frozen=True, kw_only=True)
class SlurmShape(OfAnother):
    """The servers that another placement chooses; how many GPUs on each is Slurm's rule.

    Slurm is told nodes and a total (``--gpus``). In the order of its nodes it takes all free GPUs of each, but leaves
    one at least for each node that follows (Slurm 22.05, ``select/cons_tres``).

    Parameters
    ----------
    placement
        Chooses the servers.
    """

    asked = _SlurmShape
