"""Placement policies that start one job of the queue after the other, and the queue as numbers for learned ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, label
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy, Start
from ddlsched.policies.job_view import JobsTogether
from ddlsched.policies.views import ClusterView, JobQueue, JobView

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
    num_gpus = together.column("num_gpus")
    eligible, most_on_a_server = cluster.room_for(together.column("memory_bytes"))
    has_room[: len(jobs)] = eligible >= num_gpus
    if has_room.any():
        features[: len(jobs), -1] = 1.0
        features[: len(jobs), :-1].T[:] = job_features(
            (num_gpus, eligible, most_on_a_server, cluster.num_gpus),
            together.remaining_service_ns.astype(np.float64),
            together.column("message_bytes"),
            cluster.now_ns - together.column("arrival_ns").astype(np.float64),
            log_shares,
        )
    return features, has_room


def job_features(gpus: Any, service_ns: Any, message_bytes: Any, waited_ns: Any, shares: Any) -> Any:
    """Return :data:`JOB_FEATURES` of jobs but for the last: of arrays here, and of numbers where it is compiled.

    Parameters
    ----------
    gpus
        Those that a job needs, those eligible for it, the most of these on a server, and the cluster's.
    service_ns, message_bytes, waited_ns
        Of each job: compute left x GPUs, bytes of an iteration, and time since its arrival.
    shares
        :func:`log_shares`, or its compiled form.
    """
    needed, eligible, most, num_gpus = gpus
    one_server = (most >= needed) * 1.0
    time_left, message = shares(service_ns / needed / 1e9), shares(message_bytes / 1e6)
    return needed / num_gpus, eligible / num_gpus, one_server, time_left, message, shares(waited_ns / 1e9)


Choice: TypeAlias = Callable[[np.ndarray, np.ndarray, float], int]
"""From the features of the first jobs (slots, 7), what is allowed (slots + 1,), and the time in seconds, to the place
of the job that starts; the last place: nobody."""


def begun_placement(placement: PlacementPolicy | str, cluster: Cluster, rng: np.random.Generator) -> Any:
    """Return what is asked during a run of a placement policy, given by itself or by its name.

    Raises
    ------
    InputError
        It decides about the whole queue itself.
    """
    given: Any = resolve("placement", placement)
    begun = given.begin(cluster, rng) if hasattr(given, "begin") else given
    if not hasattr(begun, "place"):
        raise InputError(f"placement {label(given)} decides about the whole queue; expected one that has place")
    return begun


class Choosing:
    """Asks who starts while some job has room and there is a choice; nobody may be chosen unless the cluster is idle.

    Parameters
    ----------
    placement
        Where who was chosen runs, with ``place``; a job that it refuses is not offered again in the round.
    slots
        Jobs of the queue that are looked at.
    choose
        Who starts.
    started
        Told of each job that starts.
    """

    def __init__(
        self, placement: Any, slots: int, choose: Choice, started: Callable[[JobView], None] = lambda _: None
    ) -> None:
        self._placement, self._slots, self._choose, self._started = placement, slots, choose, started

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Yield who is chosen, until nobody is."""
        seen, rest, refused = list(queue[: self._slots]), iter(queue[self._slots :]), set[int]()
        while seen:
            features, has_room = queue_features(seen, cluster, self._slots)
            if refused:
                has_room[: len(seen)] &= [job.number not in refused for job in seen]
            place = self._chosen(features, has_room, cluster)
            if place == self._slots:
                return
            job = seen[place]
            gpus = self._placement.place(job, cluster)
            if gpus is None:
                refused.add(job.number)
                continue
            self._started(job)
            yield job, gpus
            del seen[place]
            seen += islice(rest, 1)

    def wake_s(self, now_s: float) -> float | None:
        """Return when the placement policy wants to be asked again."""
        return self._placement.wake_s(now_s) if hasattr(self._placement, "wake_s") else None

    def _chosen(self, features: np.ndarray, has_room: np.ndarray, cluster: ClusterView) -> int:
        """Return the place of who starts, or the number of slots: nobody."""
        if not has_room.any():
            return self._slots
        allowed = np.append(has_room, not cluster.is_idle)
        if allowed.sum() == 1:
            return int(np.argmax(allowed))
        return self._choose(features, allowed, cluster.now_s)
