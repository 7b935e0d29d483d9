"""Crux: traffic of jobs that compute most for it goes first, in few strict classes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, ClassVar

import numpy as np

from algorithms.contention.compression import compressed
from algorithms.contention.crux_priority import Load, priorities
from ddlsched.network.contention import MaxMin
from ddlsched.network.rates import LEVELS
from ddlsched.network.topology import Network
from ddlsched.policies.views import JobView, TransferView
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import ComputeTask, IterationDag

__all__ = ["Crux", "start_share"]


@dataclass(frozen=True, kw_only=True)
class Crux(MaxMin):
    """Strict classes by Crux's priority; max-min sharing within one. With ``--path crux`` it is the whole of Crux.

    A job's priority is its intensity (compute x GPUs of an iteration over the time of its traffic alone) x a factor
    that makes equal priorities mean equal work (:mod:`algorithms.contention.crux_priority`). Jobs that share links must
    be in their order; :mod:`algorithms.contention.compression` cuts it into classes.

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

    def level(self, transfer: TransferView) -> int:
        """Return the class of a transfer's job, after it and its links are known."""
        job, number = transfer.job, transfer.job.number
        links = self._links.get(number, frozenset()) if self._places.get(number) == job.gpus else frozenset()
        if not links.issuperset(transfer.links):
            self._jobs[number], self._places[number] = job, job.gpus
            self._links[number] = links.union(transfer.links)
            self._forget_those_that_left()
            self._classify()
        return self._classes.get(number, 0)

    def _forget_those_that_left(self) -> None:
        for number in [n for n, job in self._jobs.items() if not job.servers or job.iterations_left == 0]:
            for known in (self._jobs, self._links, self._places, self._classes):
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
    ready_ns: dict[str, float] = {}
    tasks, ends_ns = {task.name: task for task in dag.tasks}, dict[str, float]()

    def end_ns(name: str) -> float:
        if name not in ends_ns:
            task = tasks[name]
            begin_ns = max((end_ns(before) for before in task.after), default=0.0)
            if not isinstance(task, ComputeTask):
                ready_ns[name] = begin_ns
            ends_ns[name] = begin_ns + (task.duration_ns if isinstance(task, ComputeTask) else 0)
        return ends_ns[name]

    for name in tasks:
        end_ns(name)
    first_ns = min(ready_ns.values(), default=inf)
    return min(first_ns / dag.compute_ns, 1.0) if dag.compute_ns and first_ns < inf else 1.0
