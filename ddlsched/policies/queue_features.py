"""The jobs that wait as an array of numbers from 0 to 1, for policies that are learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddlsched.policies.cluster_view import ClusterView
from ddlsched.policies.job_view import JobsTogether, JobView
from ddlsched.units import NS_PER_S

__all__ = ["JOB_FEATURES", "LARGEST_LOG", "log_share", "log_shares", "queue_features"]

JOB_FEATURES: Final = ("gpus", "eligible", "one_server", "time_left", "message", "waited", "present")
"""Of a job: GPUs that it needs and GPUs with room for it, both as shares of the cluster's; whether one server has room
for all of it; compute time left a GPU, s, bytes of an iteration, MB, time waited, s, by :func:`log_share`; and 1."""

LARGEST_LOG = 25.0  # log1p of the clock's end in seconds, and of the largest message in MB, is below.


def log_share(value: float) -> float:
    """Return log(1 + value) / 25: from 0 to 1 for any time in seconds."""
    if value <= 0.0:
        return 0.0
    share = math.log1p(value) / LARGEST_LOG
    return 1.0 if share > 1.0 else share


def log_shares(values: np.ndarray) -> np.ndarray:
    """Return :func:`log_share` of each of some values from 0."""
    shares: np.ndarray = np.minimum(np.log1p(values) / LARGEST_LOG, 1.0)
    return shares


def queue_features(jobs: Sequence[JobView], cluster: ClusterView, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of jobs that wait, and which of them have room.

    Parameters
    ----------
    jobs
        The first that wait, at most ``slots``, in the queue's order.
    cluster
        As it is now.
    slots
        Rows; those without a job are 0.

    Returns
    -------
    tuple
        Features of shape (slots, 7), float32, columns :data:`JOB_FEATURES`, all 0 if no job has room; whether enough
        GPUs are eligible, of shape (slots,).
    """
    features, has_room = np.zeros((slots, len(JOB_FEATURES)), np.float32), np.zeros(slots, bool)
    together = JobsTogether(jobs)
    num_gpus = together.num_gpus
    eligible, most_on_a_server = cluster.room_for(together.memory_bytes)
    has_room[: len(jobs)] = eligible >= num_gpus
    if has_room.any():
        rows = features[: len(jobs)].T
        rows[0], rows[1] = num_gpus / cluster.num_gpus, eligible / cluster.num_gpus
        rows[2] = most_on_a_server >= num_gpus
        rows[3] = log_shares(together.remaining_service_ns.astype(np.float64) / num_gpus / NS_PER_S)
        rows[4] = log_shares(together.message_bytes / 1e6)
        rows[5] = log_shares((cluster.now_ns - together.arrival_ns.astype(np.float64)) / NS_PER_S)
        rows[6] = 1.0
    return features, has_room
