"""Who of the queue starts next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.envs.job_seconds import JobSeconds
from ddlsched.envs.scheduling_env import Ask, Decision, SchedulingEnv
from ddlsched.errors import InputError
from ddlsched.policies.choosing import JOB_FEATURES, Choosing, begun_placement
from ddlsched.policies.doors import PlacementPolicy
from ddlsched.units import is_whole
from ddlsched.workload.job import Workload

__all__ = ["OrderEnv"]


class OrderEnv(SchedulingEnv):
    """Who of the queue starts next, or nobody until something has changed.

    Asked while a job has room. Action i starts the i-th job of the queue, where ``placement`` puts it; the last action
    waits. Waiting is not allowed on an idle cluster. Decisions without a choice are not asked for.

    ``queue`` has a row a job, columns :data:`~ddlsched.policies.choosing.JOB_FEATURES`, in the order of
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

    doors: ClassVar[frozenset[str]] = frozenset({"placement"})

    def __init__(
        self,
        workload: Workload | str | Path,
        *,
        placement: PlacementPolicy | str = "lwf",
        slots: int = 16,
        **given: Any,
    ) -> None:
        if not is_whole(slots, 1):
            raise InputError(f"slots is {slots!r}; expected a whole number from 1")
        self.slots, self.placement = slots, placement
        super().__init__(workload, **given)

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        return {"queue": (self.slots, len(JOB_FEATURES))}, self.slots + 1

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return a placement policy that asks who starts."""
        return {"placement": _AskedOrder(ask, seconds, self.placement, self.slots)}


@dataclass(frozen=True)
class _AskedOrder:
    ask: Ask
    seconds: JobSeconds
    placement: PlacementPolicy | str
    slots: int

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Choosing:
        """Return the policy with its placement."""
        return Choosing(begun_placement(self.placement, cluster, rng), self.slots, self._choose, self.seconds.started)

    def _choose(self, features: np.ndarray, allowed: np.ndarray, now_s: float) -> int:
        return self.ask(Decision(now_s, {"queue": features}, allowed))
