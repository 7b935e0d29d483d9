"""How many GPUs each elastic job has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ddlsched.envs.job_seconds import JobSeconds
from ddlsched.envs.scheduling_env import Ask, AskedPolicy, Decision, SchedulingEnv
from ddlsched.errors import InputError
from ddlsched.policies.choosing import log_share
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Workload

__all__ = ["JOB_FEATURES", "SUMS", "AllocationEnv"]

JOB_FEATURES = ("gpus", "least", "most", "samples_left", "waited", "rescaling_left")
SUMS = ("gpus_left", "jobs_left", "jobs")


class AllocationEnv(SchedulingEnv):
    """How many GPUs each elastic job has from now on, job by job in the order of arrival: action n gives n GPUs.

    Asked whenever a job came or left; the batch is the largest. 0 is not allowed to the last job while the cluster
    would be idle. All jobs must be elastic.

    ``job`` has the GPUs that it has, at least needs and at most uses, as shares of the cluster's; samples left, time
    since its arrival and time for which it is still being resized, s, by
    :func:`~ddlsched.policies.choosing.log_share`. ``cluster`` has the GPUs not given yet as a share; the jobs to
    be asked after this one, and all, by the same function.
    """

    doors: ClassVar[frozenset[str]] = frozenset({"allocation"})

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        return {"job": (len(JOB_FEATURES),), "cluster": (len(SUMS),)}, self.cluster.num_gpus + 1

    def _check(self, jobs: Workload) -> None:
        other = next((job.job_id for job in jobs if not isinstance(job, ElasticJob)), None)
        if other is not None:
            raise InputError(f"job {other!r} is not elastic; expected elastic jobs only")

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return an allocation policy that asks how many."""
        return {"allocation": _AskedAllocation(ask, seconds)}


@dataclass(frozen=True)
class _AskedAllocation(AskedPolicy):
    ask: Ask
    seconds: JobSeconds

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return what is decided for each job."""
        self.seconds.there(len(jobs))
        left, given = capacity.num_gpus, {}
        for place, job in enumerate(jobs):
            last_chance = left == capacity.num_gpus and place + 1 == len(jobs)
            num_gpus = self._chosen(job, (left, len(jobs) - 1 - place, len(jobs)), capacity, now_s, last_chance)
            if num_gpus:
                given[job.job_id] = Allocation(num_gpus)
            left -= num_gpus
        return given

    def _chosen(
        self, job: ElasticJobView, sums: tuple[int, int, int], capacity: CapacityView, now_s: float, last_chance: bool
    ) -> int:
        num_gpus, left = capacity.cluster.num_gpus, sums[0]
        least, most = job.job.min_gpus, min(job.job.max_gpus, left)
        if most < least:
            return 0
        if last_chance and most == least:
            return least
        mask = np.zeros(num_gpus + 1, bool)
        mask[least : most + 1] = True
        mask[0] = not last_chance
        observed = {
            "job": np.array(_features(job, num_gpus, now_s), np.float32),
            "cluster": np.array([left / num_gpus, log_share(sums[1]), log_share(sums[2])], np.float32),
        }
        return self.ask(Decision(now_s, observed, mask))


def _features(job: ElasticJobView, num_gpus: int, now_s: float) -> tuple[float, ...]:
    return (
        job.num_gpus / num_gpus,
        job.job.min_gpus / num_gpus,
        min(job.job.max_gpus, num_gpus) / num_gpus,
        log_share(job.samples_left),
        log_share(now_s - job.job.arrival_s),
        log_share(job.rescaling_left_s),
    )
