"""A lower bound of the average JCT that holds for every policy, preemptive or not, on instances of any size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.network.contention import ContentionModel, ring_bytes
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Job, Workload


@dataclass(frozen=True)
class Phases:
    """What jobs take of resources, in two phases (compute, transfers) that exclude each other.

    Attributes
    ----------
    arrival_s
        Of each job (J,).
    work_s
        Time of each phase of each job at full speed (J, 2); 0 for a phase that it has not.
    needs
        What each phase takes of each resource at full speed (R, J, 2).
    capacity
        Of each resource (R,).
    lag
        The share of its work by which the first phase may be ahead of the second, of each job (J,).
    """

    arrival_s: np.ndarray
    work_s: np.ndarray
    needs: np.ndarray
    capacity: np.ndarray
    lag: np.ndarray

    @cached_property
    def alone_s(self) -> np.ndarray:
        """Time of each job at full speed (J,)."""
        both: np.ndarray = self.work_s.sum(axis=1)
        return both

    @cached_property
    def has(self) -> np.ndarray:
        """Which phases each job has (J, 2)."""
        return self.work_s > 0


@dataclass(frozen=True)
class Prices:
    """Multipliers of the programme's constraints: any give a bound, those of its optimum the best.

    Attributes
    ----------
    resource
        Of a unit of each resource for a second of each interval (R, I), at least 0, and 0 in the last interval.
    work
        Paid for a second of each phase of each job (J, 2).
    order
        Of how far a job's first phase is ahead at the end of each interval (J, I), 0 in the last one.
    """

    resource: np.ndarray
    work: np.ndarray
    order: np.ndarray


def least_mean_busy_s(phases: Phases, intervals: int) -> float:
    """Return a lower bound of the sum of the jobs' mean busy times, seconds."""
    bounds_s = _bounds_of_intervals(phases, intervals)
    return dual_value_s(phases, bounds_s, _Programme(phases, bounds_s).prices())


def _bounds_of_intervals(phases: Phases, count: int) -> np.ndarray:
    """Return where the intervals begin, seconds, short ones first, then infinity: the last one has no end (I + 1,)."""
    first_s = float(phases.arrival_s.min())
    loads_s = np.einsum("rjf,jf->r", phases.needs, phases.work_s) / phases.capacity
    length_s = float(np.ptp(phases.arrival_s) + loads_s.sum() + phases.alone_s.max())
    begins_s = first_s + max(length_s, 1e-9) * (np.arange(count + 1) / count) ** 1.5
    return np.append(begins_s, np.inf)


def dual_value_s(phases: Phases, bounds_s: np.ndarray, prices: Prices) -> float:
    """Return the value of the dual over functions of time, seconds: no more than the least sum of mean busy times.

    At each time t a job takes the phase of the largest gain c - t / (its time alone), if that is above 0. c changes
    with the interval only, so the integral of the gain over an interval has a closed form.
    """
    from_s = np.maximum(bounds_s[:-1], phases.arrival_s[:, None])
    to_s = np.maximum(bounds_s[1:], from_s)
    alone_s = np.where(phases.alone_s > 0, phases.alone_s, 1.0)[:, None]
    gain = np.maximum(_gains(phases, prices).max(axis=2), 0.0)
    until_s = np.clip(gain * alone_s, from_s, to_s)
    taken = gain * (until_s - from_s) - (until_s**2 - from_s**2) / (2 * alone_s)
    paid = (phases.capacity @ prices.resource)[:-1] * np.diff(bounds_s[:-1])
    ahead = phases.lag[:, None] * np.minimum(np.diff(prices.order, axis=1, append=0.0), 0.0)
    return float((prices.work * phases.work_s).sum() - taken.sum() - paid.sum() + ahead.sum())


def _gains(phases: Phases, prices: Prices) -> np.ndarray:
    """Return c of each job, interval and phase (J, I, 2); minus infinity for a phase that a job has not."""
    own = prices.work[:, None, :] - np.einsum("rjf,ri->jif", phases.needs, prices.resource)
    shares = np.divide([-1.0, 1.0], phases.work_s, out=np.zeros_like(phases.work_s), where=phases.has)
    own += prices.order[:, :, None] * shares[:, None, :]
    return np.where(phases.has[:, None, :], own, -np.inf)


class _Programme:
    """The programme by intervals; its variables are seconds of (job, interval, phase), then how far jobs are ahead.

    A cost is the middle of what is left of the interval over the job's time alone; in the last interval, which has
    no end and no limits, its beginning.
    """

    def __init__(self, phases: Phases, bounds_s: np.ndarray) -> None:
        self._phases, self._bounds_s = phases, bounds_s
        self._inner = len(bounds_s) - 2
        """Intervals but for the last."""
        self._from_s = np.maximum(bounds_s[:-1], phases.arrival_s[:, None])
        self._room_s = np.clip(bounds_s[1:] - self._from_s, 0.0, None)
        self._job, self._interval, self._phase = np.nonzero((self._room_s[:, :, None] > 0) & phases.has[:, None, :])
        self._two = np.flatnonzero(phases.has.all(axis=1))
        """Jobs of two phases, which have variables of how far they are ahead."""
        place = np.full(len(phases.lag), -1)
        place[self._two] = np.arange(len(self._two))
        self._of_two = (place[self._job] >= 0) & (self._interval < self._inner)
        self._row_of_two = place[self._job] * self._inner + self._interval
        self._num_ahead = len(self._two) * self._inner

    def prices(self) -> Prices:
        """Solve it, and return the prices."""
        from scipy.optimize import linprog
        from scipy.sparse import vstack

        limits, most = self._limits()
        work = self._rows(self._job * 2 + self._phase, np.ones(len(self._job)), slice(None), self._phases.work_s.size)
        equal = vstack([work, self._orders()], format="csr")
        right = np.concatenate([self._phases.work_s.ravel(), np.zeros(self._num_ahead)])
        bounds = np.stack([np.zeros(equal.shape[1]), self._most()], axis=1)
        rows: dict[str, Any] = {"A_ub": limits, "b_ub": most, "A_eq": equal, "b_eq": right, "bounds": bounds}
        found = linprog(self._cost(), **rows, method="highs")
        if found.eqlin.marginals is None:
            raise RuntimeError(f"the linear programme of the bound was not solved: {found.message}")
        return self._read(-found.ineqlin.marginals, found.eqlin.marginals)

    def _read(self, limits: np.ndarray, equal: np.ndarray) -> Prices:
        num_resources, num_works = len(self._phases.capacity), self._phases.work_s.size
        resource = np.zeros((num_resources, self._inner + 1))
        resource[:, :-1] = np.maximum(limits[: num_resources * self._inner], 0.0).reshape(num_resources, -1)
        order = np.zeros((len(self._phases.lag), self._inner + 1))
        order[self._two, :-1] = equal[num_works:].reshape(len(self._two), self._inner)
        return Prices(resource, equal[:num_works].reshape(-1, 2), order)

    def _cost(self) -> np.ndarray:
        room_s = np.where(np.isfinite(self._room_s), self._room_s, 0.0)
        middle_s = (self._from_s + room_s / 2)[self._job, self._interval]
        return np.concatenate([middle_s / self._phases.alone_s[self._job], np.zeros(self._num_ahead)])

    def _most(self) -> np.ndarray:
        ahead = np.repeat(self._phases.lag[self._two], self._inner)
        return np.concatenate([self._room_s[self._job, self._interval], ahead])

    def _limits(self) -> tuple[Any, np.ndarray]:
        """Return rows of resources by interval, then of jobs of two phases by interval, and what each is at most."""
        from scipy.sparse import vstack

        inner = self._interval < self._inner
        job, interval, phase = self._job[inner], self._interval[inner], self._phase[inner]
        rows = [self._rows(interval, needs[job, phase], inner, self._inner) for needs in self._phases.needs]
        rows.append(self._rows(self._row_of_two[self._of_two], 1.0, self._of_two, self._num_ahead))
        length_s = np.diff(self._bounds_s[:-1])
        most = [*np.multiply.outer(self._phases.capacity, length_s), self._room_s[self._two, :-1].ravel()]
        return vstack(rows, format="csr"), np.concatenate(most)

    def _orders(self) -> Any:
        """Return rows of jobs of two phases by interval: ahead now - ahead before - first done + second done = 0."""
        from scipy.sparse import coo_array, csr_array, diags_array, eye_array, hstack, kron

        job, phase = self._job[self._of_two], self._phase[self._of_two]
        done = np.where(phase == 0, -1.0, 1.0) / self._phases.work_s[job, phase]
        shares = self._rows(self._row_of_two[self._of_two], done, self._of_two, self._num_ahead)
        step = diags_array([1.0, -1.0], offsets=[0, -1], shape=(self._inner, self._inner))
        ahead = kron(eye_array(len(self._two)), step) if len(self._two) else coo_array((0, 0))
        return shares + hstack([csr_array((self._num_ahead, len(self._job))), ahead], format="csr")

    def _rows(self, row: np.ndarray, value: Any, which: Any, num_rows: int) -> Any:
        """Return a matrix that has an entry for some of the (job, interval, phase)."""
        from scipy.sparse import csr_array

        column = np.arange(len(self._job))[which]
        shape = (num_rows, len(self._job) + self._num_ahead)
        return csr_array((np.broadcast_to(value, column.shape), (row, column)), shape=shape)


@dataclass(frozen=True)
class JctBound:
    """What no schedule's average JCT is below, seconds.

    Attributes
    ----------
    alone_s
        Of each job as if it were alone (J,): its own JCT is not below it either.
    programme_s
        By the linear programme, which knows that jobs share GPUs, memory and cards.
    """

    alone_s: np.ndarray
    programme_s: float

    @property
    def average_jct_s(self) -> float:
        """The larger of the mean of the first and the second."""
        return max(float(self.alone_s.mean()), self.programme_s)


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
    return JctBound(phases.alone_s, programme_s / len(workload))


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
