"""Kueue's choice of topology domains: best fit, least free capacity, balanced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from algorithms.placement.kueue_domains import Domain, DomainTree, Request, Rooms, least, ordered, with_room
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.workload.groups import demands_of


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
    if not least:
        return None
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
    chosen, extra, shares = ordered(chosen, ascending=False), needed - len(chosen) * least, []
    for domain in chosen:
        more = min(domain.slices - least, extra)
        shares.append(least + more)
        extra -= more
    if extra > 0:
        return None
    for domain, share in zip(chosen, shares, strict=True):
        domain.pods, domain.slices = share * size, share
    return chosen


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
