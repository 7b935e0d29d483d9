"""Leaf-spine: servers on leaf switches, every leaf on every spine (a two-tier Clos network)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import networkx as nx

from ddlsched.errors import InputError
from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours

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

    servers_per_leaf: int = 4
    spines: int = 2
    nic_gbps: float = 10.0
    oversubscription: float = 1.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.servers_per_leaf < 1 or not 1 <= self.spines <= 1024:
            raise InputError("leaf-spine: servers_per_leaf must be at least 1, and spines from 1 to 1024")
        if not 0 < self.nic_gbps < inf or not 0 < self.oversubscription < inf or not 0 <= self.latency_s <= 1e6:
            raise InputError(
                "leaf-spine: nic_gbps and oversubscription must be finite and > 0, latency_s from 0 to 1e6"
            )

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
