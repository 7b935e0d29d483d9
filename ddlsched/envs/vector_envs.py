"""The environments of many runs: one a door."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.batched_runs import ResizedRun, StartedRun, no_tables, with_run
from ddlsched.engine.driver import Simulation
from ddlsched.engine.field_values import Question
from ddlsched.engine.loop.batch.order import (
    BY_LOAD,
    BY_SERVER,
    BY_SERVER_LOAD,
    MOST_KEYS,
    NO_ORDER,
    ORDER_STEPS,
    OrderArrays,
)
from ddlsched.engine.loop.batch.places import PLACE_STEPS, PlaceArrays
from ddlsched.engine.loop.batch.sizes import SIZE_STEPS, SizeArrays
from ddlsched.engine.loop.batch.transfers import TRANSFER_STEPS, TransferArrays
from ddlsched.envs.single_envs import AllocationEnv, CommunicationEnv, OrderEnv, PlacementEnv
from ddlsched.envs.vector_env import SchedulingVectorEnv, Wait
from ddlsched.errors import InputError, label
from ddlsched.plugins.names import resolve
from ddlsched.policies.choosing import begun_placement
from ddlsched.policies.cluster_view import GpuKey, is_gpu_order
from ddlsched.workload.elastic_job import ElasticJob

_KEYS: dict[GpuKey, int] = {"load": BY_LOAD, "server": BY_SERVER, "server_load": BY_SERVER_LOAD}
_OF_JOBS = ("least", "most", "there", "held", "hold_until_ns", "given")


class _DecidedOutside:
    """A policy whose run is taken on from outside, so that it is not asked."""

    compiled: ClassVar[bool] = False

    def __init__(self, wait: Wait) -> None:
        self.advance_run = wait

    def _fail(self, *_: Any) -> Any:
        """Fail: what is decided is decided outside."""
        raise NotImplementedError

    place = admit = allocate = _fail


class _StartVectorEnv(SchedulingVectorEnv):
    """Many runs whose jobs start in compiled code."""

    def _adopt(self, number: int, simulation: Simulation) -> StartedRun:
        starts = StartedRun(simulation.parts)
        starts.remember()
        self._arrays = self._arrays._replace(starts=with_run(self._arrays.starts, number, simulation.parts))
        return starts


class OrderVectorEnv(_StartVectorEnv):
    """Many runs of :class:`~ddlsched.envs.single_envs.OrderEnv`, stepped by compiled code.

    So is ``placement`` if it is an order of GPUs (:class:`~ddlsched.policies.cluster_view.TakesGpusInOrder`), such as
    ``lwf`` and ``first-fit``. Jobs must not be stopped, moved or elastic, servers not fail, ``order`` must be one that
    is compiled, and ``placement`` must not ask to be woken. Parameters are the number of runs, and those of
    ``OrderEnv``.
    """

    single, steps = OrderEnv, ORDER_STEPS

    def _new_arrays(self, env: OrderEnv) -> OrderArrays:
        num_gpus, first_gpus = env.cluster.num_gpus, env.cluster.first_gpus.astype(np.int64)
        self._placement: Any = resolve("placement", env.placement)
        slots = self.num_envs, env.slots
        return OrderArrays(
            **self._observed_arrays(),
            mask=self._mask,
            seen=np.zeros(slots, np.int64),
            refused=np.zeros(slots, np.int8),
            room=np.zeros((*slots, 2), np.int64),
            gpus=np.zeros((self.num_envs, num_gpus), np.int64),
            orders=_orders(self._placement, num_gpus),
            first_gpus=first_gpus,
            multiples=env.cluster.common_multiple // np.diff(first_gpus),
            columns=np.zeros((num_gpus, MOST_KEYS), np.int64),
            starts=no_tables(self.num_envs, env.cluster.num_servers),
        )

    def _policies(self, env: OrderEnv, wait: Wait) -> dict[str, Any]:
        return {"placement": _PlacedByAnother(wait, self._placement)}

    def _adopt(self, number: int, simulation: Simulation) -> StartedRun:
        starts = super()._adopt(number, simulation)
        if hasattr(self._placement, "begin"):
            starts.may_begin_again = False
        return starts

    def _answers(self, number: int, outside: StartedRun) -> bool:
        run = self._runs[number]
        if run["question"] != Question.PLACEMENT:
            return False
        job, gpus = int(self._arrays.seen[number, run["job"]]), self._arrays.gpus[number]
        chosen = outside.place(job) if gpus[0] < 0 else gpus[: outside.num_gpus(job)].tolist()
        if chosen is not None:
            outside.start(job, chosen)
            run["num_started"] += 1
        return True


class _PlacedByAnother:
    """A placement policy whose run is taken on from outside, and which is asked where the job is that starts."""

    def __init__(self, wait: Wait, placement: Any) -> None:
        self._wait, self._placement = wait, placement

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return what the placement begins, with what goes on with the run."""
        begun = begun_placement(self._placement, cluster, rng)
        if hasattr(begun, "wake_s"):
            raise InputError(f"placement {label(begun)} asks to be woken; expected OrderEnv for it")
        asked = _DecidedOutside(self._wait)
        asked.place = begun.place  # type: ignore[method-assign]
        return asked


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


class PlacementVectorEnv(_StartVectorEnv):
    """Many runs of :class:`~ddlsched.envs.single_envs.PlacementEnv`, stepped by compiled code.

    Jobs must not be stopped, moved or elastic, servers not fail, and the order must be one that is compiled.
    Parameters are the number of runs, and those of ``PlacementEnv``.
    """

    single, steps = PlacementEnv, PLACE_STEPS

    def _new_arrays(self, env: PlacementEnv) -> PlaceArrays:
        each_gpu = self.num_envs, env.cluster.num_gpus
        return PlaceArrays(
            **self._observed_arrays(),
            mask=self._mask,
            gpus=np.zeros(each_gpu, np.int64),
            loads_ns=np.zeros(each_gpu, np.int64),
            first_gpus=env.cluster.first_gpus.astype(np.int64),
            starts=no_tables(self.num_envs, env.cluster.num_servers),
        )

    def _policies(self, env: PlacementEnv, wait: Wait) -> dict[str, Any]:
        return {"placement": _DecidedOutside(wait)}

    def _answers(self, number: int, outside: StartedRun) -> bool:
        run = self._runs[number]
        if run["question"] != Question.PLACEMENT:
            return False
        outside.start(int(run["job"]), self._arrays.gpus[number, : run["num_chosen"]].tolist())
        run["job"] = -1
        run["place"] += 1
        run["num_started"] += 1
        return True


class CommunicationVectorEnv(SchedulingVectorEnv):
    """Many runs of :class:`~ddlsched.envs.single_envs.CommunicationEnv`, stepped by compiled code.

    Parameters are the number of runs, and those of ``CommunicationEnv``.
    """

    single, steps = CommunicationEnv, TRANSFER_STEPS

    def _new_arrays(self, env: CommunicationEnv) -> TransferArrays:
        return TransferArrays(**self._observed_arrays())

    def _policies(self, env: CommunicationEnv, wait: Wait) -> dict[str, Any]:
        return {"communication": _DecidedOutside(wait), "placement": env.placement}


class AllocationVectorEnv(SchedulingVectorEnv):
    """Many runs of :class:`~ddlsched.envs.single_envs.AllocationEnv`, whose decisions are stepped by compiled code.

    What a round decides is carried out in Python. The order must be one that is compiled. Parameters are the number of
    runs, and those of ``AllocationEnv``.
    """

    single, steps = AllocationEnv, SIZE_STEPS

    def _new_arrays(self, env: AllocationEnv) -> SizeArrays:
        return SizeArrays(
            **self._observed_arrays(),
            mask=self._mask,
            **dict.fromkeys(_OF_JOBS, np.zeros((self.num_envs, 0), np.int64)),
        )

    def _policies(self, env: AllocationEnv, wait: Wait) -> dict[str, Any]:
        return {"allocation": _DecidedOutside(wait)}

    def _adopt(self, number: int, simulation: Simulation) -> ResizedRun:
        outside = ResizedRun(simulation.parts)
        outside.remember()
        jobs = [job for job in simulation.parts.state.workload if isinstance(job, ElasticJob)]
        self._make_room(len(jobs))
        self._arrays.least[number, : len(jobs)] = [job.min_gpus for job in jobs]
        self._arrays.most[number, : len(jobs)] = [job.max_gpus for job in jobs]
        return outside

    def _make_room(self, num_jobs: int) -> None:
        """Have room for a run of so many jobs."""
        before = self._arrays.there.shape[1]
        if num_jobs > before:
            wider = {name: np.zeros((self.num_envs, num_jobs), np.int64) for name in _OF_JOBS}
            for name, array in wider.items():
                array[:, :before] = getattr(self._arrays, name)
            self._arrays = self._arrays._replace(**wider)

    def _answers(self, number: int, outside: ResizedRun) -> bool:
        run, arrays = self._runs[number], self._arrays
        if run["question"] != Question.ALLOCATION:
            return False
        if run["in_round"]:
            outside.close_round(arrays.given[number, : run["count"]].tolist())
            run["in_round"] = 0
            return True
        there, held, hold_until_ns, num_gpus = outside.open_round()
        count = len(there)
        arrays.there[number, :count], arrays.held[number, :count] = there, held
        arrays.hold_until_ns[number, :count] = hold_until_ns
        run["in_round"], run["place"], run["count"] = 1, 0, count
        run["num_started"] = run["num_chosen"] = num_gpus
        return True
