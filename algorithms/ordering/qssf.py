"""Quasi-shortest service first (QSSF): predicted GPU time, from what is known of similar jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from algorithms.ordering.history import FinishedJobs
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import JobView

__all__ = ["QuasiShortestServiceFirst"]


@dataclass(frozen=True, kw_only=True)
class QuasiShortestServiceFirst:
    """The job of the least predicted compute time x GPUs; knows nobody's iterations.

    The prediction is the mean of what finished jobs of the same user and model computed on each of their GPUs, x the
    job's own GPUs; where none of the kind has finished, of all that have.

    It is asked in Python: its history is kept by the names of users and models.

    References
    ----------
    Hu et al., "Characterization and prediction of deep learning workloads in large-scale GPU datacenters",
    SC 2021, section 4.2 (there with gradient-boosted trees over months of history).
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Predicting:
        """Return the order with an empty history."""
        return _Predicting()

    def key(self, job: JobView, now_s: float) -> float:
        """Return the job's GPUs: all that counts without history."""
        return _Predicting().key(job, now_s)


class _Predicting:
    compiled: ClassVar[bool] = False  # its history is kept by user and model, which are texts

    def __init__(self) -> None:
        self._jobs = FinishedJobs(
            lambda job: ((), (job.user, job.model)), lambda job: job.attained_service_ns / job.num_gpus
        )

    def key(self, job: JobView, now_s: float) -> float:
        self._jobs.look(job, now_s)
        alike = self._jobs.of((job.user, job.model))
        count, total_ns = alike if alike[0] else self._jobs.of(())
        return job.num_gpus * (1.0 + total_ns / max(count, 1))
