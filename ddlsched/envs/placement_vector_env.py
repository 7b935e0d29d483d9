"""On which servers jobs run, in many runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.loop.placement_steps import PlacementSteps, compile_decisions, decide_places
from ddlsched.engine.loop.stepped_runs import loop_address, placing_address
from ddlsched.engine.outside_starts import OutsideStarts
from ddlsched.engine.records.field_values import Question
from ddlsched.envs.placement_env import SERVER_FEATURES, PlacementEnv
from ddlsched.envs.scheduling_env import Observation, SchedulingEnv
from ddlsched.envs.start_vector_env import StartVectorEnv
from ddlsched.envs.stepped_vector_env import Wait
from ddlsched.policies.queue_features import JOB_FEATURES
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.workload.job import Workload

__all__ = ["PlacementVectorEnv"]


class PlacementVectorEnv(StartVectorEnv):
    """Many runs of :class:`~ddlsched.envs.placement_env.PlacementEnv`, stepped by compiled code.

    Jobs must not be stopped, moved or elastic, servers not fail, and the order must be one that is compiled.

    Parameters
    ----------
    num_envs
        How many runs.
    workload, cluster, settings, unit_s
        As of :class:`~ddlsched.envs.placement_env.PlacementEnv`, the same for all.
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
        super().__init__(num_envs, lambda: PlacementEnv(workload, cluster=cluster, settings=settings, unit_s=unit_s))
        of_cluster = self._envs[0].cluster
        num_gpus = of_cluster.num_gpus
        self._arrays = PlacementSteps(
            job=np.zeros((num_envs, len(JOB_FEATURES)), np.float32),
            servers=np.zeros((num_envs, of_cluster.num_servers, len(SERVER_FEATURES)), np.float32),
            mask=self._mask,
            gpus=np.zeros((num_envs, num_gpus), np.int64),
            loads_ns=np.zeros((num_envs, num_gpus), np.int64),
            first_gpus=of_cluster.first_gpus.astype(np.int64),
        )
        compile_decisions()

    def _policies(self, env: SchedulingEnv, wait: Wait) -> dict[str, Any]:
        return {"placement": _PlacedInBatches(wait)}

    def _answers(self, number: int, outside: OutsideStarts) -> bool:
        run = self._runs[number]
        if run["question"] != Question.PLACEMENT:
            return False
        outside.start(int(run["job"]), self._arrays.gpus[number, : run["num_chosen"]].tolist())
        run["job"] = -1
        run["place"] += 1
        run["num_started"] += 1
        return True

    def _decide(self) -> None:
        decide_places(self._runs, self._arrays, self._tables, loop_address(), placing_address())

    def _seen(self) -> Observation:
        return {"job": self._arrays.job, "servers": self._arrays.servers}


class _PlacedInBatches:
    """A placement policy whose run is taken on from outside."""

    def __init__(self, wait: Wait) -> None:
        self.advance_run = wait

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Fail: jobs are placed outside."""
        raise NotImplementedError
