"""The agent's policies see of jobs and costs what a simulation's do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Workload, simulate
from ddlsched.cluster.cluster import Server
from ddlsched.real.slurm.board import Board, BoardJob, Demand, Demanding, PolicyNames
from ddlsched.real.slurm.commands import SlurmNode
from ddlsched.real.slurm.settings import JobFacts
from ddlsched.testing import cluster_view, job_view

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


class Last:
    """Chooses the last GPUs, however few there are."""

    def place(self, job: Any, cluster: Any) -> list[int]:
        return list(cluster.eligible_gpus(job)[-job.num_gpus :])

    def wake_s(self, now_s: float) -> float:
        return now_s + 1.5


class Never:
    def place(self, job: Any, cluster: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("placement", "gpus", "demand", "answer"),
    [
        (Last(), 4, Demand(), [12, 13, 14, 15]),
        (Last(), 4, Demand(kind="a"), [0, 1, 2, 3]),
        (Last(), 4, Demand(gpus_per_node=2), [8, 9, 12, 13]),
        (Last(), 6, Demand(kind="a"), None),
        (Last(), 10, Demand(gpus_per_node=5), None),
        (Never(), 4, Demand(gpus_per_node=2), None),
    ],
)
def test_what_a_job_asks_for_it_gets_on_the_nodes_that_the_policy_chooses(placement, gpus, demand, answer) -> None:
    demanding = Demanding(placement=placement, demands={0: demand}, kinds=["a", "b", "b", "b"])
    begun = demanding.begin(Cluster(num_servers=4, gpus_per_server=4), np.random.default_rng(0))
    assert begun.place(job_view(num_gpus=gpus), cluster_view()) == answer
    assert begun.wake_s(2.0) == (3.5 if isinstance(placement, Last) else None)


def test_a_job_that_needs_all_the_memory_of_a_gpu_fits_and_one_that_needs_more_does_not() -> None:
    board = Board(PolicyNames(placement="lwf:kappa=1", order="fifo", gpu_memory_mb=MEMORY_MB), NODES)
    job = training("large", 1)
    fits = [board.fits(replace(job, gpu_memory_mb=MEMORY_MB + more), Demand()) for more in (0.0, 1.0)]
    assert fits == [True, False]


def test_a_job_that_runs_has_its_last_iteration_before_it() -> None:
    """Three iterations of 1 s since 10 s; another has one behind it already."""
    facts = JobFacts(iterations=3, forward_s=0.75, backward_s=0.25)
    described = facts.job("1", arrival_s=0.0, num_gpus=1, user="me", time_limit_s=None)
    job, resumed, waiting = BoardJob(described, 0, 0, 10.0), BoardJob(described, 1, 1, 10.0), BoardJob(described, 2, 1)
    times = (5.0, 10.0, 10.9, 11.0, 12.5, 13.0, 99.0)
    assert [job.iterations_done(now_s) for now_s in times] == [0, 0, 0, 1, 2, 2, 2]
    assert [resumed.iterations_done(now_s) for now_s in times] == [1, 1, 1, 2, 2, 2, 2]
    assert [waiting.iterations_done(now_s) for now_s in times] == [1] * 7
    assert (job.began_s(12.0), waiting.began_s(12.0)) == (10.0, 12.0)
