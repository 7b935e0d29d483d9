"""How much room the units of a topology's levels have for jobs that require to lie in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ddlsched.policies.cluster_view import ClusterView
from ddlsched.policies.job_view import JobView
from ddlsched.workload.groups import whole_levels

__all__ = ["LevelRoom"]


class LevelRoom:
    """How many eligible GPUs each unit of a level has, and where running jobs are, for compiled searches.

    Parameters
    ----------
    cluster
        The cluster as it is at any time.
    num_jobs
        Of the run.

    Attributes
    ----------
    gpus, spans
        The GPUs of jobs that run, or ran; and by a job's number where its own begin and end.
    """

    def __init__(self, cluster: ClusterView, num_jobs: int) -> None:
        self._cluster = cluster
        self._unit_of = cache(lambda level: _units(cluster, level))
        self._free: dict[tuple[str, int], np.ndarray] = {}
        self.gpus, self.spans, self._end = np.zeros(1024, np.int64), np.zeros((num_jobs, 2), np.int64), 0

    def note(self, number: int, gpus: list[int]) -> None:
        """Note on which GPUs a job starts."""
        self.spans[number] = first, end = self._end, self._end + len(gpus)
        if end > len(self.gpus):
            self.gpus = np.resize(self.gpus, 2 * end)
        self.gpus[first:end], self._end = gpus, end

    def look_at(self, cluster: ClusterView) -> None:
        """Reckon room anew, in the cluster as it is now."""
        self._cluster = cluster
        self._free.clear()

    def suffices(self, job: JobView, leaving: Sequence[JobView] = ()) -> bool:
        """Return whether a unit of the level that all of a job requires has enough GPUs, with those of who leaves.

        For a job that only prefers a level that unit is the cluster. Otherwise no placement has a place for it.
        """
        if not whole_levels(job.required_levels) and not job.preferred_levels:
            return True
        units, free = self.of(job)
        if leaving:
            freed = np.array([gpu for each in leaving for gpu in each.gpus], np.int64)
            free = free + np.bincount(units[freed], minlength=len(free))
        return bool(free.max() >= job.num_gpus)

    def of(self, job: JobView) -> tuple[np.ndarray, np.ndarray]:
        """Return the unit of each GPU, of the narrowest level that all of a job requires, and the free GPUs of each.

        For a job that requires none the cluster is one unit.
        """
        level = min(whole_levels(job.required_levels), key=[*self._cluster.network.levels].index, default="")
        (units, count), what = self._unit_of(level), (level, job.memory_bytes)
        if (free := self._free.get(what)) is None:
            self._free[what] = free = np.bincount(units[self._cluster.eligible(job)], minlength=count)
        return units, free


def _units(cluster: ClusterView, level: str) -> tuple[np.ndarray, int]:
    """Return the unit of each GPU, and how many units there are; without a level all are in one."""
    units = cluster.units(level) if level else np.zeros(cluster.num_gpus, np.int64)
    return units, int(units.max()) + 1
