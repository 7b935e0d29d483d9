"""Jobs of several servers on whole free servers, and of several racks on whole free racks or where cables have room."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.elastic_views import best_fit, on_one_server
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.workload.tasks import CollectiveTask

_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class InRacks(Checked):
    """What every placement on whole servers of racks is given; InputError for pods that are not whole racks."""

    servers_per_rack: int = ranged(0, 0, 1_000_000)
    servers_per_pod: int = ranged(0, 0, 1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.servers_per_pod and (not self.servers_per_rack or self.servers_per_pod % self.servers_per_rack):
            expected = f"expected a multiple of servers_per_rack, which is {self.servers_per_rack}"
            raise InputError(f"{self._who}: servers_per_pod is {self.servers_per_pod}; {expected}")


@dataclass(frozen=True, kw_only=True)
class WholeServers(InRacks, who="whole-servers"):
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

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, server by server, or None to wait, also for more than there are."""
        gpus = cluster.free(job).tolist()
        all_gpus = {server: cluster.gpus_of(server) for server in range(cluster.num_servers)}
        free: dict[int, list[GpuId]] = {}
        first = 0
        for server, own in all_gpus.items():
            end = bisect_left(gpus, own.stop, first)
            if end > first:
                free[server] = gpus[first:end]
            first = end
        if job.num_gpus <= max(map(len, all_gpus.values())):
            return on_one_server(free, job.num_gpus) or None
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
        group = best_fit(sizes, needed)
        chosen += _nearest(min(needed, sizes[group]), left.pop(group), tiers[:-1])
    return chosen


@dataclass(frozen=True, kw_only=True)
class WholeRacks(InRacks, who="whole-racks"):
    """Best fit, of whole free servers, racks and pods; needs to know a job's GPUs, and which of them reduce together.

    A job that fits on a server goes to the one with the fewest free GPUs that suffice. One that fits in a rack takes
    whole free servers, in the rack with the fewest that suffice; one that fits in a pod takes whole free racks so, and
    the largest take whole free pods. So a job of several racks breaks none up, which ``whole-servers`` lets it do; and
    unlike HiveD's cells the servers, racks and pods need not be neighbours.

    If no rack has enough servers, a job that one could hold waits, unless ``rings_up`` are given: then it takes servers
    of several racks, if no more rings leave any of these racks after it than so many. With ``--path perfect``, two
    tiers and as many rings as spines nobody shares a cable then.

    Parameters
    ----------
    servers_per_rack
        Servers s to s + n - 1 for s a multiple of it share a rack; 0 for a network on which all servers are alike.
    servers_per_pod
        So do they share a pod, of whole racks; 0 for a network without pods.
    rings_up
        How many rings of running jobs may leave a rack; 0: none of jobs that fit in one.
    """

    rings_up: int = ranged(0, 0, 1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rings_up and not self.servers_per_rack:
            raise InputError("whole-racks: rings_up is given without servers_per_rack; expected both")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> WholeRacks:
        """Return the policy itself.

        Raises
        ------
        InputError
            Servers differ in their GPUs, or are no whole number of racks or pods.
        """
        if len(set(cluster.gpus_of_servers)) > 1:
            raise InputError("whole-racks: servers differ in their GPUs; expected as many in each")
        widest = self.servers_per_pod or self.servers_per_rack or 1
        if cluster.num_servers % widest:
            raise InputError(f"whole-racks: the cluster has {cluster.num_servers} servers; expected groups of {widest}")
        return self

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs, server by server, or None to wait, also for more than there are."""
        gpus = cluster.free(job)
        size = len(cluster.gpus_of(0))
        free = np.bincount(gpus // size, minlength=cluster.num_servers)
        if job.num_gpus <= size:
            suffice = np.where(free >= job.num_gpus, free, size + 1)
            server = int(suffice.argmin())
            return gpus[gpus // size == server][: job.num_gpus].tolist() if suffice[server] <= size else None
        servers = self._servers(-(-job.num_gpus // size), free == size)
        if servers is None and self.rings_up:
            servers = self._across_racks(job, free == size, cluster)
        return None if servers is None else _all_gpus(servers, size)[: job.num_gpus]

    def _servers(self, needed: int, whole: np.ndarray) -> list[int] | None:
        """Return servers of the narrowest tier that could hold the job, in whole groups of the tier below."""
        tiers = [1, *filter(None, (self.servers_per_rack, self.servers_per_pod)), len(whole)]
        place = next((place for place, tier in enumerate(tiers) if needed <= tier), None)
        if place is None:
            return None
        below, tier = tiers[max(place - 1, 0)], tiers[place]
        free = whole.reshape(-1, below).all(axis=1)
        count = -(-needed // below)
        free_in = free.reshape(-1, tier // below).sum(axis=1)
        suffice = np.where(free_in >= count, free_in, len(whole) + 1)
        group = int(suffice.argmin())
        if suffice[group] > len(whole):
            return None
        chosen = [unit for unit in np.flatnonzero(free).tolist() if unit * below // tier == group][:count]
        return [unit * below + server for unit in chosen for server in range(below)][:needed]

    def _across_racks(self, job: JobView, whole: np.ndarray, cluster: ClusterView) -> list[int] | None:
        """Return servers of as few racks as can be, if the cables of all of these have room for the job's rings."""
        size, rack = len(cluster.gpus_of(0)), self.servers_per_rack
        needed = -(-job.num_gpus // size)
        free = {place: np.flatnonzero(of_rack) + place * rack for place, of_rack in enumerate(whole.reshape(-1, rack))}
        if needed > rack or whole.sum() < needed:
            return None
        chosen: list[int] = []
        while (left := needed - len(chosen)) > 0:
            place = best_fit({place: len(servers) for place, servers in free.items()}, left)
            chosen += free.pop(place)[:left].tolist()
        chosen.sort()
        rack_gpus = rack * size
        rings = rings_leaving(job, _all_gpus(chosen, size), rack_gpus)
        there = {other.number: other for gpu in range(0, cluster.num_gpus, size) for other in cluster.residents(gpu)}
        held = sum((rings_leaving(other, other.gpus, rack_gpus) for other in there.values()), Counter[int]())
        return chosen if all(held[place] + rings[place] <= self.rings_up for place in rings) else None


def _all_gpus(servers: Sequence[int], size: int) -> list[GpuId]:
    return [server * size + place for server in servers for place in range(size)]


def rings_leaving(job: JobView, gpus: Sequence[GpuId], rack_gpus: int) -> Counter[int]:
    """Return how many of a job's rings leave each rack, of the collective that has the most there."""
    racks, most = [gpu // rack_gpus for gpu in gpus], Counter[int]()
    if len(set(racks)) == 1:
        return most
    for task in job.dag.tasks:
        if isinstance(task, CollectiveTask):
            tuples = [range(job.num_gpus)] if task.group is None else job.dag.groups[task.group]
            touched = [{racks[worker] for worker in members} for members in tuples]
            most |= Counter(rack for ring in touched if len(ring) > 1 for rack in ring)
    return most
