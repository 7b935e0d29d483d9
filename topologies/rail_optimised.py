"""Rail-optimised leaf-spine: card i of every host of a unit on leaf i, its rail (NVIDIA's SuperPOD of H100)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.network.inside import Inside, refuse_latency_alone
from ddlsched.network.topology import Node, bytes_per_s_from_gbps
from ddlsched.ranges import check_fields, ranged

__all__ = ["RailOptimised"]


@dataclass(frozen=True, kw_only=True)
class RailOptimised:
    """Units of hosts with a card and a leaf switch a rail; every leaf is on every spine.

    With ``nvlink_gbps`` each card is a link of its own, on the leaf of its rail, and the inside of a host takes time.
    Without it a server has one link, so that its cards count together, and the leaves of a unit as one node
    ``"rails u"``. That is exact for jobs on whole hosts whose all-reduce splits its message evenly over the rails, as
    rings of NCCL do: each rail then carries the same share. It does not know that a job on some of a host's GPUs has
    only their cards, that traffic between rails goes over a spine, nor a rail busier than another.

    A transfer to server d of another unit, or to another rail, takes spine d mod ``spines`` (destination-based
    routing).

    Parameters
    ----------
    hosts_per_unit
        From 1 to 1024; 32 in the published network.
    rails
        Network cards of a host, and leaves of a unit, from 1 to 1024; 8 in the published network.
    spines
        Spine switches, from 1 to 1024.
    rail_gbps
        Bandwidth of a card, Gbit/s.
    oversubscription
        Bandwidth of a leaf's cables to hosts over that of its cables to spines; 1 in the published network.
    latency_s
        Of each cable, seconds.
    nvlink_gbps
        Bandwidth of a GPU's port towards the others of its host, one direction, Gbit/s; 3600 in an H100 host.
    nvlink_latency_s
        Of a step from GPU to GPU inside a server, seconds; nothing without ``nvlink_gbps``.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture for DGX H100: 8 x 400 Gbit/s a host, 32 cables down and 32 up a leaf.
    """

    hosts_per_unit: int = ranged(32, 1, 1024)
    rails: int = ranged(8, 1, 1024)
    spines: int = ranged(4, 1, 1024)
    rail_gbps: float = ranged(400.0, 0.0, above=True)
    oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)
    nvlink_gbps: float | None = ranged(None, 0.0, above=True)
    nvlink_latency_s: float = ranged(0.0, 0.0, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "rail-optimised")
        refuse_latency_alone("rail-optimised", self.nvlink_gbps, self.nvlink_latency_s)

    @property
    def inside(self) -> Inside | None:
        """The inside of a server: a card a rail."""
        if self.nvlink_gbps is None:
            return None
        return Inside(gpu_gbps=self.nvlink_gbps, cards=self.rails, latency_s=self.nvlink_latency_s)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; a unit's leaves are one node ``"rails u"``, or ``"leaf u.rail"``; spines ``"spine i"``."""
        graph: nx.Graph[Any] = nx.Graph()
        nodes, cards = ([None], self.rails) if self.inside is None else (list(range(self.rails)), 1)
        card = cards * bytes_per_s_from_gbps(self.rail_gbps)
        uplink = card * self.hosts_per_unit / (self.spines * self.oversubscription)
        for rail in nodes:
            for server in range(num_servers):
                host = server if rail is None else (server, rail)
                graph.add_edge(host, self._leaf(host), bandwidth_bytes_per_s=card, latency_s=self.latency_s)
            for first in range(0, num_servers, self.hosts_per_unit):
                leaf = self._leaf(first if rail is None else (first, rail))
                for spine in range(self.spines):
                    ends = leaf, f"spine {spine}"
                    graph.add_edge(*ends, bandwidth_bytes_per_s=uplink, latency_s=self.latency_s)
        return graph

    def _leaf(self, end: Any) -> str:
        if self.inside is None:
            return f"rails {end // self.hosts_per_unit}"
        server, rail = end
        return f"leaf {server // self.hosts_per_unit}.{rail}"

    def route(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Node]:
        """Return the route: inside a unit, and on one rail, over its leaf alone."""
        first, last = self._leaf(source), self._leaf(target)
        if first == last:
            return source, first, target
        server = target if self.inside is None else target[0]
        return source, first, f"spine {server % self.spines}", last, target

    def paths(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Sequence[Node]]:
        """Return the path over each spine; inside a unit, and on one rail, the only one."""
        first, last = self._leaf(source), self._leaf(target)
        if first == last:
            return [(source, first, target)]
        return [(source, first, f"spine {spine}", last, target) for spine in range(self.spines)]
