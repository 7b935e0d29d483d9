"""Kueue's choice of topology domains: best fit, least free capacity, balanced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from algorithms.placement.kueue_balanced import balanced
from algorithms.placement.kueue_domains import DomainTree, Request, Rooms, least, ordered, with_room
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.workload.groups import demands_of

__all__ = ["KueueTopology", "assigned"]


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
        gpus = cluster.eligible(job)
        if not cluster.exclusive:
            gpus = np.array([gpu for gpu in gpus.tolist() if not cluster.num_residents(gpu)], np.int64)
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
