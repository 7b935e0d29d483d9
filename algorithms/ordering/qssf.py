"""Quasi-shortest service first (QSSF): predicted GPU time, from what is known of similar jobs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import JobView

__all__ = ["QuasiShortestServiceFirst"]


@dataclass(frozen=True, kw_only=True)
class QuasiShortestServiceFirst:
    """The job of the least predicted compute time x GPUs; knows nobody's iterations.

    The prediction is the mean of what jobs of the same user and model have been seen to attain for each of
    their GPUs, x the job's own GPUs; where no other job of the kind has been seen, of all jobs.

    It is asked in Python: what it answers depends on what it has seen, by the names of users and models.

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
        self._seen_ns: dict[int, float] = {}
        self._kinds: dict[tuple[str | None, str | None], set[int]] = defaultdict(set)

    def key(self, job: JobView, now_s: float) -> float:
        self._seen_ns[job.number] = job.attained_service_ns / job.num_gpus
        kind = self._kinds[job.user, job.model]
        kind.add(job.number)
        known = kind - {job.number} or self._seen_ns.keys()
        return job.num_gpus * (1.0 + sum(self._seen_ns[other] for other in known) / len(known))
