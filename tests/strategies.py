"""Hypothesis strategies: workloads full of ties, DAGs of any shape, clusters, networks and policies."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hypothesis import strategies as st

from ddlsched.cluster import Cluster, Server
from ddlsched.contention import ContentionModel, EqualShare, Linear, MaxMin
from ddlsched.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag, Task
from ddlsched.disturbances import Disturbances, Outage
from ddlsched.jobs import Job, Workload
from ddlsched.topology import Topology
from topologies.fat_tree import FatTree
from topologies.leaf_spine import LeafSpine
from topologies.star import Star


def examples(usual: int) -> int:
    """Return how many examples a test tries: ``FUZZ`` of them if that is set."""
    return int(os.environ.get("FUZZ") or usual)


PLACEMENTS = ("first-fit", "list-scheduling", "lwf:kappa=1", "lwf:kappa=3")
ORDERS = ("srsf", "srsf:communication=true", "srtf", "srtf:communication=true", "fifo", "las")
COMMUNICATIONS = (
    "bounded-overlap:limit=1",
    "bounded-overlap:limit=2",
    "bounded-overlap:limit=100",
    "adadual",
    "preemptive:by=service-per-gpu",
    "preemptive:by=service",
    "preemptive:by=time",
    "preemptive:by=bytes",
)
# Few different values, so that things happen at the same instant; odd ones, so that rounding matters.
DURATIONS_S = (0.0, 0.01, 0.02, 0.03, 0.0123456785, 0.036)
MESSAGES_BYTES = (0.0, 1.0, 1e6, 20e6, 99.2e6, 123456789.125)


@dataclass(frozen=True)
class Setting:
    """Everything that a run is given."""

    workload: Workload
    cluster: Cluster
    topology: Topology
    contention: ContentionModel
    placement: str
    order: str
    communication: str
    load_per_byte_s: float | None
    disturbances: Disturbances
    until_s: float | None
    seed: int


@st.composite
def general_dags(draw: st.DrawFn) -> IterationDag:
    """Return up to seven tasks, each after any of those before it, numbered in any order."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 7))):
        after = tuple(task.name for task in tasks if draw(st.booleans()))
        if draw(st.booleans()):
            duration_ns = round(draw(st.sampled_from(DURATIONS_S)) * 1e9)
            tasks.append(ComputeTask(name=f"t{number}", duration_ns=duration_ns, after=after))
        else:
            tasks.append(
                AllReduceTask(name=f"t{number}", message_bytes=draw(st.sampled_from(MESSAGES_BYTES)), after=after)
            )
    return IterationDag(tuple(draw(st.permutations(tasks))))


def iterations() -> st.SearchStrategy[DataParallelIteration | IterationDag]:
    """Return the usual iteration, one in buckets, or a general graph."""
    data_parallel = st.builds(
        DataParallelIteration,
        forward_s=st.sampled_from(DURATIONS_S),
        backward_s=st.sampled_from(DURATIONS_S),
        message_bytes=st.sampled_from(MESSAGES_BYTES),
        buckets=st.sampled_from((1, 1, 1, 2, 4)),
    )
    return st.one_of(data_parallel, data_parallel, general_dags())


@st.composite
def workloads(draw: st.DrawFn, num_gpus: int) -> Workload:
    """Return 1 to 8 jobs that fit a cluster of so many GPUs."""
    return Workload(
        tuple(
            Job(
                job_id=f"j{number}",
                arrival_s=draw(st.sampled_from((0.0, 0.0, 0.05, 0.1, 0.3333333335))),
                num_gpus=draw(st.integers(1, min(num_gpus, 7))),
                iterations=draw(st.one_of(st.integers(1, 6), st.integers(1, 30))),
                iteration=draw(iterations()),
                gpu_memory_mb=draw(st.sampled_from((0.0, 100.0, 333.3333, 600.0, 1000.0))),
            )
            for number in range(draw(st.integers(1, 8)))
        )
    )


def topologies() -> st.SearchStrategy[Topology]:
    """Return a star, a leaf-spine or a fat-tree, with and without latency."""
    latency = st.sampled_from((0.0, 1e-5))
    return st.one_of(
        st.builds(Star, latency_s=latency),
        st.builds(Star, latency_s=latency),
        st.builds(
            LeafSpine,
            servers_per_leaf=st.integers(1, 3),
            spines=st.integers(1, 2),
            oversubscription=st.sampled_from((1.0, 4.0)),
            latency_s=latency,
        ),
        st.builds(FatTree, oversubscription=st.sampled_from((1.0, 4.0)), latency_s=latency),
    )


def contention_models() -> st.SearchStrategy[ContentionModel]:
    """Return each of the models, with and without latency."""
    latency = st.sampled_from((0.0, 6.69e-4))
    return st.one_of(
        st.builds(Linear, latency_s=latency),
        st.builds(Linear, latency_s=latency, penalty_per_byte_s=st.just(0.0)),
        st.builds(EqualShare, latency_s=latency),
        st.builds(MaxMin, latency_s=latency),
    )


def equal_servers() -> st.SearchStrategy[Cluster]:
    """Return a small cluster of one kind of server."""
    return st.builds(
        Cluster, num_servers=st.integers(1, 5), gpus_per_server=st.integers(1, 3), gpu_memory_mb=st.just(1000.0)
    )


def clusters() -> st.SearchStrategy[Cluster]:
    """Return a small cluster of one kind of server or of several."""
    server = st.builds(
        Server,
        gpus=st.integers(1, 3),
        gpu_memory_mb=st.just(1000.0),
        relative_speed=st.sampled_from((1.0, 1.0, 2.0, 0.7)),
        nic_gbps=st.sampled_from((None, 10.0, 25.0)),
    )
    different = st.builds(Cluster, servers=st.lists(server, min_size=1, max_size=5).map(tuple))
    return st.one_of(equal_servers(), equal_servers(), different)


@st.composite
def outages(draw: st.DrawFn, num_servers: int) -> tuple[Outage, ...]:
    """Return up to four outages, all repaired, so that every job can finish; of a server they do not overlap."""
    times = st.sampled_from((0.0, 0.01, 0.05, 0.066, 0.1, 0.13, 0.2, 0.3333333335, 0.5))
    chosen: list[Outage] = []
    for server in draw(st.lists(st.integers(0, num_servers - 1), max_size=4)):
        from_s, to_s = sorted(draw(st.lists(times, min_size=2, max_size=2, unique=True)))
        others = [outage for outage in chosen if outage.server == server]
        if all(to_s <= other.from_s or from_s >= other.to_s for other in others):
            chosen.append(Outage(server=server, from_s=from_s, to_s=to_s))
    return tuple(chosen)


def disturbances(num_servers: int) -> st.SearchStrategy[Disturbances]:
    """Return nothing, or jitter, slow GPUs and outages together."""
    some = st.builds(
        Disturbances,
        jitter_cv=st.sampled_from((0.0, 0.0, 0.3)),
        straggler_share=st.sampled_from((0.0, 0.3)),
        straggler_slowdown=st.sampled_from((2.0, 1.37)),
        outages=outages(num_servers),
        checkpoint_iterations=st.sampled_from((1, 1, 2, 5)),
        restart_s=st.sampled_from((0.0, 0.05, 0.011)),
    )
    return st.one_of(st.just(Disturbances()), some)


@st.composite
def settings(draw: st.DrawFn, *, disturbed: bool = True) -> Setting:
    """Return a whole run; one that is not disturbed has equal servers, no disturbances and goes to its end."""
    cluster = draw(clusters() if disturbed else equal_servers())
    return Setting(
        workload=draw(workloads(cluster.num_gpus)),
        cluster=cluster,
        topology=draw(topologies()),
        contention=draw(contention_models()),
        placement=draw(st.sampled_from(PLACEMENTS)),
        order=draw(st.sampled_from(ORDERS)),
        communication=draw(st.sampled_from(COMMUNICATIONS)),
        load_per_byte_s=draw(st.sampled_from((None, 0.0, 7.8125e-9))),
        disturbances=draw(disturbances(cluster.num_servers)) if disturbed else Disturbances(),
        until_s=draw(st.sampled_from((None, None, None, 0.05, 0.4))) if disturbed else None,
        seed=draw(st.integers(0, 3)),
    )
