"""Domains of a topology with room for pods and slices of them, and the fewest that hold a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Domain", "Request", "least", "ordered", "tree_of", "with_room"]


class Request(NamedTuple):
    """What a job asks for: pods, the level of all of it (0 the widest) and whether it is required, and its slices.

    Slices are pairs of a size and a level, the largest first, each in one of the one before.
    """

    pods: int
    level: int | None
    required: bool
    slices: tuple[tuple[int, int], ...]

    def sizes_below(self, slice_level: int) -> dict[int, int]:
        """Return of the levels below that of the largest slices how large those are that lie in one domain."""
        sizes: dict[int, int] = {}
        above = slice_level
        for size, level in self.slices[1:]:
            sizes |= dict.fromkeys(range(above + 1, level + 1), size)
            above = level
        return sizes


@dataclass(eq=False)
class Domain:
    """A domain: its place in the topology, for how many pods it has room, and for how many whole slices."""

    path: tuple[int, ...]
    pods: int = 0
    slices: int = 0
    children: list[Domain] = field(default_factory=list)

    def fill(self, size: int, slice_level: int, sizes: Mapping[int, int]) -> None:
        """Sum up what has room in it."""
        level = len(self.path) - 1
        if self.children:
            inner = sizes.get(level + 1, 1)
            for child in self.children:
                child.fill(size, slice_level, sizes)
            self.pods = sum(child.pods // inner * inner for child in self.children)
            self.slices = sum(child.slices for child in self.children)
        if level == slice_level:
            self.slices = self.pods // size

    def clear(self) -> None:
        """Leave it no room."""
        self.pods = self.slices = 0
        for child in self.children:
            child.clear()

    def copy(self) -> Domain:
        """Return the same with room of its own."""
        return Domain(self.path, self.pods, self.slices, [child.copy() for child in self.children])


def tree_of(pods: Mapping[tuple[int, ...], int]) -> list[list[Domain]]:
    """Return the domains of each level, the widest first, from the room of those of the lowest by their paths."""
    levels: list[dict[tuple[int, ...], Domain]] = [{} for _ in next(iter(pods), ())]
    for path in sorted(pods):
        for level, domains in enumerate(levels):
            own = path[: level + 1]
            if own not in domains:
                domains[own] = Domain(own)
                if level:
                    levels[level - 1][path[:level]].children.append(domains[own])
        levels[-1][path].pods = pods[path]
    return [list(domains.values()) for domains in levels]


def ordered(domains: Sequence[Domain], *, ascending: bool) -> list[Domain]:
    """Return domains, those with room for the most slices first, or for the fewest, of equal ones with fewer pods."""
    sign = 1 if ascending else -1
    return sorted(domains, key=lambda domain: (sign * domain.slices, domain.pods, domain.path))


def _fitting(domains: Sequence[Domain], amount: str, needed: int) -> Domain:
    """Return the first with the least room that suffices; the first of all if none does."""
    enough = [domain for domain in domains if getattr(domain, amount) >= needed]
    return min(enough, key=lambda domain: getattr(domain, amount), default=domains[0])


def with_room(
    top: list[list[Domain]], level: int, request: Request, size: int, *, ascending: bool
) -> tuple[int, list[Domain]]:
    """Return a level and its domains that hold a job: one, or as few as can be where that is allowed; else none."""
    needed = request.pods // size
    domains = ordered(top[level], ascending=ascending) if top else []
    if not domains:
        return level, []
    first = _fitting(domains, "slices", needed)
    if first.slices >= needed:
        return level, [first]
    if request.required:
        return level, []
    if level and request.level is not None:
        return with_room(top, level - 1, request, size, ascending=ascending)
    found: list[Domain] = []
    for place, domain in enumerate(domains):
        if needed <= 0:
            break
        if not ascending and domain.slices >= needed:
            domain = _fitting(domains[place:], "slices", needed)
        found.append(domain)
        needed -= domain.slices
    return level, found if needed <= 0 else []


def least(domains: Sequence[Domain], count: int, size: int, *, ascending: bool, in_slices: bool = True) -> list[Domain]:
    """Return the first of these domains that hold so many pods, each with what it gets; the last fits best."""
    amount, unit = ("slices", size) if in_slices else ("pods", 1)
    left, found = count // unit, list[Domain]()
    for place, domain in enumerate(domains):
        if not ascending and getattr(domain, amount) >= left:
            domain = _fitting(domains[place:], amount, left)
        found.append(domain)
        taken = min(getattr(domain, amount), left)
        domain.pods = taken * unit
        left -= taken
        if not left:
            domain.slices = taken if in_slices else domain.slices
            break
    return found
