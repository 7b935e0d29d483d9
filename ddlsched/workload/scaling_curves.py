"""How long an iteration takes on how many GPUs and with which batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from typing import Protocol, runtime_checkable

from ddlsched.errors import InputError

__all__ = ["BatchCurve", "LinearCurve", "ScalingCurve", "ThroughputCurve"]


@runtime_checkable
class ScalingCurve(Protocol):
    """The time of an iteration's compute; a curve may be any object with this method."""

    def iteration_s(self, num_gpus: int, batch: int) -> float:
        """Return the time of one iteration of ``batch`` samples, spread over ``num_gpus`` GPUs, seconds.

        Without the all-reduce, unless the job says that its curve has it (``message_bytes=0``).
        """
        ...


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

    fixed_s: float
    sample_s: float

    def __post_init__(self) -> None:
        for name in ("fixed_s", "sample_s"):
            if not 0 <= getattr(self, name) < inf:
                raise InputError(f"scaling curve: {name} is {getattr(self, name)}; expected seconds from 0")
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
