"""A placement that is given beforehand, for measurements: which servers each job runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["Pinned"]


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """Each job on one GPU of each of its servers, the one with the fewest jobs; ties go to the lower.

    Parameters
    ----------
    servers
        By ``job_id``, as many servers as the job has GPUs.
    """

    servers: Mapping[str, Sequence[int]]

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return a GPU of each of the job's servers."""
        return [min(cluster.gpus_of(server), key=cluster.num_residents) for server in self.servers[job.job_id]]
