"""A placement policy that starts one job of the queue after the other, each chosen among those that have room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, label
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy, Start
from ddlsched.policies.queue_features import queue_features
from ddlsched.policies.views import ClusterView, JobQueue, JobView

__all__ = ["Choice", "Choosing", "begun_placement"]

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
        wake_s: float | None = self._placement.wake_s(now_s) if hasattr(self._placement, "wake_s") else None
        return wake_s

    def _chosen(self, features: np.ndarray, has_room: np.ndarray, cluster: ClusterView) -> int:
        """Return the place of who starts, or the number of slots: nobody."""
        if not has_room.any():
            return self._slots
        allowed = np.append(has_room, not cluster.is_idle)
        if allowed.sum() == 1:
            return int(np.argmax(allowed))
        return self._choose(features, allowed, cluster.now_s)
