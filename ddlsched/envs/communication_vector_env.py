"""Which ready transfers start, in many runs at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.loop.batch.runs import loop_address
from ddlsched.engine.loop.batch.transfers import MET, compile_decisions, decide
from ddlsched.envs.communication_env import CommunicationEnv
from ddlsched.envs.scheduling_env import Observation
from ddlsched.envs.vector_env import SteppedVectorEnv, Wait
from ddlsched.policies.doors import PlacementPolicy
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.workload.job import Workload

__all__ = ["CommunicationVectorEnv"]


class CommunicationVectorEnv(SteppedVectorEnv):
    """Many runs of :class:`~ddlsched.envs.communication_env.CommunicationEnv`, stepped by compiled code.

    Parameters
    ----------
    num_envs
        How many runs.
    workload, cluster, settings, unit_s, placement
        As of :class:`~ddlsched.envs.communication_env.CommunicationEnv`, the same for all.
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
    ) -> None:
        def make() -> CommunicationEnv:
            return CommunicationEnv(workload, cluster=cluster, settings=settings, unit_s=unit_s, placement=placement)

        super().__init__(num_envs, make)
        self._transfers = np.zeros((num_envs, 1 + MET, 4), np.float32)
        self._most = np.zeros((num_envs, 1), np.float32)
        compile_decisions()

    def _policies(self, env: CommunicationEnv, wait: Wait) -> dict[str, Any]:
        return {"communication": _DecidedInBatches(wait), "placement": env.placement}

    def _decide(self) -> None:
        decide(self._runs, self._transfers, self._most, loop_address())

    def _seen(self) -> Observation:
        return {"most": self._most, "transfers": self._transfers}


class _DecidedInBatches:
    """A communication policy whose run is taken on from outside."""

    compiled: ClassVar[bool] = False

    def __init__(self, wait: Wait) -> None:
        self.advance_run = wait

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Fail: the loop asks outside."""
        raise NotImplementedError
