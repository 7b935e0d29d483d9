"""A lower bound of the average JCT that holds for every policy, preemptive or not, on instances of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from algorithms.optimal.interval_programme import Phases, least_mean_busy_s
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.network.contention import ContentionModel, ring_bytes
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Job, Workload

__all__ = ["JctBound", "average_jct_bound_s", "jct_bound"]


@dataclass(frozen=True)
class JctBound:
    """What no schedule's average JCT is below, seconds.

    Attributes
    ----------
    alone_s
        Each job as if it were alone.
    programme_s
        By the linear programme, which knows that jobs share GPUs, memory and cards.
    """

    alone_s: float
    programme_s: float

    @property
    def average_jct_s(self) -> float:
        """The larger of the two."""
        return max(self.alone_s, self.programme_s)


def average_jct_bound_s(
    workload: Workload, cluster: Cluster, contention: ContentionModel, *, intervals: int = 200
) -> float:
    """Return a time (s) that no schedule's average JCT is below; see :func:`jct_bound`."""
    return jct_bound(workload, cluster, contention, intervals=intervals).average_jct_s


def jct_bound(workload: Workload, cluster: Cluster, contention: ContentionModel, *, intervals: int = 200) -> JctBound:
    """Bound the average JCT of every schedule, also of those that stop, move or overlap anything at any time.

    A job j has n workers; its compute takes P seconds on each of them. If it does not fit on a server and its
    iteration is a forward pass, a backward pass and one all-reduce, its all-reduces take Q seconds on the fastest
    card, on each of the N servers that it needs at least; otherwise Q = 0. Let d = P + Q, C the time at which it ends,
    a(t) the share of its workers that compute at t, and v(t) the rate of its transfer over that of the fastest card
    (of work that is lost and done again only the last time counts). In every schedule

    1. a + v <= 1, as no worker computes while the job's all-reduce runs; the integral of a is P, that of v is Q;
    2. the sum of n a over the jobs is at most the number of GPUs, which compute one task at a time;
    3. the sum of N v is at most what all cards carry, over that of the fastest: in every contention model that
       conserves bytes and does not say ``exceeds_links`` a link's rates never add up to more than it carries;
    4. the sum of n m (a + v) is at most the number of GPUs, m being the share of a GPU's memory that a worker takes; in
       an exclusive cluster m = 1, as a job keeps its GPUs while it sends;
    5. by any time the share of v done is at most that of a, which is at most one iteration ahead;
    6. the mean time at which a + v is done is at most C - d / 2, as a + v <= 1: done as late as can be, all of it
       lies in the last d seconds before C.

    So the least sum of mean times + d / 2 under 1 to 5 is no more than the sum of the C. It is a linear programme over
    functions of time. It is solved by intervals for its prices; the bound is the value of the dual in continuous
    time at these prices. By weak duality it holds at any prices, so that it rests neither on the intervals nor on the
    solver.

    Not known to it: that a job's workers go on together, that GPUs and servers are whole, switches, latency.

    Parameters
    ----------
    workload
        Rigid jobs.
    cluster
        Its GPUs, memory, cards, and whether GPUs are exclusive. Runs must have no jitter: it makes some tasks shorter.
    contention
        A model that conserves bytes and under which links carry no more than they can: 3 rests on the latter.
    intervals
        Into which time is cut. More make the bound a little better and the programme slower.

    Raises
    ------
    InputError
        Elastic jobs, a contention model that does not conserve bytes or exceeds links, or a topology that knows the
        inside of servers.

    References
    ----------
    Goemans, "Improved approximation algorithms for scheduling with release dates", SODA 1997: mean busy times.
    Turek, Wolf, Yu, "Approximate algorithms for scheduling parallelizable tasks", SPAA 1992: work as an area.
    """
    if intervals < 1:
        raise InputError(f"jct_bound: intervals is {intervals}; expected a whole number from 1")
    phases = _phases(workload, cluster, contention)
    programme_s = least_mean_busy_s(phases, intervals) + float((phases.alone_s / 2 - phases.arrival_s).sum())
    return JctBound(float(phases.alone_s.mean()), programme_s / len(workload))


def _phases(workload: Workload, cluster: Cluster, contention: ContentionModel) -> Phases:
    """Return the jobs as what they take of GPUs, cards and memory."""
    compute_s = np.array([_compute_s(job, cluster, workload.where(row)) for row, job in enumerate(workload)])
    gpus = np.array([job.num_gpus for job in workload], float)
    most = np.cumsum(sorted(cluster.gpus_of_servers, reverse=True))
    servers = np.searchsorted(most, gpus) + 1
    cards = _cards(cluster, contention)
    sending_s = np.array([_sending_s(job, int(least), cards) for job, least in zip(workload, servers, strict=True)])
    arrival_s = np.array([job.arrival_s for job in workload])
    lag = np.array([1.0 / job.iterations for job in workload])
    nothing = np.zeros(len(gpus))
    if cluster.exclusive:
        work_s = np.stack([compute_s + sending_s, nothing], axis=1)
        return Phases(arrival_s, work_s, np.stack([gpus, gpus], axis=1)[None], np.array([float(cluster.num_gpus)]), lag)
    memory = cluster.gpu_memory_bytes / cluster.gpu_memory_bytes.max()
    held = gpus * [job.gpu_memory_bytes / cluster.gpu_memory_bytes.max() for job in workload]
    needs = np.stack([(gpus, nothing), (nothing, servers), (held, held)]).transpose(0, 2, 1)
    capacity = np.array([cluster.num_gpus, cards.fastest_cards, memory.sum()])
    return Phases(arrival_s, np.stack([compute_s, sending_s], axis=1), needs, capacity, lag)


def _compute_s(job: Job, cluster: Cluster, where: str) -> float:
    """Return the least time for which each worker computes, on average over them, seconds."""
    if isinstance(job, ElasticJob):
        raise InputError(f"{where}: job {job.job_id!r} is elastic; jct_bound expected jobs of a fixed number of GPUs")
    speed = float(cluster.relative_speed.max())
    if cluster.throughputs is not None:
        speed *= max(cluster.throughputs.speed(job.model, kind, where) for kind in cluster.kinds)
    return job.service_ns / job.num_gpus / NS_PER_S / speed


@dataclass(frozen=True)
class _Cards:
    """The network cards: the model with the network's constants, the fastest card, and all of them in such."""

    contention: ContentionModel
    per_byte_s: float
    fastest_cards: float


def _cards(cluster: Cluster, contention: ContentionModel) -> _Cards:
    topology = resolve("topology", cluster.topology)
    network = Network(topology, cluster.num_servers, cluster.network_cards, cluster.gpus_of_servers)
    if network.inside is not None:
        raise InputError(f"jct_bound: {topology} states the inside of servers; expected a topology that does not")
    if not contention.conserves_bytes:
        raise InputError(f"jct_bound: {contention} does not conserve bytes; expected a contention model that does")
    if getattr(contention, "exceeds_links", False):
        raise InputError(f"jct_bound: {contention} lets links carry more than they can; expected a model that does not")
    speeds = np.array([network.links[server].relative_bandwidth for server in range(cluster.num_servers)])
    own = contention.bound_to(network)
    return _Cards(own, own.alone_per_byte_s / speeds.max(), float(speeds.sum() / speeds.max()))


def _sending_s(job: Job, servers: int, cards: _Cards) -> float:
    """Return how long the all-reduces take alone, seconds, if they must cross the network and follow the compute."""
    iteration = job.iteration
    if servers == 1 or not isinstance(iteration, DataParallelIteration) or iteration.buckets != 1:
        return 0.0
    return job.iterations * ring_bytes(cards.contention, iteration.message_bytes, servers) * cards.per_byte_s
