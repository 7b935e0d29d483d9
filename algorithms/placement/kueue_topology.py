"""Kueue's choice of topology domains: best fit, least free capacity, balanced.

Domains of a topology with room for pods and slices of them, and the fewest that hold a job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.workload.groups import demands_of


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
    found = least(domains, request.pods, rooms.size, ascending=ascending)
    return level, found if sum(domain.pods for domain in found) == request.pods else []


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


@dataclass(frozen=True, kw_only=True)
class KueueTopology:
    """Where Kueue's topology-aware scheduling puts a job's pods, here one for each GPU, on GPUs without a job.

    A job's required level is in one domain; a preferred one in one, or in one of the next wider level, or in as few as
    can be of the widest. Slices, such as ``8:rack``, are each in a domain of their level.

    Parameters
    ----------
    least_free
        A job without a level goes to the servers with the fewest free GPUs (Kueue's TASProfileMixed, on
        by default there), else to as few servers as can be.
    balanced
        A job with a preferred level lies as evenly as can be in as few domains as can be (TASBalancedPlacement).

    References
    ----------
    Kueue 0.17, keps/2724-topology-aware-scheduling.
    """

    least_free: bool = True
    balanced: bool = False

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, in the order of the domains, or None to wait."""
        gpus = cluster.free(job)
        if len(gpus) < job.num_gpus:
            return None
        servers = cluster.servers_of(gpus)
        tree, levels = _tree_of(cluster.network), tuple(reversed(cluster.network.levels))
        request = _request(job.num_gpus, job.required_levels, job.preferred_levels, levels)
        rooms = Rooms(tree, np.bincount(servers, minlength=cluster.num_servers), request)
        found = assigned(rooms, request, least_free=self.least_free, even=self.balanced)
        if found is None:
            return None
        counts = sorted(found.items())
        firsts = np.searchsorted(servers, [path[-1] for path, _ in counts]).tolist()
        return [
            gpu
            for first, (_, count) in zip(firsts, counts, strict=True)
            for gpu in gpus[first : first + count].tolist()
        ]


@lru_cache(maxsize=1024)
def _request(pods: int, required_levels: str | None, preferred_levels: str | None, levels: tuple[str, ...]) -> Request:
    required, preferred = demands_of(required_levels), demands_of(preferred_levels)
    wholes = [levels.index(demand.level) for demand in required if not demand.part]
    wishes = [levels.index(demand.level) for demand in preferred if not demand.part]
    slices = [(int(each.part), levels.index(each.level)) for each in required if each.part.isdecimal()]
    if len(wholes) + len(wishes) + len(slices) < len(required) + len(preferred) or len(wholes) + len(wishes) > 1:
        raise InputError(
            f"has required levels {required_levels!r} and preferred ones {preferred_levels!r}; expected one level of "
            "the whole job, and required slices by a number"
        )
    level = (*wholes, *wishes, None)[0]
    return Request(pods, level, bool(wholes), tuple(sorted(slices, reverse=True)))


@lru_cache(maxsize=8)
def _tree_of(network: Network) -> DomainTree:
    return DomainTree(list(zip(*(network.units(level) for level in reversed(network.levels)), strict=True)))


def assigned(
    rooms: Rooms, request: Request, *, least_free: bool = False, even: bool = False
) -> dict[tuple[int, ...], int] | None:
    """Return how many pods go to each domain of the lowest level, by its path, or None if there is no room."""
    size, slice_level, lowest = rooms.size, rooms.slice_level, rooms.lowest
    sizes = request.sizes_below(slice_level)
    free = request.level is None
    level = request.level if request.level is not None else 0 if request.slices else lowest
    if level > slice_level or request.pods % size:
        return None
    ascending = least_free and free
    found = balanced(rooms, request.pods, level) if even and not free and not request.required else None
    is_even = found is not None
    level, domains = found or with_room(rooms, level, request, ascending=ascending)
    if not domains:
        return None
    domains = least(domains, request.pods, size, ascending=ascending)
    while level < min(lowest, slice_level) and not is_even:
        below = ordered([child for domain in domains for child in domain.children], ascending=ascending)
        domains, level = least(below, request.pods, size, ascending=ascending), level + 1
    while level < lowest:
        size_below = size if level < slice_level else sizes.get(level + 1, 1)
        below = []
        for domain in domains:
            inside = ordered(domain.children, ascending=ascending)
            if size_below > 1:
                for child in inside:
                    child.slices = child.pods // size_below
            below += least(inside, domain.pods, size_below, ascending=ascending, in_slices=size_below > 1)
        domains, level = below, level + 1
    return {domain.path: domain.pods for domain in domains if domain.pods}


def balanced(rooms: Rooms, count: int, level: int) -> tuple[int, list[Domain]] | None:
    """Return a level, and its domains each with what it gets; None if a balanced placement is not possible."""
    size, slice_level = rooms.size, rooms.slice_level
    needed = count // size
    least, domains = _best(rooms, needed, level)
    if level < slice_level:
        by_entropy = sorted(domains, key=lambda domain: (-domain.slices, -_entropy(domain.children), domain.path))
        chosen = fewest(by_entropy, needed, size)
        if chosen is None:
            return None
        domains, level = [child for domain in chosen for child in domain.children], level + 1
    chosen = spread(domains, needed, size, least)
    return None if chosen is None else (level, chosen)


def spread(domains: Sequence[Domain], needed: int, size: int, least: int) -> list[Domain] | None:
    """Return as few domains as can be, each with ``least`` slices and the first with those left; None if none can."""
    chosen = fewest(sorted(domains, key=lambda domain: domain.path), needed, size)
    if chosen is None or needed < len(chosen) * least:
        return None
    chosen, extra = ordered(chosen, ascending=False), needed - len(chosen) * least
    for domain in chosen:
        more = min(domain.slices - least, extra)
        domain.pods, domain.slices = (least + more) * size, least + more
        extra -= more
    return chosen if extra <= 0 else None


def _best(rooms: Rooms, needed: int, level: int) -> tuple[int, list[Domain]]:
    """Return the most slices that the emptiest domain can have, and the siblings, less those with fewer."""
    most, fewest, best = 0, 0, list[Domain]()
    size, slice_level = rooms.size, rooms.slice_level
    for siblings in [above.children for above in rooms.domains(level - 1)] if level else [rooms.domains(0)]:
        domains = [domain.copy() for domain in siblings]
        lower = [child for domain in domains for child in domain.children] if level < slice_level else domains
        taken = _greedy(lower, needed)
        threshold = min(needed // len(taken), taken[-1].slices) if taken else 0
        if not taken or threshold < most:
            continue
        _prune(domains, threshold, size, slice_level)
        count = len(_greedy(domains, needed))
        if count and (threshold > most or (threshold == most and count < fewest)):
            most, fewest, best = threshold, count, domains
    return most, best


def _prune(domains: Sequence[Domain], threshold: int, size: int, slice_level: int) -> None:
    for domain in domains:
        for child in domain.children:
            if child.slices < threshold:
                child.clear()
    for domain in domains:
        domain.fill(size, slice_level)
        if domain.slices < threshold:
            domain.clear()


def _greedy(domains: Sequence[Domain], needed: int) -> list[Domain]:
    """Return those with the most room that hold so many slices, or none if all do not."""
    taken = []
    for domain in ordered(domains, ascending=False):
        if needed <= 0 or not domain.slices:
            break
        taken.append(domain)
        needed -= domain.slices
    return taken if needed <= 0 else []


def fewest(domains: Sequence[Domain], needed: int, size: int) -> list[Domain] | None:
    """Return as few domains as can be that hold so many slices, of these sets the first with the least room."""
    most = len(_greedy(domains, needed))
    if not most:
        return None
    found: list[dict[int, list[Domain]]] = [{} for _ in range(most + 1)]
    found[0][needed * size] = []
    for domain in domains:
        for count in range(most, 0, -1):
            for left in sorted(left for left in found[count - 1] if left > 0):
                if domain.slices:
                    found[count].setdefault(left - domain.pods, [*found[count - 1][left], domain])
    fits = [left for left in found[most] if left <= 0]
    return found[most][max(fits)] if fits else None


def _entropy(domains: Sequence[Domain]) -> float:
    total = sum(domain.pods for domain in domains)
    parts = [domain.pods / total for domain in domains if domain.pods] if total else []
    return -sum(part * math.log2(part) for part in parts)
