"""Aligned blocks of servers, chosen by the delay that a job would meet and cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class AlignedBlocks(Checked, who="blocks"):
    """The smallest aligned block of 1, 2, 4, ... servers that holds the job, where it adds the least delay.

    Blocks nest, so rings do too: two jobs either share all links of the smaller one's or none, and no transfer
    keeps a third one's links idle. A job that fits on one server meets no network; it goes where the jobs of one
    server have the least compute left, and overlooks jobs that span servers, which have less use for a GPU than
    for the network. A job that must span goes where the sum is least of: the time left of the jobs ahead of it
    (shorter ones, on the block's busiest server), its own communication for each job behind it, and the
    compute left of the one-server jobs on its GPUs. Meant for an order by remaining time, and preemption.

    Parameters
    ----------
    aligned
        False: any run of so many neighbouring servers.
    spanning_weight
        How much of the compute of jobs that span counts in the load of a GPU for a job of one server, from 0 to 1.
    price
        What a job that spans pays for the others that do: ``delay`` as above, or ``load``, all of their time left.
    per_byte_s
        Seconds a byte of a job that is not placed yet; by default 1 / a network card's bandwidth.
    """

    aligned: bool = True
    spanning_weight: float = ranged(0.0, 0.0, 1.0)
    price: Literal["delay", "load"] = "delay"
    per_byte_s: float | None = ranged(None, 0.0, 1.0)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Placing:
        """Return the policy with room to remember what the servers hold at one instant."""
        return _Placing(self)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the block's GPUs; ties go to the smaller load, then the lower server, then the lower GPU."""
        return _Placing(self).place(job, cluster)


@dataclass(frozen=True)
class _Server:
    """What a server holds: time left (ns) of its spanning jobs, and each GPU's compute left (ns)."""

    num_residents: int
    spanning_ns: dict[int, int]
    """By job number."""
    own_ns: dict[GpuId, int] = field(default_factory=dict)
    """Of jobs of one server."""
    others_ns: dict[GpuId, int] = field(default_factory=dict)
    """Of jobs that span."""


class _Placing:
    def __init__(self, policy: AlignedBlocks) -> None:
        self._policy = policy
        self._view: ClusterView | None = None
        self._servers: dict[int, _Server] = {}

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        fitting = cluster.eligible_gpus(job)
        if len(fitting) < job.num_gpus:
            return None
        if cluster is not self._view:
            self._view, self._servers = cluster, {}
        free: list[list[GpuId]] = [[] for _ in range(cluster.num_servers)]
        for gpu in fitting:
            free[cluster.server_of(gpu)].append(gpu)
        size = 1
        while True:
            found = [choice for block in self._blocks(size, free) if (choice := self._in_block(job, cluster, block))]
            if found:
                return min(found)[1]
            size *= 2

    def _blocks(self, size: int, free: list[list[GpuId]]) -> Iterator[dict[int, list[GpuId]]]:
        """Yield the blocks of a size, each with the eligible GPUs of its servers."""
        last = max(len(free) - size, 0) if not self._policy.aligned else len(free) - 1
        for first in range(0, last + 1, size if self._policy.aligned else 1):
            yield {server: free[server] for server in range(first, min(first + size, len(free)))}

    def _in_block(
        self, job: JobView, cluster: ClusterView, block: dict[int, list[GpuId]]
    ) -> tuple[tuple[float, ...], list[GpuId]] | None:
        """Return the price of a block and the GPUs there, if it has enough."""
        if sum(map(len, block.values())) < job.num_gpus:
            return None
        held = {server: self._held(server, cluster) for server in block}
        if len(block) == 1:
            (server, gpus), weight = next(iter(block.items())), self._policy.spanning_weight
            own, others = held[server].own_ns, held[server].others_ns
            load = {gpu: own[gpu] + weight * others[gpu] for gpu in gpus}
            chosen = sorted(gpus, key=lambda gpu: (load[gpu], others[gpu], gpu))[: job.num_gpus]
            most = max(load[gpu] for gpu in chosen)
            return (most, sum(load[gpu] for gpu in chosen), sum(others[gpu] for gpu in chosen), server), chosen
        chosen = self._spread(job, block, held)
        own_ns = [held[cluster.server_of(gpu)].own_ns[gpu] for gpu in chosen]
        other_ns = [held[cluster.server_of(gpu)].others_ns[gpu] for gpu in chosen]
        used = [held[server] for server in sorted({cluster.server_of(gpu) for gpu in chosen})]
        price = max(own_ns) + self._network_ns(job, cluster, used)
        return (price, sum(own_ns) + sum(other_ns), min(block)), chosen

    def _spread(self, job: JobView, block: dict[int, list[GpuId]], held: dict[int, _Server]) -> list[GpuId]:
        """Return the block's GPUs, server by server, the one with the least spanning time first."""
        servers = sorted(block, key=lambda server: (sum(held[server].spanning_ns.values()), server))
        gpus: list[GpuId] = []
        for server in servers:
            load = held[server]
            gpus += sorted(block[server], key=lambda gpu: (load.own_ns[gpu] + load.others_ns[gpu], gpu))
        return gpus[: job.num_gpus]

    def _network_ns(self, job: JobView, cluster: ClusterView, servers: list[_Server]) -> float:
        """Return what the job waits for others' transfers, and they for its, on these servers, nanoseconds."""
        per_byte_s = self._policy.per_byte_s
        per_byte_ns = NS_PER_S * (1.0 / cluster.network.nic_bytes_per_s if per_byte_s is None else per_byte_s)
        sending_ns = job.iterations_left * job.message_bytes * per_byte_ns
        left_ns = job.iterations_left * job.compute_ns + sending_ns
        if self._policy.price == "load":
            return max(sum(server.spanning_ns.values()) for server in servers)
        ahead = max(sum(ns for ns in server.spanning_ns.values() if ns <= left_ns) for server in servers)
        behind = {number for server in servers for number, ns in server.spanning_ns.items() if ns > left_ns}
        return ahead + len(behind) * sending_ns

    def _held(self, server: int, cluster: ClusterView) -> _Server:
        """Return what a server holds, read anew if a job has joined it."""
        gpus = cluster.gpus_of(server)
        count = sum(cluster.num_residents(gpu) for gpu in gpus)
        known = self._servers.get(server)
        if known is None or known.num_residents != count:
            known = self._servers[server] = _read(gpus, cluster, count)
        return known


def _read(gpus: range, cluster: ClusterView, count: int) -> _Server:
    held = _Server(count, {})
    for gpu in gpus:
        held.own_ns[gpu] = held.others_ns[gpu] = 0
        for other in cluster.residents(gpu):
            compute_ns = other.compute_ns * other.iterations_left
            if len(other.servers) > 1:
                held.others_ns[gpu] += compute_ns
                held.spanning_ns[other.number] = compute_ns + other.iterations_left * other.communication_ns
            else:
                held.own_ns[gpu] += compute_ns
    return held
