"""The agent's policies see of jobs and costs what a simulation's do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Workload, simulate
from ddlsched.cluster.cluster import Server
from ddlsched.real.slurm.board import Board, BoardJob, PolicyNames
from ddlsched.real.slurm.commands import SlurmNode

GPUS = (8, 8, 4)
NODES = [
    SlurmNode(name=f"n{number}", num_gpus=gpus, gpu_kind="", partitions=("gpus",), is_usable=True)
    for number, gpus in enumerate(GPUS)
]
MEMORY_MB = 32768.0


@dataclass(eq=False)
class Seen:
    """First-fit that notes what it sees."""

    seen: list[Any] = field(default_factory=list)

    def place(self, job: Any, cluster: Any) -> list[int] | None:
        alone_s = [cluster.all_reduce_s(1e9, servers) for servers in (1, 2, 3)]
        self.seen.append((job.job_id, alone_s, cluster.loads_ns(), len(cluster.network.links)))
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


def training(job_id: str, num_gpus: int) -> Job:
    iteration = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=3e8, buckets=2)
    return Job(job_id=job_id, arrival_s=0.0, num_gpus=num_gpus, iterations=9, iteration=iteration, gpu_memory_mb=1.0)


@pytest.mark.parametrize(
    "topology", ["star", "rail-optimised:rails=4,spines=2", "rail-optimised:rails=4,spines=2,nvlink_gbps=3600"]
)
def test_costs_and_loads_are_those_of_a_simulation(topology: str) -> None:
    """Also where the inside of servers takes time, on servers of different sizes."""
    jobs = [training("inside", 4), training("across", 8), training("wide", 6)]
    servers = tuple(Server(gpus=gpus, gpu_memory_mb=MEMORY_MB) for gpus in GPUS)
    simulated, real, views = Seen(), Seen(), []

    class Keeping(Seen):
        def place(self, job: Any, cluster: Any) -> list[int] | None:
            views.append(job)
            return super().place(job, cluster)

    cluster = Cluster(servers=servers, exclusive=True, topology=topology)
    simulate(Workload.of(jobs), cluster, placement=Keeping(simulated.seen), order="fifo")
    board = Board(PolicyNames(placement=real, order="fifo", topology=topology, gpu_memory_mb=MEMORY_MB), NODES)
    queued = [BoardJob(job, number) for number, job in enumerate(jobs)]
    decided = board.decide([], queued, {}, 0.0)
    assert [job.job.job_id for job, _ in decided.starts] == ["inside", "across", "wide"]
    assert real.seen == simulated.seen[: len(real.seen)]
    assert [job.view.communication_ns for job in queued] == [view.communication_ns for view in views[:3]]
    assert any(job.view.communication_ns for job in queued)
