"""The flow scenario: jobs that compute and then send, over and over, on servers with one network card each.

Job by job, ``random.Random(seed)`` draws the number of servers n from 2 to 4, n of the servers with a free GPU
(in index order), the compute time, and the message M, of which each of the n cards carries 2 (n - 1) / n.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job, Workload

__all__ = [
    "CARD_BYTES_PER_S",
    "GPUS_PER_SERVER",
    "Flow",
    "FlowTimes",
    "draw_flows",
    "simulate_flows",
    "wire_bytes",
]

GPUS_PER_SERVER = 4
CARD_BYTES_PER_S = 1.25e9


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A job of the scenario."""

    servers: tuple[int, ...]
    compute_s: float
    message_bytes: float


@dataclass(frozen=True, kw_only=True)
class FlowTimes:
    """When each job finished (all arrive at 0), and how long the simulator ran, seconds."""

    finish_s: Sequence[float]
    seconds: float

    @property
    def average_jct_s(self) -> float:
        """Mean of the finish times."""
        return sum(self.finish_s) / len(self.finish_s)

    @property
    def makespan_s(self) -> float:
        """The last finish."""
        return max(self.finish_s)


def draw_flows(*, num_jobs: int, num_servers: int, seed: int = 1) -> list[Flow]:
    """Return the jobs of the scenario."""
    rng = random.Random(seed)
    free_gpus = [GPUS_PER_SERVER] * num_servers
    flows = []
    for _ in range(num_jobs):
        num = rng.randint(2, 4)
        servers = rng.sample([server for server, free in enumerate(free_gpus) if free > 0], num)
        for server in servers:
            free_gpus[server] -= 1
        compute_s = rng.uniform(0.040, 0.100)
        flows.append(Flow(servers=tuple(servers), compute_s=compute_s, message_bytes=rng.uniform(25e6, 500e6)))
    return flows


def wire_bytes(flow: Flow) -> float:
    """Return what each of the job's network cards carries in an iteration."""
    return flow.message_bytes * (2 * (len(flow.servers) - 1) / len(flow.servers))


def simulate_flows(flows: Sequence[Flow], *, num_servers: int, iterations: int, contention: str) -> FlowTimes:
    """Run the scenario with ddlsched."""
    cluster = Cluster(num_servers=num_servers, gpus_per_server=GPUS_PER_SERVER)
    result: Result = simulate(
        Workload.of([_job(number, flow, iterations) for number, flow in enumerate(flows)]),
        cluster,
        placement=FixedPlacement(gpus=_exclusive_gpus(flows, num_servers)),
        communication="bounded-overlap:limit=1000000",
        contention=contention,
    )
    return FlowTimes(finish_s=result.jobs["finish_s"].tolist(), seconds=result.finished.engine_s)


@dataclass(frozen=True, kw_only=True)
class FixedPlacement:
    """Each job on GPUs named beforehand."""

    gpus: Sequence[Sequence[GpuId]]

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId]:
        """Return the job's GPUs."""
        return self.gpus[job.number]


def _exclusive_gpus(flows: Sequence[Flow], num_servers: int) -> list[list[GpuId]]:
    next_gpu = [server * GPUS_PER_SERVER for server in range(num_servers)]
    chosen = []
    for flow in flows:
        chosen.append([next_gpu[server] for server in flow.servers])
        for server in flow.servers:
            next_gpu[server] += 1
    return chosen


def _job(number: int, flow: Flow, iterations: int) -> Job:
    compute = ComputeTask(name="compute", duration_ns=ns_from_s(flow.compute_s))
    reduce = AllReduceTask(name="all-reduce", message_bytes=flow.message_bytes, after=("compute",))
    return Job(
        job_id=str(number),
        arrival_s=0.0,
        num_gpus=len(flow.servers),
        iterations=iterations,
        iteration=IterationDag((compute, reduce)),
        gpu_memory_mb=1.0,
    )
