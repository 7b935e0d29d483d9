"""How many GPUs each elastic job has, in many runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.driver import Simulation
from ddlsched.engine.loop.allocation_steps import AllocationSteps, compile_decisions, decide_sizes
from ddlsched.engine.loop.stepped_runs import loop_address
from ddlsched.engine.outside_allocations import OutsideAllocations
from ddlsched.engine.records.field_values import Question
from ddlsched.envs.allocation_env import JOB_FEATURES, SUMS, AllocationEnv
from ddlsched.envs.scheduling_env import Observation, SchedulingEnv
from ddlsched.envs.stepped_vector_env import SteppedVectorEnv, Wait
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Workload

__all__ = ["AllocationVectorEnv"]

_OF_JOBS = ("least", "most", "there", "held", "hold_until_ns", "given")


class AllocationVectorEnv(SteppedVectorEnv):
    """Many runs of :class:`~ddlsched.envs.allocation_env.AllocationEnv`, whose decisions are stepped by compiled code.

    What a round decides is carried out in Python. The order must be one that is compiled.

    Parameters
    ----------
    num_envs
        How many runs.
    workload, cluster, settings, unit_s
        As of :class:`~ddlsched.envs.allocation_env.AllocationEnv`, the same for all.
    """

    def __init__(
        self,
        num_envs: int,
        workload: Workload | str | Path,
        *,
        cluster: Cluster | None = None,
        settings: Mapping[str, Any] | None = None,
        unit_s: float = 3600.0,
    ) -> None:
        super().__init__(num_envs, lambda: AllocationEnv(workload, cluster=cluster, settings=settings, unit_s=unit_s))
        none = np.zeros((num_envs, 0), np.int64)
        self._arrays = AllocationSteps(
            job=np.zeros((num_envs, len(JOB_FEATURES)), np.float32),
            cluster=np.zeros((num_envs, len(SUMS)), np.float32),
            mask=self._mask,
            **dict.fromkeys(_OF_JOBS, none),
        )
        compile_decisions()

    def _policies(self, env: SchedulingEnv, wait: Wait) -> dict[str, Any]:
        return {"allocation": _GivenInBatches(wait)}

    def _adopt(self, number: int, simulation: Simulation) -> OutsideAllocations:
        outside = OutsideAllocations(simulation.parts)
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

    def _answers(self, number: int, outside: OutsideAllocations) -> bool:
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

    def _decide(self) -> None:
        decide_sizes(self._runs, self._arrays, loop_address())

    def _seen(self) -> Observation:
        return {"job": self._arrays.job, "cluster": self._arrays.cluster}


class _GivenInBatches:
    """An allocation policy whose run is taken on from outside."""

    def __init__(self, wait: Wait) -> None:
        self.advance_run = wait

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Fail: GPUs are given outside."""
        raise NotImplementedError
