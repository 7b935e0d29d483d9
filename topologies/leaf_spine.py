"""Leaf-spine: servers on leaf switches, every leaf on every spine (a two-tier Clos network)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import check_fields, ranged

__all__ = ["LeafSpine"]


@dataclass(frozen=True, kw_only=True)
class LeafSpine:
    """Leaves of ``servers_per_leaf`` servers under ``spines`` spine switches.

    A transfer to server d takes spine d mod ``spines`` (destination-based routing).

    Parameters
    ----------
    servers_per_leaf
        Servers on a leaf switch, at least 1.
    spines
        Spine switches, from 1 to 1024.
    nic_gbps
        Bandwidth of each server's network card, Gbit/s.
    oversubscription
        Bandwidth of a leaf's servers over that of its cables to the spines.
    latency_s
        Of each cable, seconds.
    """

    servers_per_leaf: int = ranged(4, 1)
    spines: int = ranged(2, 1, 1024)
    nic_gbps: float = ranged(10.0, 0.0, above=True)
    oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "leaf-spine")

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; leaves are nodes ``"leaf i"``, spines ``"spine i"``."""
        graph: nx.Graph[Any] = nx.Graph()
        nic = bytes_per_s_from_gbps(self.nic_gbps)
        uplink = nic * self.servers_per_leaf / (self.spines * self.oversubscription)
        for server in range(num_servers):
            graph.add_edge(server, self._leaf(server), bandwidth_bytes_per_s=nic, latency_s=self.latency_s)
        for first in range(0, num_servers, self.servers_per_leaf):
            for spine in range(self.spines):
                ends = self._leaf(first), f"spine {spine}"
                graph.add_edge(*ends, bandwidth_bytes_per_s=uplink, latency_s=self.latency_s)
        return graph

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the rack (its leaf) of each server."""
        return {"rack": neighbours(num_servers, self.servers_per_leaf)}

    def _leaf(self, server: int) -> str:
        return f"leaf {server // self.servers_per_leaf}"

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route, over a spine only between leaves."""
        if self._leaf(source) == self._leaf(target):
            return source, self._leaf(source), target
        return source, self._leaf(source), f"spine {target % self.spines}", self._leaf(target), target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the path over each spine; inside a leaf the only one."""
        first, last = self._leaf(source), self._leaf(target)
        if first == last:
            return [(source, first, target)]
        return [(source, first, f"spine {spine}", last, target) for spine in range(self.spines)]
