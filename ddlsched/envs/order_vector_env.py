"""Who of the queue starts next, in many runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.driver import Simulation
from ddlsched.engine.loop.gpu_choice import BY_LOAD, BY_SERVER, BY_SERVER_LOAD, MOST_KEYS, NO_ORDER
from ddlsched.engine.loop.order_steps import OrderSteps, compile_decisions, decide_order
from ddlsched.engine.loop.stepped_runs import loop_address, placing_address
from ddlsched.engine.outside_starts import OutsideStarts
from ddlsched.engine.records.field_values import Question
from ddlsched.envs.order_env import OrderEnv
from ddlsched.envs.scheduling_env import Observation
from ddlsched.envs.start_vector_env import StartVectorEnv
from ddlsched.envs.stepped_vector_env import Wait
from ddlsched.errors import InputError, label
from ddlsched.plugins.names import resolve
from ddlsched.policies.choosing import begun_placement
from ddlsched.policies.doors import PlacementPolicy
from ddlsched.policies.gpu_order import GpuKey, is_gpu_order
from ddlsched.policies.queue_features import JOB_FEATURES
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.workload.job import Workload

__all__ = ["OrderVectorEnv"]

_KEYS: dict[GpuKey, int] = {"load": BY_LOAD, "server": BY_SERVER, "server_load": BY_SERVER_LOAD}


class OrderVectorEnv(StartVectorEnv):
    """Many runs of :class:`~ddlsched.envs.order_env.OrderEnv`, stepped by compiled code.

    So is ``placement`` if it is an order of GPUs (:class:`~ddlsched.policies.gpu_order.TakesGpusInOrder`), as ``lwf``
    and ``first-fit`` are. Jobs must not be stopped, moved or elastic, servers not fail, ``order`` must be one that is
    compiled, and ``placement`` must not ask to be woken.

    Parameters
    ----------
    num_envs
        How many runs.
    workload, cluster, settings, unit_s, placement, slots
        As of :class:`~ddlsched.envs.order_env.OrderEnv`, the same for all.
    """

    def __init__(
        self,
        num_envs: int,
        workload: Workload | str | Path,
        *,
        cluster: Cluster | None = None,
        settings: Mapping[str, Any] | None = None,
        unit_s: float = 3600.0,
        placement: PlacementPolicy | str = "lwf",
        slots: int = 16,
    ) -> None:
        def make() -> OrderEnv:
            return OrderEnv(
                workload, cluster=cluster, settings=settings, unit_s=unit_s, placement=placement, slots=slots
            )

        super().__init__(num_envs, make)
        self._placement: Any = resolve("placement", placement)
        of_cluster = self._envs[0].cluster
        num_gpus, first_gpus = of_cluster.num_gpus, of_cluster.first_gpus.astype(np.int64)
        self._arrays = OrderSteps(
            queue=np.zeros((num_envs, slots, len(JOB_FEATURES)), np.float32),
            mask=self._mask,
            seen=np.zeros((num_envs, slots), np.int64),
            refused=np.zeros((num_envs, slots), np.int8),
            room=np.zeros((num_envs, slots, 2), np.int64),
            gpus=np.zeros((num_envs, num_gpus), np.int64),
            orders=_orders(self._placement, num_gpus),
            first_gpus=first_gpus,
            multiples=of_cluster.common_multiple // np.diff(first_gpus),
            columns=np.zeros((num_gpus, MOST_KEYS), np.int64),
        )
        compile_decisions()

    def _policies(self, env: OrderEnv, wait: Wait) -> dict[str, Any]:
        return {"placement": _StartedInBatches(wait, self._placement)}

    def _adopt(self, number: int, simulation: Simulation) -> OutsideStarts:
        starts = super()._adopt(number, simulation)
        if hasattr(self._placement, "begin"):
            starts.may_begin_again = False
        return starts

    def _answers(self, number: int, outside: OutsideStarts) -> bool:
        run = self._runs[number]
        if run["question"] != Question.PLACEMENT:
            return False
        job, gpus = int(self._arrays.seen[number, run["job"]]), self._arrays.gpus[number]
        chosen = outside.place(job) if gpus[0] < 0 else gpus[: outside.num_gpus(job)].tolist()
        if chosen is not None:
            outside.start(job, chosen)
            run["num_started"] += 1
        return True

    def _decide(self) -> None:
        decide_order(self._runs, self._arrays, self._tables, loop_address(), placing_address())

    def _seen(self) -> Observation:
        return {"queue": self._arrays.queue}


def _orders(placement: Any, num_gpus: int) -> np.ndarray:
    """Return by what a placement policy orders the GPUs of a job of as many as the row, as compiled code has it."""
    orders = np.zeros((num_gpus + 1, MOST_KEYS), np.int64)
    if not is_gpu_order(placement):
        orders[:, 0] = NO_ORDER
        return orders
    for wanted in range(1, num_gpus + 1):
        keys = [_KEYS[key] for key in placement.gpu_order(wanted)]
        orders[wanted, : len(keys)] = keys
    return orders


class _StartedInBatches:
    """A placement policy whose run is taken on from outside, and which is asked where the job is that starts."""

    def __init__(self, wait: Wait, placement: Any) -> None:
        self._wait, self._placement = wait, placement

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Begun:
        """Return the policy with its placement."""
        return _Begun(self._wait, begun_placement(self._placement, cluster, rng))


class _Begun:
    def __init__(self, wait: Wait, placement: Any) -> None:
        if hasattr(placement, "wake_s"):
            raise InputError(f"placement {label(placement)} asks to be woken; expected OrderEnv for it")
        self.advance_run, self._placement = wait, placement

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return what the placement policy answers."""
        gpus: Sequence[GpuId] | None = self._placement.place(job, cluster)
        return gpus
