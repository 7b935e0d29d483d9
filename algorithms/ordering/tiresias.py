"""Least attained service (LAS), and in few queues (Tiresias), for jobs that keep their GPUs and ones that stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ddlsched.policies.stopping import StopsByKey
from ddlsched.policies.views import JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class LeastAttainedService:
    """The job that has had the least compute time x GPUs; needs no knowledge of durations.

    The continuous form: Tiresias' two-dimensional LAS without its discretised queues, and without stopping a
    placed job.

    References
    ----------
    Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.2.
    """

    key_is_linear: ClassVar[bool] = True

    def key(self, job: JobView, now_s: float) -> int:
        """Return the service used, nanoseconds."""
        return job.used_service_ns


@dataclass(frozen=True, kw_only=True)
class Tiresias(Checked, who="tiresias"):
    """Jobs in few queues by attained compute time x GPUs, first come first served within each.

    Needs no durations; unlike :class:`LeastAttainedService` it does not switch between
    jobs that have had about the same. It orders the queue, GPUs and transfers; a placed job keeps its GPUs,
    which Tiresias would take away.

    Parameters
    ----------
    threshold_gpu_s
        Attained service at which a job moves to the second queue, GPU-seconds.
    queues
        How many; each threshold is ten times the one before.

    References
    ----------
    Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.3.
    """

    threshold_gpu_s: float = ranged(100.0, 0.0, 1e9, above=True)
    queues: int = ranged(3, 1, 10)

    def key(self, job: JobView, now_s: float) -> tuple[int, int]:
        """Return the queue and the arrival, nanoseconds."""
        used_gpu_s = job.used_service_ns / NS_PER_S
        queue = 0
        factor = 1
        while queue < self.queues - 1 and used_gpu_s >= self.threshold_gpu_s * factor:
            queue += 1
            factor *= 10
        return queue, job.arrival_ns


@dataclass(frozen=True, kw_only=True)
class StoppingTiresias(Tiresias, StopsByKey, who="stopping-tiresias"):
    """Tiresias as published: a job that waits takes the GPUs of running jobs of lower queues, or that came later.

    Left out: the promotion of jobs that have waited long, and the choice of GPUs by how skewed a model's tensors are.

    Parameters
    ----------
    interval_s
        While jobs wait they are compared with those that run at least this often, seconds: one that runs may have
        gone down a queue.

    References
    ----------
    Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019, section 3.3.
    """

    interval_s: float = ranged(60.0, 0.001, 1e9)

    def wake_s(self, now_s: float) -> float:
        """Return the next multiple of the interval."""
        return (math.floor(now_s / self.interval_s + 1e-9) + 1) * self.interval_s
