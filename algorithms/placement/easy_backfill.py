"""EASY backfilling: the first job that waits has a reservation; others may start if they do not delay it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.placement.backfilling import Backfilling, BackfillingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.units import MAX_NS

__all__ = ["EasyBackfill"]


@dataclass(frozen=True, kw_only=True)
class EasyBackfill(BackfillingPolicy):
    """A job behind the first starts if it is expected to end by the first's reservation, or takes spare GPUs only.

    The reservation is the earliest time at which enough GPUs are expected to be free for the first job; spare are those
    that it then leaves over. It is made anew whenever jobs come or go.

    References
    ----------
    Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; the rule as in Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Easy:
        """Return the policy with what it knows of the queue and of running jobs."""
        return _Easy(self, cluster, rng)


class _Easy(Backfilling):
    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        chosen = self._chosen_of_free(job, cluster)
        if chosen is None:
            return None
        first = self._first(job)
        if first.number != job.number and self._delays(first, job, chosen, cluster):
            return None
        return self._start(job, chosen, cluster)

    def _delays(self, first: JobView, job: JobView, chosen: Sequence[GpuId], cluster: ClusterView) -> bool:
        """Return whether a job on such GPUs might keep the first one that waits from its reservation."""
        reserved_ns, usable = self._reservation(first, cluster)
        if cluster.now_ns + self._expected_run_ns(job, cluster) <= reserved_ns:
            return False
        return len(np.setdiff1d(usable, chosen)) < first.num_gpus

    def _reservation(self, first: JobView, cluster: ClusterView) -> tuple[int, np.ndarray]:
        """Return when a job is expected to start, and the GPUs that it could then take, more than it needs perhaps.

        Of a job for which there are not enough GPUs now, the end of time.
        """
        gpus = self._could_hold(first, cluster)
        if len(gpus) < first.num_gpus:
            return MAX_NS, gpus
        free_from_ns = self._free_from_ns(cluster.now_ns)[gpus]
        reserved_ns = int(np.sort(free_from_ns)[first.num_gpus - 1])
        return reserved_ns, gpus[free_from_ns <= reserved_ns]
