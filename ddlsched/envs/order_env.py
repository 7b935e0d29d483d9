"""Who of the queue starts next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ddlsched.cluster.cluster import Cluster
from ddlsched.envs.job_seconds import JobSeconds
from ddlsched.envs.scheduling_env import SchedulingEnv
from ddlsched.envs.stepping import Ask, Decision
from ddlsched.errors import InputError
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy, Start
from ddlsched.policies.queue_features import JOB_FEATURES, queue_features
from ddlsched.policies.views import ClusterView, JobQueue
from ddlsched.units import is_whole
from ddlsched.workload.job import Workload

__all__ = ["OrderEnv"]


class OrderEnv(SchedulingEnv):
    """Who of the queue starts next, or nobody until something has changed.

    Asked while a job has room. Action i starts the i-th job of the queue, where ``placement`` puts it; the last action
    waits. Waiting is not allowed on an idle cluster. Decisions without a choice are not asked for.

    ``queue`` has a row a job, columns :data:`~ddlsched.policies.queue_features.JOB_FEATURES`, in the order of
    ``order``.

    Parameters
    ----------
    workload, cluster, settings, unit_s
        As of :class:`~ddlsched.envs.scheduling_env.SchedulingEnv`.
    placement
        Where jobs run: a policy with ``place``, or its name.
    slots
        Jobs of the queue that are seen.
    """

    door: ClassVar[str] = "placement"

    def __init__(
        self,
        workload: Workload | str | Path,
        *,
        cluster: Cluster | None = None,
        settings: Mapping[str, Any] | None = None,
        unit_s: float = 3600.0,
        placement: PlacementPolicy | str = "lwf",
        slots: int = 16,
    ) -> None:
        super().__init__(workload, cluster=cluster, settings=settings, unit_s=unit_s)
        if not is_whole(slots, 1):
            raise InputError(f"slots is {slots!r}; expected a whole number from 1")
        self.slots, self._placement = slots, resolve("placement", placement)
        if not hasattr(self._placement, "place"):
            raise InputError(f"placement {placement!r} has no place; expected a policy that goes job by job")
        self._with_mask({"queue": spaces.Box(0, 1, (slots, len(JOB_FEATURES)), np.float32)}, slots + 1)

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return a placement policy that asks who starts."""
        return {"placement": _AskedOrder(ask, seconds, self._placement, self.slots)}


@dataclass(frozen=True)
class _AskedOrder:
    ask: Ask
    seconds: JobSeconds
    placement: Any
    slots: int

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Yield who is chosen, until nobody is."""
        left = list(queue)
        refused: set[int] = set()
        while left:
            features, allowed = queue_features(left, cluster, self.slots)
            allowed &= [job.number not in refused for job in left[: self.slots]] + [False] * (self.slots - len(left))
            place = self._chosen(features, allowed, cluster)
            if place == self.slots:
                return
            job = left[place]
            gpus = self.placement.place(job, cluster)
            if gpus is None:
                refused.add(job.number)
                continue
            self.seconds.started(job)
            yield left.pop(place), gpus

    def _chosen(self, features: np.ndarray, allowed: np.ndarray, cluster: ClusterView) -> int:
        """Return the place of who starts, or ``slots``: nobody."""
        if not allowed.any():
            return self.slots
        mask = np.append(allowed, not cluster.is_idle)
        if mask.sum() == 1:
            return int(np.argmax(mask))
        return self.ask(Decision(cluster.now_s, {"queue": features}, mask))
