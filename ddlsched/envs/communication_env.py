"""Which ready transfers start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.loop.batch.transfers import MET
from ddlsched.envs.scheduling_env import Ask, AskedPolicy, Decision, JobSeconds, SchedulingEnv
from ddlsched.policies.choosing import begun_placement, log_share
from ddlsched.policies.doors import PlacementPolicy
from ddlsched.policies.views import ClusterView, GpuId, JobView, NetworkView, TransferView
from ddlsched.units import NS_PER_S
from ddlsched.workload.job import Workload

__all__ = ["CommunicationEnv"]

_TRANSFER_FEATURES = ("bytes_left", "time_left", "gpus", "present")
_Row: TypeAlias = tuple[float, float, float, float]
_NOBODY: _Row = (0.0, 0.0, 0.0, 0.0)
_BOTH = np.ones(2, bool)


class CommunicationEnv(SchedulingEnv):
    """Whether a transfer starts now, beside those that run on its links: action 1, or waits: 0.

    Asked for each transfer that waits and would meet another; one that meets nobody starts.

    ``transfers`` has a row for the transfer and for the first 4 that it would meet: MB left and the compute time left
    of its job, s, by :func:`~ddlsched.policies.choosing.log_share`, the job's GPUs / the cluster's, and 1.
    ``most`` is the most transfers on one of its links, by the same function.

    Parameters
    ----------
    workload, cluster, settings, unit_s
        As of :class:`~ddlsched.envs.scheduling_env.SchedulingEnv`.
    placement
        Where jobs run: a policy with ``place``, or its name.
    """

    doors: ClassVar[frozenset[str]] = frozenset({"communication", "placement"})

    def __init__(
        self, workload: Workload | str | Path, *, placement: PlacementPolicy | str = "lwf", **given: Any
    ) -> None:
        self.placement = placement
        super().__init__(workload, **given)

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        return {"transfers": (1 + MET, len(_TRANSFER_FEATURES)), "most": (1,)}, 2

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return a communication policy that asks, and a placement that notes who starts."""
        return {
            "communication": _AskedAdmission(ask, self.cluster.num_gpus),
            "placement": _NotedPlacement(self.placement, seconds),
        }


class _AskedAdmission(AskedPolicy):
    compiled: ClassVar[bool] = False

    def __init__(self, ask: Ask, num_gpus: int) -> None:
        self._ask, self._num_gpus = ask, num_gpus
        self._rows: dict[int, _Row] = {}
        self._rows_ns = -1

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return what is decided."""
        met = network.met_by(transfer)
        if not met:
            return True
        if network.now_ns != self._rows_ns:
            self._rows, self._rows_ns = {}, network.now_ns
        rows = [self._row(each) for each in (transfer, *met[:MET])]
        features = np.array(rows + [_NOBODY] * (1 + MET - len(rows)), np.float32)
        most = np.array([log_share(network.most_on_links_of(transfer))], np.float32)
        return bool(self._ask(Decision(network.now_s, {"transfers": features, "most": most}, _BOTH)))

    def _row(self, transfer: TransferView) -> _Row:
        """Return the features of a transfer, which at an instant stay the same whatever is decided."""
        row = self._rows.get(transfer.number)
        if row is None:
            job = transfer.job
            time_left_s = job.remaining_service_ns / job.num_gpus / NS_PER_S
            mb_left, gpus = transfer.bytes_left / 1e6, job.num_gpus / self._num_gpus
            row = self._rows[transfer.number] = (log_share(mb_left), log_share(time_left_s), gpus, 1.0)
        return row


@dataclass(frozen=True)
class _NotedPlacement:
    placement: PlacementPolicy | str
    seconds: JobSeconds

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Noting:
        """Return the policy with the one that decides."""
        return _Noting(begun_placement(self.placement, cluster, rng), self.seconds)


class _Noting:
    def __init__(self, placement: Any, seconds: JobSeconds) -> None:
        self._placement, self._seconds = placement, seconds

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return what the placement policy answers."""
        gpus: Sequence[GpuId] | None = self._placement.place(job, cluster)
        if gpus is not None:
            self._seconds.started(job)
        return gpus

    def wake_s(self, now_s: float) -> float | None:
        """Return when the placement policy wants to be asked again."""
        wake_s: float | None = self._placement.wake_s(now_s) if hasattr(self._placement, "wake_s") else None
        return wake_s
