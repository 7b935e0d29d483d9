"""Crux: traffic of jobs that compute most for it goes first, in few strict classes: priorities are compressed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, TypeVar

import numpy as np

from ddlsched.network.contention import MaxMin
from ddlsched.network.rates import LEVELS
from ddlsched.network.topology import Network
from ddlsched.policies.views import JobView, TransferView
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import ComputeTask, IterationDag


def compressed(weights: np.ndarray, levels: int, orders: int, rng: np.random.Generator) -> list[int]:
    """Return the class of each job, 0 for the one served first.

    Of ``orders`` random topological orders, each is cut into ``levels`` runs such that the weight between different
    runs is the most: f(i, k) = max over j < i of f(j, k - 1) + C(j, i), where C(j, i) is the weight from the first j to
    those after them up to i. The best of all orders is taken.

    Parameters
    ----------
    weights
        Shape (jobs, jobs): of the edge from a row's job to a column's, which must go after it; 0 where there is none.
        Without circles.
    levels
        How many classes there are.
    orders
        How many orders are tried; m = 10 in the paper.
    """
    count = len(weights)
    if not count:
        return []
    best, best_cut = list[int](), -1.0
    for _ in range(orders):
        order = _random_order(weights, rng)
        found, cut = _cut(weights[np.ix_(order, order)], min(levels, count))
        if cut > best_cut:
            best_cut = cut
            best = [level for _, level in sorted(zip(order, found, strict=True))]
    return best


def _random_order(weights: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Return a topological order, breadth first, with those that come free at once in a random order."""
    waits_for = (weights > 0).sum(axis=0)
    order: list[int] = []
    ready = np.flatnonzero(waits_for == 0)
    while len(ready):
        layer = rng.permutation(ready).tolist()
        order += layer
        after = (weights[layer] > 0).sum(axis=0)
        waits_for = waits_for - after
        ready = np.flatnonzero((after > 0) & (waits_for == 0))
    return order


def _cut(weights: np.ndarray, levels: int) -> tuple[list[int], float]:
    """Return the class of each place of an order, and the weight that is cut."""
    count = len(weights)
    sums = np.zeros((count + 1, count + 1))
    sums[1:, 1:] = weights.cumsum(axis=0).cumsum(axis=1)
    # Row j, column i: C(j, i), the weight from places before j to places from j up to i.
    between = sums - np.diag(sums)[:, None]
    value = np.full(count + 1, -np.inf)
    value[0] = 0.0
    chosen = []
    for _ in range(levels):
        candidates = value[:, None] + np.where(np.tri(count + 1, k=0, dtype=bool).T, between, -np.inf)
        chosen.append(candidates.argmax(axis=0))
        value = candidates.max(axis=0)
    return _backtrack(chosen, count), float(value[count])


def _backtrack(chosen: list[np.ndarray], count: int) -> list[int]:
    found, end = [0] * count, count
    for level in range(len(chosen) - 1, -1, -1):
        begin = int(chosen[level][end])
        found[begin:end] = [level] * (end - begin)
        end = begin
    return found


Name = TypeVar("Name", bound=Hashable)

_PERIODS = 3
"""How many iterations of the longer-lasting job two jobs are played; so many make up the published example's 12 s."""

MOST = 1e3
"""The correction factor is at most this, and at least 1 / this."""

MOST_STEPS = 20_000
"""After so many events of two jobs the play ends, at most: jobs with iterations of very different lengths."""


@dataclass(frozen=True, slots=True)
class Load:
    """What Crux knows of a job: measured while it runs.

    Parameters
    ----------
    compute_s
        Of an iteration.
    network_s
        Of an iteration's traffic on the link that takes the longest for it, alone.
    num_gpus
        Of the job; compute x GPUs stands for the floating-point operations.
    start_share
        After which share of the compute communication may start; 1: no overlap.
    """

    compute_s: float
    network_s: float
    num_gpus: int = 1
    start_share: float = 1.0

    @property
    def intensity(self) -> float:
        """GPU-seconds of compute for a second of the network."""
        return self.compute_s * self.num_gpus / self.network_s

    @property
    def period_s(self) -> float:
        """An iteration alone, seconds."""
        return max(self.compute_s, self.start_share * self.compute_s + self.network_s)


class _Sender:
    """A job in the play of two."""

    def __init__(self, load: Load) -> None:
        self.load, self.sent_s = load, 0.0
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """Begin an iteration."""
        self.ready_s = now_s + self.load.start_share * self.load.compute_s
        self.computed_s = now_s + self.load.compute_s
        self.left_s = self.load.network_s

    def wants(self, now_s: float) -> bool:
        """Return whether it has something to send now."""
        return self.left_s > 0 and self.ready_s <= now_s

    def next_s(self, now_s: float) -> float:
        """Return when, without sending, something happens to it: it may send, or an iteration ends."""
        times_s = (self.ready_s if self.left_s > 0 else now_s, self.computed_s)
        return min((time_s for time_s in times_s if time_s > now_s), default=float("inf"))


def sent_s(first: Load, second: Load, horizon_s: float) -> tuple[float, float]:
    """Return for how long each of two jobs sends until the horizon on one link, where ``first`` interrupts ``second``.

    Both begin an iteration at 0.
    """
    both = _Sender(first), _Sender(second)
    now_s, steps = 0.0, 0
    while now_s < horizon_s and steps < MOST_STEPS:
        for job in both:
            if job.left_s <= 0 and job.computed_s <= now_s:
                job.begin(now_s)
        sender = next((job for job in both if job.wants(now_s)), None)
        then_s = min(horizon_s, *(job.next_s(now_s) for job in both))
        if sender is not None:
            then_s = min(then_s, now_s + sender.left_s)
            sender.sent_s += then_s - now_s
            done = then_s >= now_s + sender.left_s
            sender.left_s = 0.0 if done else sender.left_s - (then_s - now_s)
        now_s, steps = then_s, steps + 1
    return both[0].sent_s, both[1].sent_s


@lru_cache(maxsize=65536)
def correction_factor(reference: Load, load: Load) -> float:
    """Return k = b / a of a job beside the reference job.

    a is how much more the reference sends when it goes first than when it goes second, b the same of the job, both in
    seconds, over three iterations of the one whose iterations are longer. A job whose place makes no difference to
    either has k = 1.
    """
    horizon_s = _PERIODS * max(reference.period_s, load.period_s)
    reference_first_s, load_second_s = sent_s(reference, load, horizon_s)
    load_first_s, reference_second_s = sent_s(load, reference, horizon_s)
    a_s, b_s = reference_first_s - reference_second_s, load_first_s - load_second_s
    if a_s <= 0:
        return 1.0 if b_s <= 0 else MOST
    return min(max(b_s / a_s, 1 / MOST), MOST)


def priorities(loads: Mapping[Name, Load]) -> dict[Name, float]:
    """Return k x intensity of each job.

    The reference, with k = 1, is the job with the most traffic a second alone; of equal ones the most an iteration.
    """
    if not loads:
        return {}
    reference = max(loads.values(), key=lambda load: (load.network_s / load.period_s, load.network_s))
    return {name: correction_factor(reference, load) * load.intensity for name, load in loads.items()}


@dataclass(frozen=True, kw_only=True)
class Crux(MaxMin):
    """Strict classes by Crux's priority; max-min sharing within one. With ``--path crux`` it is the whole of Crux.

    A job's priority is its intensity (compute x GPUs of an iteration over the time of its traffic alone) x a factor
    that makes equal priorities mean equal work (:mod:`algorithms.contention.crux`). Jobs that share links must
    be in their order; :mod:`algorithms.contention.crux` cuts it into classes.

    Deviations: a job counts from its first transfer on, with the links of its transfers so far, and until it leaves
    its GPUs. The play of two jobs lasts three of the longer iterations: in general the paper does not say. Compute time
    x GPUs stands for floating-point operations. Nothing is blocked inside a host. Its rules look at all jobs at once,
    so it is asked in Python.

    Parameters
    ----------
    levels
        K, how many classes there are, from 1 to 8.
    orders
        m, how many random topological orders the compression tries.
    seed
        Of these orders.

    References
    ----------
    Cao et al., "Crux: GPU-Efficient Communication Scheduling for Deep Learning Training", SIGCOMM 2024.
    """

    levels: int = ranged(LEVELS, 1, LEVELS)
    orders: int = ranged(10, 1, 1000)
    seed: int = ranged(0, 0, 2**32 - 1)
    compiled: ClassVar[bool] = False
    _classes: _Classes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "contention Crux")

    def bound_to(self, network: Network) -> Crux:
        """Return the model of a run, which knows the jobs that have sent."""
        per_byte_s = 1.0 / network.nic_bytes_per_s if self.per_byte_s is None else self.per_byte_s
        bound = replace(self, per_byte_s=per_byte_s)
        object.__setattr__(bound, "_classes", _Classes(self.levels, self.orders, np.random.default_rng(self.seed)))
        return bound

    def level(self, transfer: Any) -> int:
        """Return the class of the transfer's job; 0 where no run has begun, or for what is no transfer of one."""
        if self._classes is None or not hasattr(transfer, "number"):
            return 0
        return self._classes.level(transfer)


class _Classes:
    """The jobs of a run that have sent, their links, and the classes that follow."""

    def __init__(self, levels: int, orders: int, rng: np.random.Generator) -> None:
        self._levels, self._orders, self._rng = levels, orders, rng
        self._jobs: dict[int, JobView] = {}
        self._links: dict[int, frozenset[int]] = {}
        self._places: dict[int, tuple[int, ...]] = {}
        self._classes: dict[int, int] = {}
        self._seen: dict[int, dict[int, tuple[int, ...]]] = {}

    def level(self, transfer: TransferView) -> int:
        """Return the class of a transfer's job, after it and its links are known."""
        job, number = transfer.job, transfer.job.number
        seen = self._seen.setdefault(number, {})
        if seen.get(transfer.number) is transfer.links and self._places.get(number) is job.gpus:
            return self._classes[number]  # nothing of it is new
        links = self._links.get(number, frozenset()) if self._places.get(number) == job.gpus else frozenset()
        if not links:
            seen.clear()
        if not links.issuperset(transfer.links):
            self._jobs[number], self._places[number] = job, job.gpus
            self._links[number] = links.union(transfer.links)
            self._forget_those_that_left()
            self._classify()
        if self._places.get(number) is job.gpus:
            seen[transfer.number] = transfer.links
        return self._classes.get(number, 0)

    def _forget_those_that_left(self) -> None:
        for number in [n for n, job in self._jobs.items() if not job.servers or job.iterations_left == 0]:
            for known in (self._jobs, self._links, self._places, self._classes, self._seen):
                known.pop(number, None)

    def _classify(self) -> None:
        """Give all jobs that are known their classes."""
        numbers = sorted(self._jobs)
        loads = {number: load_of(self._jobs[number]) for number in numbers}
        rank = priorities(loads)
        weights = np.zeros((len(numbers), len(numbers)))
        for i, one in enumerate(numbers):
            for j, other in enumerate(numbers):
                goes_first = (-rank[one], one) < (-rank[other], other)
                if goes_first and not self._links[one].isdisjoint(self._links[other]):
                    weights[i, j] = loads[one].intensity
        classes = compressed(weights, self._levels, self._orders, self._rng)
        self._classes = dict(zip(numbers, classes, strict=True))


def load_of(job: JobView) -> Load:
    """Return what Crux knows of a job that runs."""
    network_s = max(job.communication_ns, 1) / NS_PER_S
    return Load(job.compute_ns / NS_PER_S, network_s, job.num_gpus, start_share(job.dag))


def start_share(dag: IterationDag) -> float:
    """Return after which share of an iteration's compute its first collective may start; 1 without compute."""
    ends_ns, first_ns = [0.0] * len(dag.tasks), inf
    for number in dag.in_order():
        task = dag.tasks[number]
        ends_ns[number] = max((ends_ns[before] for before in dag.predecessors[number]), default=0.0)
        if isinstance(task, ComputeTask):
            ends_ns[number] += task.duration_ns
        else:
            first_ns = min(first_ns, ends_ns[number])
    return min(first_ns / dag.compute_ns, 1.0) if dag.compute_ns and first_ns < inf else 1.0
