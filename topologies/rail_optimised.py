"""Rail-optimised leaf-spine: card i of every host of a unit on leaf i, its rail (NVIDIA's SuperPOD of H100)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.network.topology import Node, bytes_per_s_from_gbps, refuse_bad_cables, refuse_bad_counts

__all__ = ["RailOptimised"]


@dataclass(frozen=True, kw_only=True)
class RailOptimised:
    """Units of hosts with a card and a leaf switch a rail; every leaf is on every spine.

    A server has one link here, so that its cards count together, and the leaves of a unit as one node ``"rails u"``.
    That is exact for jobs on whole hosts whose all-reduce splits its message evenly over the rails, as rings of NCCL
    do: each rail then carries the same share. What waits for several links a server: a job on some of a host's GPUs,
    which has only their cards; traffic between rails, which goes through NVLink; a rail busier than another.

    A transfer to server d of another unit takes spine d mod ``spines`` (destination-based routing).

    Parameters
    ----------
    hosts_per_unit, rails, spines
        Counts, from 1 to 1024. A published unit has 32 hosts and 8 rails.
    rail_gbps
        Bandwidth of a card, Gbit/s.
    oversubscription
        Bandwidth of a leaf's cables to hosts over that of its cables to spines; 1 in the published network.
    latency_s
        Of each cable, seconds.

    References
    ----------
    NVIDIA DGX SuperPOD reference architecture for DGX H100: 8 x 400 Gbit/s a host, 32 cables down and 32 up a leaf.
    """

    hosts_per_unit: int = 32
    rails: int = 8
    spines: int = 4
    rail_gbps: float = 400.0
    oversubscription: float = 1.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        refuse_bad_counts("rail-optimised", hosts_per_unit=self.hosts_per_unit, rails=self.rails, spines=self.spines)
        bandwidths = {"rail_gbps": self.rail_gbps, "oversubscription": self.oversubscription}
        refuse_bad_cables("rail-optimised", latency_s=self.latency_s, **bandwidths)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; the leaves of unit u are the node ``"rails u"``, spines ``"spine i"``."""
        graph: nx.Graph[Any] = nx.Graph()
        host = self.rails * bytes_per_s_from_gbps(self.rail_gbps)
        uplink = host * self.hosts_per_unit / (self.spines * self.oversubscription)
        for server in range(num_servers):
            graph.add_edge(server, self._unit(server), bandwidth_bytes_per_s=host, latency_s=self.latency_s)
        for first in range(0, num_servers, self.hosts_per_unit):
            for spine in range(self.spines):
                ends = self._unit(first), f"spine {spine}"
                graph.add_edge(*ends, bandwidth_bytes_per_s=uplink, latency_s=self.latency_s)
        return graph

    def _unit(self, server: int) -> str:
        return f"rails {server // self.hosts_per_unit}"

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route: inside a unit over its rails alone."""
        if self._unit(source) == self._unit(target):
            return source, self._unit(source), target
        return source, self._unit(source), f"spine {target % self.spines}", self._unit(target), target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the path over each spine; inside a unit the only one."""
        first, last = self._unit(source), self._unit(target)
        if first == last:
            return [(source, first, target)]
        return [(source, first, f"spine {spine}", last, target) for spine in range(self.spines)]
