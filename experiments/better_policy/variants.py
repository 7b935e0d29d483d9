"""The new policy with one part changed or added, for the ablation, and an order that knows kinds of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from algorithms.placement.whole_servers import WholeServers
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.units import NS_PER_S


def _free_gpus(job: JobView, cluster: ClusterView) -> list[list[GpuId]]:
    """Return the free GPUs of each server."""
    free: list[list[GpuId]] = [[] for _ in range(cluster.num_servers)]
    for gpu in cluster.eligible_gpus(job):
        if not cluster.num_residents(gpu):
            free[cluster.server_of(gpu)].append(gpu)
    return free


@dataclass(frozen=True, kw_only=True)
class SmallFirstFit(WholeServers):
    """A job that fits on a server goes to the first that has room."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, or None to wait."""
        if job.num_gpus > len(cluster.gpus_of(0)):
            return WholeServers.place(self, job, cluster)
        return next((gpus[: job.num_gpus] for gpus in _free_gpus(job, cluster) if len(gpus) >= job.num_gpus), None)


@dataclass(frozen=True, kw_only=True)
class SmallSpread(WholeServers):
    """A job that fits on a server goes to the one with the most free GPUs."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, or None to wait."""
        if job.num_gpus > len(cluster.gpus_of(0)):
            return WholeServers.place(self, job, cluster)
        most = max(_free_gpus(job, cluster), key=len)
        return most[: job.num_gpus] if len(most) >= job.num_gpus else None


@dataclass(frozen=True, kw_only=True)
class LargeAnywhere:
    """A job larger than a server takes free GPUs wherever they are, of the servers with the most first."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, or None to wait."""
        if job.num_gpus <= len(cluster.gpus_of(0)):
            return WholeServers().place(job, cluster)
        gpus = [gpu for server in sorted(_free_gpus(job, cluster), key=len, reverse=True) for gpu in server]
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


@dataclass(frozen=True, kw_only=True)
class KindsKnown:
    """As ``history``, by the limit that a job states: here the mean of its kind, known from the start."""

    patience: float
    compiled: ClassVar[bool] = False

    def key(self, job: JobView, now_s: float) -> float:
        """Return the time from which the job counts, nanoseconds."""
        return job.arrival_ns + self.patience * NS_PER_S * (job.time_limit_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class MakingRoom(WholeServers):
    """Jobs of one server move for the first job that waits for servers, if they have fewer GPUs than it in all."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Making:
        """Return what remembers who waits."""
        return _Making(self)


class _Making:
    def __init__(self, policy: MakingRoom) -> None:
        self._policy = policy
        self._waits: tuple[float, JobView] | None = None

    def __repr__(self) -> str:
        return repr(self._policy)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        gpus = WholeServers.place(self._policy, job, cluster)
        if self._waits is not None and self._waits[0] != cluster.now_s:
            self._waits = None
        if gpus is None and self._waits is None and job.num_gpus > len(cluster.gpus_of(0)):
            self._waits = cluster.now_s, job
        return gpus

    def moves(self, running: Sequence[JobView], cluster: ClusterView) -> list[tuple[JobView, list[GpuId]]]:
        """Return who moves where, of the rack where the fewest GPUs move."""
        if self._waits is None:
            return []
        job, self._waits = self._waits[1], None
        free = _free_gpus(job, cluster)
        per_rack = self._policy.servers_per_rack or len(free)
        held = {server: _movable(server, free[server], running, cluster) for server in range(len(free))}
        plans = []
        for first in range(0, len(free), per_rack):
            rack = [server for server in range(first, min(first + per_rack, len(free))) if held[server] is not None]
            needed = -(-job.num_gpus // len(cluster.gpus_of(0)))
            emptied = sorted(rack, key=lambda server: (_gpus(held[server]), server))[:needed]
            moved = sum(_gpus(held[server]) for server in emptied)
            if len(emptied) == needed and 0 < moved <= job.num_gpus:
                plan = _elsewhere([job for server in emptied for job in held[server] or ()], free, emptied)
                plans += [(moved, first, plan)] if plan else []
        return min(plans)[2] if plans else []


def _movable(server: int, free: list[GpuId], running: Sequence[JobView], cluster: ClusterView) -> list[JobView] | None:
    """Return the jobs of a server if all are on it alone and may move."""
    numbers = {job.number for job in running}
    there = {job.number: job for gpu in cluster.gpus_of(server) for job in cluster.residents(gpu)}
    alone = all(len(job.servers) == 1 and number in numbers for number, job in there.items())
    known = _gpus(list(there.values())) + len(free) == len(cluster.gpus_of(server))
    return list(there.values()) if alone and known else None


def _gpus(jobs: Sequence[JobView] | None) -> int:
    return sum(job.num_gpus for job in jobs or ())


def _elsewhere(
    jobs: list[JobView], free: list[list[GpuId]], emptied: list[int]
) -> list[tuple[JobView, list[GpuId]]] | None:
    """Return GPUs for each job on other servers, best fit, the widest first."""
    room = {server: list(gpus) for server, gpus in enumerate(free) if server not in emptied}
    plan = []
    for job in sorted(jobs, key=lambda job: (-job.num_gpus, job.number)):
        fitting = [(len(gpus), server) for server, gpus in room.items() if len(gpus) >= job.num_gpus]
        if not fitting:
            return None
        gpus = room[min(fitting)[1]]
        plan.append((job, gpus[: job.num_gpus]))
        del gpus[: job.num_gpus]
    return plan
