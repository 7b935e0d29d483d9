"""Hypothesis strategies: workloads full of ties, DAGs of any shape, clusters, networks and policies.

Each is made once: to make and validate it for every example takes as long as to draw from it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from math import inf
from typing import Any

from hypothesis import strategies as st
from policies_of_users import (
    Ageing,
    BytesTimesGpus,
    ByTheClock,
    FewAtATime,
    FewestGpus,
    IterationLevels,
    IterationWeights,
    LateIterations,
    LateRush,
    LeastAsked,
    Quadratic,
    Quietest,
    RoundRobin,
    SizeLevels,
    SizeWeights,
    SmallerFirst,
    SmallMessages,
    Tiring,
    Turns,
    Whimsical,
)

from algorithms.contention.crux import Crux
from algorithms.path.ecmp import Ecmp, Sglb, TopologyRoute
from algorithms.path.least_congested import LeastCongested
from ddlsched.cluster.capacity import CapacityTrace, Presence
from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.interference import InterferenceModel, UniformInterference
from ddlsched.network.contention import ContentionModel, EqualShare, Linear, MaxMin
from ddlsched.network.packet_rings import PacketRings
from ddlsched.network.topology import Topology
from ddlsched.network.weighted_shares import ConnectionShares, Mltcp, SizeShares, StrictLevels
from ddlsched.plugins.names import names, resolve
from ddlsched.policies.doors import DROP, Allocation
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.elastic_job import (
    BatchCurve,
    ConstantRescaleCost,
    ElasticJob,
    LinearCurve,
    Rescale,
    ScalingCurve,
    ThroughputCurve,
)
from ddlsched.workload.groups import Groups, workers_of
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.tasks import KINDS, Task
from topologies.clos import Clos
from topologies.double_sided import DoubleSided
from topologies.fat_tree import FatTree
from topologies.leaf_spine import LeafSpine
from topologies.rail_optimised import RailOptimised
from topologies.star import Star

PLACEMENTS = ("first-fit", "list-scheduling", "lwf:kappa=1", "lwf:kappa=3")
ORDERS = (
    "srsf",
    "srsf:communication=true",
    "srtf",
    "srtf:communication=true",
    "fifo",
    "las",
    "tiresias:threshold_gpu_s=0.05",
    "themis",
)
USERS_ORDERS = (FewestGpus(), Ageing(), Turns(), LeastAsked())
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
USERS_COMMUNICATIONS = (
    SmallerFirst(),
    SmallerFirst(limit=3),
    ByTheClock(),
    FewAtATime(),
    SmallMessages(),
    BytesTimesGpus(),
)
PATHS = (
    None,
    None,
    None,
    Ecmp(),
    Ecmp(seed=5),
    LeastCongested(),
    TopologyRoute(),
    Quietest(),
    RoundRobin(),
    Sglb(best=2),
    Whimsical(),
)
# Few different values, so that things happen at the same instant; odd ones, so that rounding matters.
DURATIONS_S = (0.0, 0.01, 0.02, 0.03, 0.0123456785, 0.036)
EXCLUSIVE = st.sampled_from((False, False, False, True))
MODELS = ("a", "b")
ALGORITHMS = {
    kind: [name for name in names("collective") if kind in resolve("collective", name).kinds] for kind in KINDS
}
"""The collective algorithms that have each kind."""
MESSAGES_BYTES = (0.0, 1.0, 1e6, 20e6, 99.2e6, 123456789.125)


@dataclass(frozen=True, kw_only=True)
class ByModel:
    """Interference that is not the same both ways."""

    once: bool = False

    def penalty_share(self, model: str | None, other: str | None) -> float:
        return {("a", "b"): 0.5, ("b", "a"): 0.1234567, (None, "a"): 7.0}.get((model, other), 0.0)


@dataclass(frozen=True)
class Setting:
    """Everything that a run is given."""

    workload: Workload
    cluster: Cluster
    topology: Topology
    contention: ContentionModel
    placement: str
    order: Any
    communication: Any
    load_per_byte_s: float | None
    disturbances: Disturbances
    until_s: float | None
    seed: int
    interference: InterferenceModel | None = None
    path: Any = None


@cache
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


@cache
@st.composite
def groups_of(draw: st.DrawFn, num_gpus: int) -> Groups:
    """Return groups of a job's workers: pairs for sends, tuples of any size, all workers in one tuple."""
    workers = list(range(num_gpus))
    groups = {"all": (tuple(draw(st.permutations(workers))),)}
    if num_gpus > 1:
        mixed = draw(st.permutations(workers))
        groups["pairs"] = tuple(zip(mixed[::2], mixed[1::2], strict=False))
    for name in draw(st.sampled_from(((), ("some",), ("some", "more")))):
        mixed = draw(st.permutations(workers))
        cuts = sorted(draw(st.sets(st.integers(1, num_gpus), min_size=1, max_size=3)))
        groups[name] = tuple(tuple(mixed[start:end]) for start, end in pairwise([0, *cuts]))
    return groups


@cache
@st.composite
def grouped_dags(draw: st.DrawFn, num_gpus: int) -> IterationDag:
    """Return up to eight tasks, on all workers and in groups, each after any of those before it that it meets."""
    groups = draw(groups_of(num_gpus))
    tasks: list[Task] = []
    meeting = {None: set(range(num_gpus))} | {name: workers_of([group]) for name, group in groups.items()}
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("compute", "compute", *KINDS)))
        if kind == "send" and "pairs" not in groups:
            kind = "broadcast"
        group = "pairs" if kind == "send" else draw(st.sampled_from((None, *groups)))
        met = [task.name for task in tasks if meeting[task.group] & meeting[group]]
        after = tuple(name for name in met if draw(st.booleans()))
        if kind == "compute":
            duration_ns = round(draw(st.sampled_from(DURATIONS_S)) * 1e9)
            tasks.append(ComputeTask(name=f"t{number}", duration_ns=duration_ns, group=group, after=after))
            continue
        algorithm = draw(st.sampled_from(ALGORITHMS[kind]))
        message_bytes = draw(st.sampled_from(MESSAGES_BYTES))
        tasks.append(
            CollectiveTask(
                name=f"t{number}",
                kind=kind,
                message_bytes=message_bytes,
                group=group,
                algorithm=algorithm,
                after=after,
            )
        )
    return IterationDag(tuple(draw(st.permutations(tasks))), groups)


@cache
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


@cache
@st.composite
def jobs(draw: st.DrawFn, number: int, num_gpus: int, grouped: bool) -> Job:
    """Return a job that fits a cluster of so many GPUs; perhaps one with collectives over groups of its workers."""
    own_gpus = draw(st.integers(1, min(num_gpus, 7)))
    return Job(
        job_id=f"j{number}",
        arrival_s=draw(st.sampled_from((0.0, 0.0, 0.05, 0.1, 0.3333333335))),
        num_gpus=own_gpus,
        iterations=draw(st.one_of(st.integers(1, 6), st.integers(1, 30))),
        iteration=draw(grouped_dags(own_gpus) if grouped and draw(st.booleans()) else iterations()),
        gpu_memory_mb=draw(st.sampled_from((0.0, 100.0, 333.3333, 600.0, 1000.0))),
        model=draw(st.sampled_from((None, *MODELS))),
    )


@cache
@st.composite
def workloads(draw: st.DrawFn, num_gpus: int, *, grouped: bool = False) -> Workload:
    """Return 1 to 8 jobs that fit a cluster of so many GPUs."""
    return Workload(tuple(draw(jobs(number, num_gpus, grouped)) for number in range(draw(st.integers(1, 8)))))


@cache
def topologies() -> st.SearchStrategy[Topology]:
    """Return a star, a leaf-spine or a fat-tree, with and without latency."""
    latency = st.sampled_from((0.0, 1e-5))
    return st.one_of(
        st.builds(Star, latency_s=latency),
        st.builds(Star, latency_s=latency, nic_gbps=st.sampled_from((10.0, 25.0))),
        st.builds(
            LeafSpine,
            servers_per_leaf=st.integers(1, 3),
            spines=st.integers(1, 3),
            oversubscription=st.sampled_from((1.0, 4.0)),
            latency_s=latency,
        ),
        st.builds(
            Clos,
            servers_per_rack=st.integers(1, 2),
            racks_per_pod=st.integers(1, 2),
            aggregations=st.integers(1, 2),
            cores=st.integers(1, 2),
            nic_gbps=st.just(10.0),
            rack_oversubscription=st.sampled_from((1.0, 2.0)),
            latency_s=latency,
        ),
        st.builds(FatTree, oversubscription=st.sampled_from((1.0, 4.0)), latency_s=latency),
    )


def _rails_of_planes(*, planes: int, **given: Any) -> RailOptimised:
    return RailOptimised(planes=planes, rail_gbps=10.0 * planes, **given)


@cache
def topologies_with_inside(equal_servers: bool) -> st.SearchStrategy[Topology]:
    """Return a star, rails or sides whose servers have an inside, with and without latency.

    Rails may be apart, in planes, of domains of two servers, and in pods; apart only where servers are equal.
    """
    latency = st.sampled_from((0.0, 1e-5))
    nvlink_gbps = st.sampled_from((5.0, 80.0))
    return st.one_of(
        st.builds(Star, latency_s=latency, nvlink_gbps=nvlink_gbps),
        st.builds(
            RailOptimised,
            hosts_per_unit=st.integers(1, 3),
            rails=st.integers(1, 3),
            spines=st.integers(1, 2),
            rail_gbps=st.just(10.0),
            oversubscription=st.sampled_from((1.0, 4.0)),
            latency_s=latency,
            nvlink_gbps=nvlink_gbps,
        ),
        st.builds(
            _rails_of_planes,
            hosts_per_unit=st.just(2),
            rails=st.integers(1, 3),
            spines=st.integers(1, 2),
            oversubscription=st.sampled_from((1.0, 4.0)),
            latency_s=latency,
            nvlink_gbps=nvlink_gbps,
            hosts_per_domain=st.integers(1, 2),
            planes=st.integers(1, 2),
            rails_apart=st.booleans() if equal_servers else st.just(False),
            units_per_pod=st.sampled_from((None, 1, 2)),
            cores=st.integers(1, 2),
        ),
        st.builds(
            DoubleSided,
            pairs=st.integers(1, 3),
            aggregations_per_pair=st.just(2),
            cores=st.just(2),
            links_per_host=st.integers(2, 3),
            link_gbps=st.just(10.0),
            nvlink_gbps=nvlink_gbps,
        ),
    )


_LATENCY_S = st.sampled_from((0.0, 6.69e-4))
CONTENTION: dict[str, st.SearchStrategy[ContentionModel]] = {
    "linear": st.builds(Linear, latency_s=_LATENCY_S),
    "linear without penalty": st.builds(Linear, latency_s=_LATENCY_S, penalty_per_byte_s=st.just(0.0)),
    "equal-share": st.builds(EqualShare, latency_s=_LATENCY_S),
    "max-min": st.builds(MaxMin, latency_s=_LATENCY_S),
    "quadratic": st.builds(Quadratic, latency_s=_LATENCY_S),
    "late iterations": st.builds(LateIterations, latency_s=_LATENCY_S),
    "size weights": st.builds(SizeWeights, latency_s=_LATENCY_S),
    "iteration weights": st.builds(IterationWeights, latency_s=_LATENCY_S),
    "size levels": st.builds(SizeLevels, latency_s=_LATENCY_S),
    "iteration levels": st.builds(IterationLevels, latency_s=_LATENCY_S),
    "size-shares": st.builds(
        SizeShares,
        latency_s=_LATENCY_S,
        exponent=st.sampled_from((0.0, 0.5, 0.9)),
        chunk_bytes=st.just(3e6),
        chunk_s=st.sampled_from((0.0, 1e-3)),
        window_bytes=st.sampled_from((inf, 1e6)),
        step_s=st.sampled_from((0.0, 1e-4)),
    ),
    "mltcp": st.builds(Mltcp, latency_s=_LATENCY_S, message_parts=st.sampled_from((1, 2, 3, 8))),
    "strict-levels of jobs": st.builds(
        StrictLevels,
        latency_s=_LATENCY_S,
        by=st.sampled_from(("gpus", "compute-share", "remaining-service", "attained-service")),
        first=st.sampled_from((0.05, 2.0)),
        factor=st.just(2.0),
    ),
    "strict-levels of bytes": st.builds(
        StrictLevels,
        latency_s=_LATENCY_S,
        by=st.sampled_from(("bytes-left", "bytes-sent")),
        first=st.just(1e6),
        factor=st.sampled_from((2.0, 10.0)),
        levels=st.integers(1, 8),
        message_parts=st.sampled_from((1, 5)),
    ),
    "tiring": st.builds(Tiring, latency_s=_LATENCY_S),
    "late rush": st.builds(LateRush, latency_s=_LATENCY_S),
}
"""Models that every test may have, with and without latency."""

ASKED_IN_PYTHON: dict[str, st.SearchStrategy[ContentionModel]] = {
    "connection-shares": st.builds(
        ConnectionShares,
        latency_s=_LATENCY_S,
        exponent=st.sampled_from((0.0, 0.25, 1.0)),
        loss=st.sampled_from((0.0, 0.1)),
        wait=st.sampled_from((0.0, 0.05)),
        step_s=st.sampled_from((0.0, 1e-4)),
    ),
    "crux": st.builds(Crux, latency_s=_LATENCY_S, levels=st.sampled_from((1, 2, 8)), seed=st.integers(0, 2)),
}

PACKET_RINGS: st.SearchStrategy[ContentionModel] = st.builds(
    PacketRings,
    latency_s=_LATENCY_S,
    packet_bytes=st.just(4e6),
    queue_bytes=st.just(2e7),
    step_s=st.sampled_from((0.0, 1e-4)),
    wait=st.sampled_from((0.0, 0.05)),
)
"""The model that knows only all-reduces in rings over servers, with few and large packets."""


@cache
def equal_servers() -> st.SearchStrategy[Cluster]:
    """Return a small cluster of one kind of server."""
    return st.builds(
        Cluster,
        num_servers=st.integers(1, 5),
        gpus_per_server=st.integers(1, 3),
        gpu_memory_mb=st.just(1000.0),
        exclusive=EXCLUSIVE,
    )


@cache
def clusters() -> st.SearchStrategy[Cluster]:
    """Return a small cluster of one kind of server or of several."""
    server = st.builds(
        Server,
        gpus=st.integers(1, 3),
        gpu_memory_mb=st.just(1000.0),
        relative_speed=st.sampled_from((1.0, 1.0, 2.0, 0.7)),
        nic_gbps=st.sampled_from((None, 10.0, 25.0)),
    )
    different = st.builds(Cluster, servers=st.lists(server, min_size=1, max_size=5).map(tuple), exclusive=EXCLUSIVE)
    return st.one_of(equal_servers(), equal_servers(), different)


@cache
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


@cache
def disturbances(num_servers: int) -> st.SearchStrategy[Disturbances]:
    """Return nothing, or jitter, slow GPUs and outages together."""
    some = st.builds(
        Disturbances,
        jitter_cv=st.sampled_from((0.0, 0.0, 0.3)),
        straggler_share=st.sampled_from((0.0, 0.3)),
        straggler_slowdown=st.sampled_from((2.0, 1.37)),
        outages=outages(num_servers),
        checkpoint_iterations=st.sampled_from((1, 1, 3, 5)),
        restart_s=st.sampled_from((0.0, 0.05, 0.011)),
        prediction_error=st.sampled_from((0.0, 0.7)),
    )
    return st.one_of(st.just(Disturbances()), some)


@cache
@st.composite
def settings(
    draw: st.DrawFn,
    *,
    disturbed: bool = True,
    grouped: bool = False,
    contention: st.SearchStrategy[ContentionModel] | None = None,
) -> Setting:
    """Return a whole run; one that is not disturbed has equal servers, no disturbances and goes to its end.

    With ``grouped`` some jobs have collectives over groups, by any algorithm, and most servers an inside.
    """
    cluster = draw(clusters() if disturbed else equal_servers())
    networks = (topologies(), topologies_with_inside(not cluster.servers)) if grouped else (topologies(),)
    return Setting(
        workload=draw(workloads(cluster.num_gpus, grouped=grouped)),
        cluster=cluster,
        topology=draw(st.one_of(*networks)),
        contention=draw(st.one_of(*CONTENTION.values()) if contention is None else contention),
        placement=draw(st.sampled_from(PLACEMENTS)),
        order=draw(st.sampled_from(ORDERS + USERS_ORDERS)),
        communication=draw(st.sampled_from(COMMUNICATIONS + USERS_COMMUNICATIONS)),
        load_per_byte_s=draw(st.sampled_from((None, 0.0, 7.8125e-9))),
        disturbances=draw(disturbances(cluster.num_servers)) if disturbed else Disturbances(),
        until_s=draw(st.sampled_from((None, None, None, 0.05, 0.4))) if disturbed else None,
        seed=draw(st.integers(0, 3)),
        interference=draw(st.sampled_from((None, None, UniformInterference(share=0.3), ByModel(), ByModel(once=True)))),
        path=draw(st.sampled_from(PATHS)),
    )


@dataclass(frozen=True, kw_only=True)
class ElasticSetting(Setting):
    """A run with elastic jobs, perhaps beside others."""

    allocation: Scripted
    rescale_cost: Callable[[Rescale], float]
    capacity: CapacityTrace | None


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """Gives each job anything that is allowed, as the seed and the time say; from ``until_s`` on all there is."""

    seed: int
    every_s: float
    until_s: float
    drops: bool
    names_gpus: bool

    def allocate(self, jobs: Sequence[Any], capacity: Any, now_s: float) -> dict[str, Any]:
        if now_s >= self.until_s:
            return self.all_there_is(jobs, capacity)
        rng = random.Random(f"{self.seed} {now_s}")
        left = capacity.num_gpus
        pool = [*capacity.free_gpus, *(gpu for view in jobs for gpu in view.gpus)]
        rng.shuffle(pool)
        named = self.names_gpus and rng.random() < 0.5
        answer: dict[str, Any] = {}
        for view in jobs:
            what = rng.random()
            if what < 0.4 and view.job.min_gpus <= view.num_gpus <= left and view.batch and not named:
                smallest, largest = view.job.smallest_batch(view.num_gpus), view.job.largest_batch(view.num_gpus)
                answer[view.job_id] = Allocation(view.num_gpus, min(max(view.batch, smallest), largest))
            elif what < 0.5 and self.drops and not view.gpus:
                answer[view.job_id] = DROP
            elif what < 0.9 and view.job.min_gpus <= left:
                num_gpus = rng.randint(view.job.min_gpus, min(view.job.max_gpus, left))
                batch = rng.randint(view.job.smallest_batch(num_gpus), view.job.largest_batch(num_gpus))
                gpus = tuple(pool.pop() for _ in range(num_gpus)) if named else None
                answer[view.job_id] = Allocation(num_gpus, rng.choice((None, batch)), gpus)
            if isinstance(answer.get(view.job_id), Allocation):
                left -= answer[view.job_id].num_gpus
        return answer

    def all_there_is(self, jobs: Sequence[Any], capacity: Any) -> dict[str, Any]:
        left = capacity.num_gpus
        answer = {}
        for view in jobs:
            if view.job.min_gpus <= left:
                answer[view.job_id] = Allocation(min(view.job.max_gpus, left))
                left -= answer[view.job_id].num_gpus
        return answer

    def wake_s(self, now_s: float) -> float | None:
        if now_s >= self.until_s:
            return None
        return min((int(now_s / self.every_s + 1e-6) + 1) * self.every_s, self.until_s)


@cache
def curves() -> st.SearchStrategy[ScalingCurve]:
    """Return a curve of each kind; few values, so that things happen at the same instant."""
    return st.one_of(
        st.builds(LinearCurve, fixed_s=st.sampled_from((0.0, 0.01)), sample_s=st.sampled_from((0.001, 0.0012345678))),
        st.just(ThroughputCurve(num_gpus=(1, 2, 4), samples_per_s=(100.0, 170.0, 250.0))),
        st.just(BatchCurve(gpu_batch=(2, 8), seconds=(0.01, 0.02))),
    )


@cache
@st.composite
def elastic_jobs(draw: st.DrawFn, job_id: str, num_gpus: int) -> ElasticJob:
    """Return a job that can run on a cluster of so many GPUs."""
    min_gpus = draw(st.integers(1, min(num_gpus, 3)))
    max_gpus = draw(st.integers(min_gpus, 8))
    gpu_batch = draw(st.integers(1, 9))
    return ElasticJob(
        job_id=job_id,
        arrival_s=draw(st.sampled_from((0.0, 0.0, 0.05, 0.1, 0.3333333335))),
        samples=draw(st.integers(1, 300)),
        curve=draw(curves()),
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        gpu_batch=gpu_batch,
        min_batch=draw(st.integers(1, gpu_batch * min_gpus)),
        max_batch=draw(st.one_of(st.none(), st.integers(max(max_gpus, gpu_batch * min_gpus), 80))),
        message_bytes=draw(st.sampled_from((0.0, 0.0, 1e6, 20e6))),
        gpu_memory_mb=draw(st.sampled_from((0.0, 500.0))),
        rescale_cost=draw(st.sampled_from((None, None, None, ConstantRescaleCost.restart(0.02)))),
    )


@cache
@st.composite
def capacity_traces(draw: st.DrawFn, num_servers: int) -> CapacityTrace:
    """Return a trace of servers that come and go and are all there in the end."""
    times = st.sampled_from((0.0, 0.01, 0.05, 0.066, 0.1, 0.13, 0.2, 0.3333333335, 0.5))
    presences = []
    for server in range(num_servers):
        bounds = sorted(draw(st.lists(times, max_size=4, unique=True)))
        for join_s, leave_s in list(pairwise(bounds))[::2]:
            presences.append(Presence(server=server, join_s=join_s, leave_s=leave_s, warned=draw(st.booleans())))
        join_s = max(bounds, default=0.0) + draw(st.sampled_from((0.0, 0.0, 0.07)))
        presences.append(Presence(server=server, join_s=join_s, leave_s=inf))
    return CapacityTrace(tuple(presences))


def cost_of(change: Rescale) -> float:
    """Return a cost that depends on all that a change says."""
    sizes_s = 0.001 * (change.added_gpus + 2 * change.removed_gpus + 3 * change.lost_gpus + change.to_servers)
    return sizes_s + 1e-4 * change.lost_samples + change.pending_s / 3 + (0.0 if change.is_first else 0.0077)


@cache
def rescale_costs() -> st.SearchStrategy[Callable[[Rescale], float]]:
    """Return constants, or a model."""
    seconds = st.sampled_from((0.0, 0.0, 0.01, 0.033))
    constants = st.builds(
        ConstantRescaleCost, up_s=seconds, down_s=seconds, resume_s=seconds, start_s=seconds, batch_s=seconds
    )
    return st.one_of(constants, st.just(cost_of))


@cache
@st.composite
def elastic_settings(draw: st.DrawFn) -> ElasticSetting:
    """Return a whole run with elastic jobs."""
    setting = draw(settings())
    num_gpus, num_servers = setting.cluster.num_gpus, setting.cluster.num_servers
    elastic = [draw(elastic_jobs(f"e{n}", num_gpus)) for n in range(draw(st.integers(1, 5)))]
    rigid = list(setting.workload)[: draw(st.integers(0, 3))]
    capacity = draw(st.one_of(st.none(), capacity_traces(num_servers)))
    without = {"prediction_error": 0.0} | ({} if capacity is None else {"outages": ()})
    setting = replace(setting, disturbances=replace(setting.disturbances, **without))
    given = {field.name: getattr(setting, field.name) for field in fields(setting)}
    return ElasticSetting(
        **given | {"workload": Workload(tuple(draw(st.permutations(elastic + rigid))))},
        allocation=draw(
            st.builds(
                Scripted,
                seed=st.integers(0, 99),
                every_s=st.sampled_from((0.031, 0.05, 0.2)),
                until_s=st.sampled_from((0.0, 0.3, 0.8)),
                drops=st.booleans(),
                names_gpus=st.booleans(),
            )
        ),
        rescale_cost=draw(rescale_costs()),
        capacity=capacity,
    )
