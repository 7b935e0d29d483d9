"""The jobs that wait as an array of numbers from 0 to 1, for policies that are learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddlsched.policies.cluster_view import ClusterView
from ddlsched.policies.job_view import JobView
from ddlsched.units import NS_PER_S

__all__ = ["JOB_FEATURES", "job_features", "log_share", "queue_features"]

JOB_FEATURES: Final = ("gpus", "eligible", "one_server", "time_left", "message", "waited", "present")
"""Of a job: GPUs that it needs and GPUs with room for it, both as shares of the cluster's; whether one server has room
for all of it; compute time left a GPU, s, bytes of an iteration, MB, time waited, s, by :func:`log_share`; and 1."""

_LARGEST_LOG = 25.0  # log1p of the clock's end in seconds, and of the largest message in MB, is below.


def log_share(value: float) -> float:
    """Return log(1 + value) / 25: from 0 to 1 for any time in seconds."""
    return min(math.log1p(max(value, 0.0)) / _LARGEST_LOG, 1.0)


def queue_features(jobs: Sequence[JobView], cluster: ClusterView, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of the first jobs that wait, and which of them have room.

    Parameters
    ----------
    jobs
        Those that wait, in the queue's order.
    cluster
        As it is now.
    slots
        Jobs that are looked at; rows of others are 0.

    Returns
    -------
    tuple
        Features of shape (slots, 7), float32, columns :data:`JOB_FEATURES`; whether enough GPUs are eligible, of
        shape (slots,).
    """
    rooms: dict[int, tuple[int, int]] = {}
    features, has_room = np.zeros((slots, len(JOB_FEATURES)), np.float32), np.zeros(slots, bool)
    for place, job in enumerate(jobs[:slots]):
        if job.memory_bytes not in rooms:
            rooms[job.memory_bytes] = _room(job, cluster)
        features[place] = job_features(job, cluster, *rooms[job.memory_bytes])
        has_room[place] = rooms[job.memory_bytes][0] >= job.num_gpus
    return features, has_room


def job_features(job: JobView, cluster: ClusterView, eligible: int, most_on_a_server: int) -> tuple[float, ...]:
    """Return the features of a job for which so many GPUs are eligible, and so many on one server."""
    num_gpus = job.num_gpus
    return (
        num_gpus / cluster.num_gpus,
        eligible / cluster.num_gpus,
        float(most_on_a_server >= num_gpus),
        log_share(job.remaining_service_ns / num_gpus / NS_PER_S),
        log_share(job.message_bytes / 1e6),
        log_share((cluster.now_ns - job.arrival_ns) / NS_PER_S),
        1.0,
    )


def _room(job: JobView, cluster: ClusterView) -> tuple[int, int]:
    """Return how many GPUs are eligible for a job, and how many on the server that has the most."""
    eligible = cluster.eligible(job)
    return len(eligible), int(np.bincount(cluster.servers_of(eligible), minlength=1).max())
