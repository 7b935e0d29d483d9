"""Degrees of parallelism, what they make of a rank's number, and which stage holds which layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ddlsched.errors import InputError, did_you_mean
from ddlsched.units import is_whole

__all__ = ["Coordinates", "StoredParallelism", "even_stages", "parse_parallelism"]

_DEGREES = ("tp", "pp", "dp", "ep")
_MOST = 10**5
"""Ranks; more than any machine has, and few enough that a plan of so many ends."""


class Coordinates(NamedTuple):
    """A rank's place in each kind of group, each counted from 0."""

    tensor: int
    expert: int
    data: int
    stage: int


@dataclass(frozen=True, kw_only=True)
class StoredParallelism:
    """Degrees of parallelism; ranks are numbered tensor-parallel neighbours first, then data, then pipeline.

    Parameters
    ----------
    tp, pp, dp
        Ranks of a tensor-parallel group, pipeline stages, data-parallel replicas; their product is the number of ranks.
    ep
        Ranks over which the experts are spread; part of the data-parallel ones, neighbours first.

    Raises
    ------
    InputError
        A degree is no whole number from 1, or ``ep`` does not divide ``dp``.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in _DEGREES:
            if not is_whole(getattr(self, name), 1, _MOST):
                raise InputError(f"{name} is {getattr(self, name)!r}; expected a whole number from 1 to {_MOST:,}")
        if self.num_ranks > _MOST:
            raise InputError(f"{self} has {self.num_ranks:,} ranks; expected at most {_MOST:,}")
        if self.dp % self.ep:
            raise InputError(f"ep {self.ep} does not divide dp {self.dp}; expected experts on whole groups of replicas")

    @property
    def num_ranks(self) -> int:
        """Product of tp, pp and dp."""
        return self.tp * self.pp * self.dp

    def coordinates(self, rank: int) -> Coordinates:
        """Return where a rank is in each kind of group."""
        rest, tensor = divmod(rank, self.tp)
        stage, data = divmod(rest, self.dp)
        return Coordinates(tensor, data % self.ep, data, stage)

    def rank(self, tensor: int, data: int, stage: int) -> int:
        """Return the number of the rank at these coordinates."""
        return tensor + self.tp * (data + self.dp * stage)

    def __str__(self) -> str:
        """Return the text that :func:`parse_parallelism` reads."""
        names = _DEGREES if self.ep > 1 else _DEGREES[:3]
        return ",".join(f"{name}={getattr(self, name)}" for name in names)


def parse_parallelism(text: str) -> StoredParallelism:
    """Return the parallelism of a text such as ``tp=4,pp=2,dp=2``; what it leaves out is 1.

    Raises
    ------
    InputError
        A part is no degree, or is there twice.
    """
    degrees: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in _DEGREES:
            raise InputError(
                f"{text!r}: {name!r} is no degree; expected e.g. tp=4,pp=2,dp=2.{did_you_mean(name, _DEGREES)}"
            )
        if name in degrees:
            raise InputError(f"{text!r}: {name} is there twice; expected once")
        if not value.isdecimal():
            raise InputError(f"{text!r}: {name} is {value!r}; expected a whole number from 1")
        degrees[name] = int(value)
    return StoredParallelism(**degrees)


def even_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the stage of each layer, in order and as even as can be; earlier stages get the layers left over.

    Raises
    ------
    InputError
        There are fewer layers than stages (a model without layers fits one stage).
    """
    if num_stages > max(num_layers, 1):
        raise InputError(f"pp is {num_stages}; expected at most the number of layers, {num_layers}")
    each, left = divmod(num_layers, num_stages)
    return tuple(stage for stage in range(num_stages) for _ in range(each + (stage < left)))
