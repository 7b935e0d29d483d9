"""Leaf-spine: servers on leaf switches, every leaf on every spine (a two-tier Clos network)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import networkx as nx

from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import Checked, ranged


class TwoTiers:
    """Servers under switches of the first tier, each of which has a cable to every spine."""

    tier: ClassVar[str]
    """What switches of the first tier are called."""
    spines: int
    latency_s: float

    @property
    def _servers_below(self) -> int:
        """How many servers a switch of the first tier has."""
        raise NotImplementedError

    def _cabled(self, num_servers: int, nic_bytes_per_s: float, up_bytes_per_s: float) -> nx.Graph[Any]:
        graph: nx.Graph[Any] = nx.Graph()
        cable = {"bandwidth_bytes_per_s": nic_bytes_per_s, "latency_s": self.latency_s}
        graph.add_edges_from(((server, self._switch(server)) for server in range(num_servers)), **cable)
        cable["bandwidth_bytes_per_s"] = up_bytes_per_s
        for first in range(0, num_servers, self._servers_below):
            graph.add_edges_from(((self._switch(first), f"spine {spine}") for spine in range(self.spines)), **cable)
        return graph

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the rack of each server."""
        return {"rack": neighbours(num_servers, self._servers_below)}

    def _switch(self, server: int) -> str:
        return f"{self.tier} {server // self._servers_below}"

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route, over a spine only between switches of the first tier."""
        if self._switch(source) == self._switch(target):
            return source, self._switch(source), target
        return source, self._switch(source), f"spine {target % self.spines}", self._switch(target), target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the path over each spine; below one switch the only one."""
        first, last = self._switch(source), self._switch(target)
        if first == last:
            return [(source, first, target)]
        return [(source, first, f"spine {spine}", last, target) for spine in range(self.spines)]


@dataclass(frozen=True, kw_only=True)
class LeafSpine(TwoTiers, Checked, who="leaf-spine"):
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

    tier: ClassVar[str] = "leaf"

    @property
    def _servers_below(self) -> int:
        return self.servers_per_leaf

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; leaves are nodes ``"leaf i"``, spines ``"spine i"``."""
        nic = bytes_per_s_from_gbps(self.nic_gbps)
        return self._cabled(num_servers, nic, nic * self.servers_per_leaf / (self.spines * self.oversubscription))
