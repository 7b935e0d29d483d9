"""Domains of a topology with room for pods and slices of them, and the fewest that hold a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np


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
    inside: Callable[[], list[Domain]] = list
    """Makes its :attr:`children`."""

    @cached_property
    def children(self) -> list[Domain]:
        """Those of the next level that have room, in the order of their paths."""
        return self.inside()

    def fill(self, size: int, slice_level: int) -> None:
        """Sum up what has room in it."""
        if self.children:
            for child in self.children:
                child.fill(size, slice_level)
            self.pods = sum(child.pods for child in self.children)
            self.slices = sum(child.slices for child in self.children)
        if len(self.path) - 1 == slice_level:
            self.slices = self.pods // size

    def clear(self) -> None:
        """Leave it no room."""
        self.pods = self.slices = 0
        for child in self.children:
            child.clear()

    def copy(self) -> Domain:
        """Return the same with room of its own."""
        children = [child.copy() for child in self.children]
        return Domain(self.path, self.pods, self.slices, lambda: children)


class DomainTree:
    """The domains of each level of a topology, the widest first, from the paths of those of the lowest."""

    def __init__(self, paths: Sequence[tuple[int, ...]]) -> None:
        self.order = np.array(sorted(range(len(paths)), key=paths.__getitem__), np.int64)
        """Which of ``paths`` each domain of the lowest level is."""
        lowest = [paths[place] for place in self.order.tolist()]
        self.paths = [list(dict.fromkeys(path[: level + 1] for path in lowest)) for level in range(len(paths[0]))]
        """Of each level, ascending."""
        self.firsts = [self._firsts(level) for level in range(len(self.paths) - 1)]
        """Of each level but the lowest: the first domain of the next one in each domain, and the number of those."""

    def _firsts(self, level: int) -> np.ndarray:
        parents = [path[:-1] for path in self.paths[level + 1]]
        starts = [place for place, path in enumerate(parents) if not place or path != parents[place - 1]]
        return np.array([*starts, len(parents)])


class Rooms:
    """For how many pods, and whole slices, each domain of a tree has room, as a request asks.

    Domains are made for who looks at them only.
    """

    def __init__(self, tree: DomainTree, pods: np.ndarray, request: Request) -> None:
        self._tree, self.lowest = tree, len(tree.paths) - 1
        self.size, self.slice_level = request.slices[0] if request.slices else (1, self.lowest)
        self._sizes = request.sizes_below(self.slice_level)
        self._lowest_pods, self._known = pods[tree.order], dict[int, tuple[np.ndarray, np.ndarray]]()

    def _of(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Return for how many pods each domain of a level has room, and for how many slices: of one pod the same."""
        if level not in self._known:
            if level == self.lowest:
                pods, slices = self._lowest_pods, np.zeros_like(self._lowest_pods)
            else:
                inside, slices = self._of(level + 1)
                size, starts = self._sizes.get(level + 1, 1), self._tree.firsts[level][:-1]
                pods = np.add.reduceat(inside // size * size if size > 1 else inside, starts)
                slices = pods if slices is inside else np.add.reduceat(slices, starts)
            if level == self.slice_level:
                slices = pods // self.size if self.size > 1 else pods
            self._known[level] = pods, slices
        return self._known[level]

    def domains(self, level: int, most: int | None = None, *, first: bool = False) -> list[Domain]:
        """Return the domains of a level that have room; if told only so many of each amount of it, or the first of all.

        Those are of the least room.
        """
        amounts = self._amounts(level)
        places = np.flatnonzero(self._of(level)[0])
        if most is not None and len(places) > most:
            order = np.argsort(amounts[places], kind="stable")
            if first:
                places = np.sort(places[order[:most]])
            else:
                amounts = amounts[places[order]]
                begins = np.flatnonzero(np.diff(amounts, prepend=-1))
                ranks = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
                places = np.sort(places[order[ranks < most]])
        return [self._domain(level, place) for place in places.tolist()]

    def fitting(self, level: int, needed: int) -> Domain | None:
        """Return the domain of a level with the least room that has so many slices; of equal ones the first."""
        there = np.flatnonzero(self._of(level)[1] >= needed)
        return self._domain(level, there[self._amounts(level)[there].argmin()].item()) if len(there) else None

    def _amounts(self, level: int) -> np.ndarray:
        """Return numbers by which the domains of a level are ordered: by slices, those of equal ones by pods."""
        pods, slices = self._of(level)
        amounts: np.ndarray = pods if slices is pods else slices * (int(pods.max()) + 1) + pods
        return amounts.astype(np.int16) if amounts.max() < 2**15 else amounts  # which are sorted by their digits

    def _domain(self, level: int, place: int) -> Domain:
        def inside() -> list[Domain]:
            if level == self.lowest:
                return []
            first, end = self._tree.firsts[level][place : place + 2].tolist()
            there = np.flatnonzero(self._of(level + 1)[0][first:end]) + first
            return [self._domain(level + 1, child) for child in there.tolist()]

        pods, slices = self._of(level)
        return Domain(self._tree.paths[level][place], pods.item(place), slices.item(place), inside)


def ordered(domains: Sequence[Domain], *, ascending: bool) -> list[Domain]:
    """Return domains, those with room for the most slices first, or for the fewest, of equal ones with fewer pods."""
    sign = 1 if ascending else -1
    return sorted(domains, key=lambda domain: (sign * domain.slices, domain.pods, domain.path))


def _fitting(domains: Sequence[Domain], amount: str, needed: int) -> Domain:
    """Return the first with the least room that suffices; the first of all if none does."""
    enough = [domain for domain in domains if getattr(domain, amount) >= needed]
    return min(enough, key=lambda domain: getattr(domain, amount), default=domains[0])


def with_room(rooms: Rooms, level: int, request: Request, *, ascending: bool) -> tuple[int, list[Domain]]:
    """Return a level and its domains that hold a job: one, or as few as can be where that is allowed; else none."""
    needed = request.pods // rooms.size
    if (first := rooms.fitting(level, needed)) is not None:
        return level, [first]
    if request.required:
        return level, []
    if level and request.level is not None:
        return with_room(rooms, level - 1, request, ascending=ascending)
    few = ascending and rooms.size == 1
    domains = ordered(rooms.domains(level, request.pods, first=few), ascending=ascending)
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
