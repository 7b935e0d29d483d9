"""Discretised two-dimensional least attained service (Tiresias), which also takes GPUs from running jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from algorithms.ordering.tiresias import Tiresias
from ddlsched.policies.stopping import StopsByKey
from ddlsched.ranges import check_fields, ranged

__all__ = ["StoppingTiresias"]


@dataclass(frozen=True, kw_only=True)
class StoppingTiresias(Tiresias, StopsByKey):
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

    def __post_init__(self) -> None:
        check_fields(self, "stopping-tiresias")

    def wake_s(self, now_s: float) -> float:
        """Return the next multiple of the interval."""
        return (math.floor(now_s / self.interval_s + 1e-9) + 1) * self.interval_s
