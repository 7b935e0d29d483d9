"""Jobs of several servers on whole free servers of one rack or pod, smaller ones where the fewest GPUs are free."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import check_fields, ranged

__all__ = ["WholeServers"]

_Value = TypeVar("_Value")


def refuse_uneven_pods(who: str, servers_per_rack: int, servers_per_pod: int) -> None:
    """Raise InputError for pods that are not whole racks."""
    if servers_per_pod and (not servers_per_rack or servers_per_pod % servers_per_rack):
        expected = f"expected a multiple of servers_per_rack, which is {servers_per_rack}"
        raise InputError(f"{who}: servers_per_pod is {servers_per_pod}; {expected}")


@dataclass(frozen=True, kw_only=True)
class WholeServers:
    """Best fit, in GPUs of a server and in free servers of a rack or pod; needs to know nothing but a job's GPUs.

    A job that fits on a server goes to the one with the fewest free GPUs that suffice, and never uses the network. A
    larger one takes servers of which every GPU is free, so that it shares no network card, in the rack with the fewest
    such servers that suffice; one larger than a rack in such a pod, and there in as few racks as it can. If none has
    enough, a job that one could hold waits for it; the largest take from as few pods as they can. Unlike cells that
    split in halves (HiveD) the servers need not be neighbours.

    Parameters
    ----------
    servers_per_rack
        Servers s to s + n - 1 for s a multiple of it share a rack; 0 for a network on which all servers are alike.
    servers_per_pod
        So do they share a pod, of whole racks; 0 for a network without pods.
    """

    servers_per_rack: int = ranged(0, 0, 1_000_000)
    servers_per_pod: int = ranged(0, 0, 1_000_000)

    def __post_init__(self) -> None:
        check_fields(self, "whole-servers")
        refuse_uneven_pods("whole-servers", self.servers_per_rack, self.servers_per_pod)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, server by server, or None to wait, also for more than there are."""
        gpus = cluster.eligible_gpus(job)
        if not cluster.exclusive:
            gpus = [gpu for gpu in gpus if not cluster.num_residents(gpu)]
        all_gpus = {server: cluster.gpus_of(server) for server in range(cluster.num_servers)}
        free: dict[int, list[GpuId]] = {}
        first = 0
        for server, own in all_gpus.items():
            end = bisect_left(gpus, own.stop, first)
            if end > first:
                free[server] = gpus[first:end]
            first = end
        if job.num_gpus <= max(map(len, all_gpus.values())):
            enough = [(len(gpus), server) for server, gpus in free.items() if len(gpus) >= job.num_gpus]
            return free[min(enough)[1]][: job.num_gpus] if enough else None
        whole = {server: free[server] for server in all_gpus if len(free.get(server, ())) == len(all_gpus[server])}
        tiers = [*filter(None, (self.servers_per_rack, self.servers_per_pod)), cluster.num_servers]
        holding = [place for place, tier in enumerate(tiers) if job.num_gpus <= _most_gpus(all_gpus, tier)]
        if not holding:
            return None
        narrowest = holding[0]
        enough_in = [group for group in _groups(whole, tiers[narrowest]).values() if _num_gpus(group) >= job.num_gpus]
        return _nearest(job.num_gpus, min(enough_in, key=_num_gpus), tiers[:narrowest]) if enough_in else None


def _groups(servers: Mapping[int, _Value], tier: int) -> dict[int, dict[int, _Value]]:
    """Return servers by which ``tier`` neighbours they are of."""
    groups: dict[int, dict[int, _Value]] = {}
    for server, value in servers.items():
        groups.setdefault(server // tier, {})[server] = value
    return groups


def _num_gpus(servers: Mapping[int, Sequence[GpuId]]) -> int:
    return sum(map(len, servers.values()))


def _most_gpus(servers: Mapping[int, Sequence[GpuId]], tier: int) -> int:
    return max(map(_num_gpus, _groups(servers, tier).values()))


def _nearest(num_gpus: int, free: Mapping[int, list[GpuId]], tiers: Sequence[int]) -> list[GpuId]:
    """Return some of the free GPUs, of as few groups of the widest tier as can be, and so within each group.

    The group with the fewest that suffice; without one, that with the most, and so on with what is still needed.
    """
    if not tiers:
        return [gpu for gpus in free.values() for gpu in gpus][:num_gpus]
    left = _groups(free, tiers[-1])
    chosen: list[GpuId] = []
    while len(chosen) < num_gpus:
        needed, sizes = num_gpus - len(chosen), {group: _num_gpus(servers) for group, servers in left.items()}
        enough = [group for group in sizes if sizes[group] >= needed]
        group = min(enough, key=sizes.__getitem__) if enough else max(sizes, key=sizes.__getitem__)
        chosen += _nearest(min(needed, sizes[group]), left.pop(group), tiers[:-1])
    return chosen
