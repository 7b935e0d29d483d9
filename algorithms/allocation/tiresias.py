"""Tiresias as it stops jobs: discretised two-dimensional least attained service over jobs of a fixed size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.ranges import Checked, ranged

_ROUNDING_GPU_S = 1e-6
"""A wake comes at a whole nanosecond, so service may lack this much of its threshold."""


@dataclass(frozen=True, kw_only=True)
class PreemptiveTiresias(Checked, who="preemptive-tiresias"):
    """GPUs to the jobs that have had the least GPUs x time, in few queues; others stop, and resume later.

    A job gets its fewest GPUs or none (state a fixed size as ``min_gpus = max_gpus``), for itself. Queues go by
    attained service; within a queue a job that started earlier comes first. A job that does not fit is skipped, and
    one behind it that does is stopped again once the first fits. Needs no durations. Left out: the promotion of jobs
    that have waited long, and the choice of GPUs by how skewed a model's tensors are (the engine packs closely).

    Parameters
    ----------
    threshold_gpu_s
        Service, while it held GPUs, at which a job moves to the second queue, GPU-seconds.
    queues
        How many; each threshold is ten times the one before.

    References
    ----------
    Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.3.
    """

    threshold_gpu_s: float = ranged(100.0, 0.0, 1e9, above=True)
    queues: int = ranged(3, 1, 10)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Queues:
        """Return the queues of a run, which remember what each job has had."""
        return _Queues([self.threshold_gpu_s * 10**queue for queue in range(self.queues - 1)])


class _Queues:
    def __init__(self, thresholds_gpu_s: list[float]) -> None:
        self._thresholds_gpu_s = thresholds_gpu_s
        self._attained_gpu_s: dict[int, float] = {}
        self._running: dict[int, int] = {}
        self._then_s = 0.0

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the fewest GPUs of each job that comes first."""
        for number, num_gpus in self._running.items():
            self._attained_gpu_s[number] = self._attained(number) + num_gpus * (now_s - self._then_s)
        self._then_s, self._running = now_s, {}
        answer, left = {}, capacity.num_gpus
        for view in sorted(jobs, key=self._key):
            if view.job.min_gpus <= left:
                left -= view.job.min_gpus
                self._running[view.number] = view.job.min_gpus
                answer[view.job_id] = Allocation(view.job.min_gpus)
        return answer

    def _attained(self, number: int) -> float:
        return self._attained_gpu_s.get(number, 0.0)

    def _queue(self, number: int) -> int:
        return bisect_right(self._thresholds_gpu_s, self._attained(number) + _ROUNDING_GPU_S)

    def _key(self, view: ElasticJobView) -> tuple[int, float]:
        return self._queue(view.number), inf if view.start_s is None else view.start_s

    def wake_s(self, now_s: float) -> float | None:
        """Return when a running job moves to the next queue."""
        ends_s = [
            self._then_s + (self._thresholds_gpu_s[queue] - self._attained(number)) / num_gpus
            for number, num_gpus in self._running.items()
            if (queue := self._queue(number)) < len(self._thresholds_gpu_s)
        ]
        return min(ends_s, default=None)
