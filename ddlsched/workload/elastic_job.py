"""Jobs whose GPUs and batch change while they run: the time of an iteration at each size, and what a change costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, inf
from typing import Protocol, TypeAlias, runtime_checkable

from ddlsched.errors import InputError, guarded
from ddlsched.ranges import REQUIRED, Checked, check_fields, ranged
from ddlsched.units import MAX_MESSAGE_BYTES, MAX_NS, NS_PER_S, ns_from_s
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job


@dataclass(frozen=True, kw_only=True)
class Rescale:
    """A change of a job's GPUs or batch, decided at one instant.

    Attributes
    ----------
    job_id, time_s
        Whose, and when.
    from_gpus, to_gpus
        GPUs before (and before any were lost) and after; ``from_gpus`` is 0 for a job that was stopped or new.
    from_batch, to_batch
        Samples an iteration; 0 before the first start.
    lost_gpus
        How many of ``from_gpus`` left with their servers at this instant.
    added_gpus, removed_gpus
        How many GPUs it has after that it had not before, and the other way round (the lost ones among them).
    to_servers
        How many servers it is on afterwards.
    is_first
        Whether it never ran before.
    pending_s
        What was left of an earlier change's time; this change's replaces it.
    lost_samples
        Progress that went: iterations since the last commit if servers were lost without warning; the iteration
        under way is not counted.
    """

    job_id: str
    time_s: float
    from_gpus: int
    to_gpus: int
    from_batch: int
    to_batch: int
    lost_gpus: int
    added_gpus: int
    removed_gpus: int
    to_servers: int
    is_first: bool
    pending_s: float
    lost_samples: int


RescaleCost: TypeAlias = Callable[[Rescale], float]
"""Returns the seconds that a change takes; any function of a :class:`Rescale` is one."""


@dataclass(frozen=True, kw_only=True)
class ConstantRescaleCost(Checked, who="rescale cost"):
    """Constants by the kind of change, seconds; the dearest of those that apply, not their sum.

    Parameters
    ----------
    up_s
        The job gets a GPU that it had not.
    down_s
        It loses one or gives one up and goes on.
    resume_s
        It goes on from its checkpoint after it was stopped.
    start_s
        It starts for the first time.
    batch_s
        Only its batch changes.
    """

    up_s: float = ranged(0.0, 0.0)
    down_s: float = ranged(0.0, 0.0)
    resume_s: float = ranged(0.0, 0.0)
    start_s: float = ranged(0.0, 0.0)
    batch_s: float = ranged(0.0, 0.0)

    @classmethod
    def parse(cls, text: str) -> ConstantRescaleCost:
        """Return the constants of a text such as ``up_s=18,down_s=12``, or ``restart_s=30`` for every change alike.

        Raises
        ------
        InputError
            A name that is none of these, or a value that is no time.
        """
        values: dict[str, float] = {}
        known = ["restart_s", *(field.name for field in fields(cls))]
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in known or name in values:
                raise InputError(f"rescale cost: {part!r} names no constant, or one again; expected {', '.join(known)}")
            try:
                values[name] = float(value)
            except ValueError:
                raise InputError(f"rescale cost: {name} is {value!r}; expected seconds from 0") from None
        restart_s = values.pop("restart_s", None)
        return cls(**values) if restart_s is None else replace(cls.restart(restart_s), **values)

    @classmethod
    def restart(cls, seconds: float) -> ConstantRescaleCost:
        """Return the cost of a checkpoint, stop and restart at every change; the first start is free."""
        return cls(up_s=seconds, down_s=seconds, resume_s=seconds, batch_s=seconds)

    def __call__(self, change: Rescale) -> float:
        """Return the seconds that a change takes."""
        if change.from_gpus == 0:
            return self.start_s if change.is_first else self.resume_s
        up_s = self.up_s if change.added_gpus else 0.0
        down_s = self.down_s if change.removed_gpus else 0.0
        return max(up_s, down_s) if change.added_gpus or change.removed_gpus else self.batch_s


@runtime_checkable
class ScalingCurve(Protocol):
    """The time of an iteration's compute; a curve may be any object with this method."""

    def iteration_s(self, num_gpus: int, batch: int) -> float:
        """Return the time of one iteration of ``batch`` samples, spread over ``num_gpus`` GPUs, seconds.

        Without the all-reduce, unless the job says that its curve has it (``message_bytes=0``).
        """


@dataclass(frozen=True, kw_only=True)
class ThroughputCurve:
    """Measured throughput by the number of GPUs, whatever the batch; linear between the points.

    Below the first point it falls in proportion; above the last it stays.

    Parameters
    ----------
    num_gpus
        Ascending numbers of GPUs, from 1.
    samples_per_s
        The throughput at each, > 0.
    """

    num_gpus: tuple[int, ...]
    samples_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_points("num_gpus", self.num_gpus, "samples_per_s", self.samples_per_s)

    def iteration_s(self, num_gpus: int, batch: int) -> float:
        """Return the batch over the throughput, seconds."""
        return batch / self.throughput(num_gpus)

    def throughput(self, num_gpus: int) -> float:
        """Return the throughput on so many GPUs, samples/s."""
        return _interpolated(self.num_gpus, self.samples_per_s, num_gpus)


@dataclass(frozen=True, kw_only=True)
class BatchCurve:
    """Measured times of one GPU by its share of the batch, linear between the points; GPUs compute side by side.

    Below the first point the time stays; above the last it goes on in a straight line.

    Parameters
    ----------
    gpu_batch
        Ascending numbers of samples on one GPU, from 1.
    seconds
        The time of each, > 0.
    """

    gpu_batch: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_points("gpu_batch", self.gpu_batch, "seconds", self.seconds)

    def iteration_s(self, num_gpus: int, batch: int) -> float:
        """Return the time of the largest share, seconds."""
        share = ceil(batch / num_gpus)
        sizes, seconds = self.gpu_batch, self.seconds
        if share > sizes[-1] and len(sizes) > 1:
            slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
            return seconds[-1] + max(slope, 0.0) * (share - sizes[-1])
        return _interpolated(sizes, seconds, share, below=seconds[0])


@dataclass(frozen=True, kw_only=True)
class LinearCurve:
    """One GPU takes ``fixed_s`` and ``sample_s`` for each sample of its share; GPUs compute side by side."""

    fixed_s: float = ranged(REQUIRED, 0.0)
    sample_s: float = ranged(REQUIRED, 0.0)

    def __post_init__(self) -> None:
        check_fields(self, "scaling curve")
        if self.fixed_s + self.sample_s <= 0:
            raise InputError("scaling curve: fixed_s and sample_s are both 0; expected one of them above 0")

    def iteration_s(self, num_gpus: int, batch: int) -> float:
        """Return the time of the largest share, seconds."""
        return self.fixed_s + self.sample_s * ceil(batch / num_gpus)


def _check_points(x_name: str, xs: tuple[int, ...], y_name: str, ys: tuple[float, ...]) -> None:
    if not xs or len(xs) != len(ys):
        raise InputError(f"scaling curve: {len(xs)} {x_name} and {len(ys)} {y_name}; expected as many of both, from 1")
    if xs[0] < 1 or any(b <= a for a, b in pairwise(xs)):
        raise InputError(f"scaling curve: {x_name} is {xs}; expected ascending whole numbers from 1")
    if not all(0 < y < inf for y in ys):
        raise InputError(f"scaling curve: {y_name} is {ys}; expected finite numbers above 0")


def _interpolated(xs: tuple[int, ...], ys: tuple[float, ...], x: int, below: float | None = None) -> float:
    """Return y at x: linear between the points, the last above them, in proportion (or ``below``) below them."""
    if x <= xs[0]:
        return ys[0] * x / xs[0] if below is None else below
    for place in range(1, len(xs)):
        if x <= xs[place]:
            share = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
            return ys[place - 1] + share * (ys[place] - ys[place - 1])
    return ys[-1]


@dataclass(frozen=True, kw_only=True)
class ElasticJob(Job):
    """A training job that an allocation policy gives GPUs and a batch, and takes them back.

    Its work is a number of samples. An iteration trains ``batch`` of them: a compute task on each GPU, then,
    with ``message_bytes``, an all-reduce, which contends for links if the job is on several servers. The last
    iteration takes as long as any other, however few samples are left for it. The job has its GPUs for itself.

    Parameters
    ----------
    job_id, arrival_s, gpu_memory_mb, model, user
        As of any job.
    samples
        Samples to train in all.
    curve
        The time of an iteration by GPUs and batch; with the communication in it if ``message_bytes`` is 0.
    min_gpus, max_gpus
        Fewest and most GPUs on which it runs.
    min_batch, max_batch
        Fewest and most samples an iteration, over all its GPUs. By default the most is as many as fit its
        most GPUs.
    gpu_batch
        Most samples an iteration that one GPU has room for.
    message_bytes
        Bytes of an iteration's all-reduce.
    rescale_cost
        The job's own cost of changes, in place of the run's.

    Raises
    ------
    InputError
        A value out of range, or a number of GPUs for which no batch is allowed.
    """

    num_gpus: int = field(init=False)
    iterations: int = field(init=False)
    iteration: IterationDag = field(init=False)
    time_limit_s: float | None = field(init=False, default=None)
    queue: str | None = field(init=False, default=None)
    priority: int = field(init=False, default=0)
    required_levels: str | None = field(init=False, default=None)
    preferred_levels: str | None = field(init=False, default=None)
    balanced_level: str | None = field(init=False, default=None)
    samples: int = ranged(REQUIRED, 1)
    curve: ScalingCurve
    gpu_batch: int = ranged(REQUIRED, 1)
    min_gpus: int = ranged(1, 1)
    max_gpus: int = ranged(REQUIRED, 1)
    min_batch: int = ranged(1, 1)
    max_batch: int | None = ranged(None, 1)
    message_bytes: float = ranged(0.0, 0.0, MAX_MESSAGE_BYTES)
    gpu_memory_mb: float = 0.0
    rescale_cost: RescaleCost | None = None

    def __post_init__(self) -> None:
        check_fields(self, f"job {self.job_id!r}")
        if self.max_gpus < self.min_gpus:
            raise InputError(f"job {self.job_id!r}: max_gpus is {self.max_gpus}; expected at least {self.min_gpus}")
        for num_gpus in (self.min_gpus, self.max_gpus):
            if self.smallest_batch(num_gpus) > self.largest_batch(num_gpus):
                raise InputError(
                    f"job {self.job_id!r}: no batch from {self.min_batch} to {self.max_batch} has a sample for each of "
                    f"{num_gpus} GPUs and at most {self.gpu_batch} on one; expected other batches or numbers of GPUs"
                )
        object.__setattr__(self, "num_gpus", self.max_gpus)
        object.__setattr__(self, "iterations", -(-self.samples // self.largest_batch(self.max_gpus)))
        object.__setattr__(self, "iteration", self._dag(self.max_gpus))
        super().__post_init__()

    def _dag(self, num_gpus: int) -> IterationDag:
        compute = ComputeTask(name="compute", duration_ns=self.compute_ns_at(num_gpus, self.largest_batch(num_gpus)))
        if not self.message_bytes:
            return IterationDag((compute,))
        return IterationDag(
            (compute, AllReduceTask(name="all-reduce", message_bytes=self.message_bytes, after=("compute",)))
        )

    @cached_property
    def dag(self) -> IterationDag:
        """The tasks of an iteration; the duration is that on its most GPUs with the largest batch."""
        return self.iteration

    def smallest_batch(self, num_gpus: int) -> int:
        """Return the fewest samples an iteration on so many GPUs: one on each at least."""
        return max(self.min_batch, num_gpus)

    def largest_batch(self, num_gpus: int) -> int:
        """Return the most samples an iteration on so many GPUs."""
        fits = num_gpus * self.gpu_batch
        return fits if self.max_batch is None else min(fits, self.max_batch)

    def compute_ns_at(self, num_gpus: int, batch: int) -> int:
        """Return the compute time of an iteration, whole nanoseconds, at least 1.

        Raises
        ------
        PluginError
            The curve raised.
        InputError
            The curve answered no time.
        """
        what = f"job {self.job_id!r}: scaling curve"
        seconds = guarded(what, lambda: self.curve.iteration_s(num_gpus, batch))
        if not isinstance(seconds, int | float) or not 0 <= seconds < MAX_NS / NS_PER_S:
            raise InputError(f"{what} answered {seconds!r} for {num_gpus} GPUs, batch {batch}; expected seconds from 0")
        return max(ns_from_s(seconds), 1)


def messages_and_workers(jobs: Iterable[Job]) -> list[tuple[list[float], int]]:
    """Return of each job with several GPUs the sizes of an iteration's messages, bytes, and its number of GPUs."""
    return [(list(job.dag.messages), job.num_gpus) for job in jobs if job.num_gpus > 1]
