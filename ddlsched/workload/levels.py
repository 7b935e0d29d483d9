"""What a job demands of the levels of a topology: for all of its workers, or for each slice of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from ddlsched.errors import InputError, did_you_mean

__all__ = ["LevelDemand", "demands_of", "slices_of", "whole_levels"]


class LevelDemand(NamedTuple):
    """A level in one unit of which all workers of a slice shall be.

    ``part`` is empty for the whole job, the name of a group for each of its tuples, or a number for each so many
    workers in their order.
    """

    part: str
    level: str


def demands_of(text: str | None) -> tuple[LevelDemand, ...]:
    """Return the demands of a job's ``required_levels`` or ``preferred_levels``.

    Raises
    ------
    InputError
        The text is none of that.

    Examples
    --------
    >>> demands_of("pod stage:rack 8:server")
    (LevelDemand(part='', level='pod'), LevelDemand(part='stage', level='rack'), LevelDemand(part='8', level='server'))
    """
    demands = [LevelDemand(*item.rpartition(":")[::2]) for item in (text or "").split()]
    for demand in demands:
        if not demand.level or (demand.part.isdecimal() and not int(demand.part)):
            expected = "expected levels between spaces, for a slice with it before a colon, such as 'pod 8:server'"
            raise InputError(f"is {text!r}; {expected}")
    return tuple(demands)


@cache
def whole_levels(text: str | None) -> tuple[str, ...]:
    """Return the levels that demands want of the whole job."""
    return tuple(demand.level for demand in demands_of(text) if not demand.part)


def slices_of(part: str, groups: Mapping[str, Sequence[Sequence[int]]], num_gpus: int) -> list[tuple[int, ...]]:
    """Return the workers of each slice of a part of a job, each worker once; who is in no tuple is one by itself.

    Raises
    ------
    InputError
        The job has no such group, or no whole number of such slices.
    """
    if not part:
        return [tuple(range(num_gpus))]
    if part.isdecimal():
        if num_gpus % int(part):
            raise InputError(f"has slices of {part} workers; expected a divisor of the job's {num_gpus}")
        return [tuple(range(first, first + int(part))) for first in range(0, num_gpus, int(part))]
    if part not in groups:
        known = ", ".join(groups) or "there is none"
        raise InputError(f"has the group {part!r}; expected a group of the job ({known}).{did_you_mean(part, groups)}")
    tuples = [tuple(members) for members in groups[part]]
    alone = sorted(set(range(num_gpus)).difference(*tuples))
    return [*tuples, *((worker,) for worker in alone)]
