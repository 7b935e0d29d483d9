"""The k-ary fat-tree of commodity switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.errors import InputError
from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import check_fields, ranged


@dataclass(frozen=True, kw_only=True)
class FatTree:
    """k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 places for servers.

    Routes are destination-based, as in the paper's two-level tables: a transfer to place p of its edge
    switch goes over aggregation switch p and, between pods, over core switch (edge number of the target).

    Parameters
    ----------
    k
        Ports of a switch, even, at most 256; 0 takes the smallest that holds the servers.
    nic_gbps
        Bandwidth of each server's network card, Gbit/s.
    oversubscription
        Bandwidth of an edge switch's servers over that of its cables upwards; the tiers above add none.
    latency_s
        Of each cable, seconds.

    References
    ----------
    Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008.
    """

    k: int = ranged(0, 0, 256)
    nic_gbps: float = ranged(10.0, 0.0, above=True)
    oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "fat-tree")
        if self.k % 2:
            raise InputError(f"fat-tree: k is {self.k}; expected an even number, or 0 for the smallest that fits")

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; its attribute ``half`` is k/2.

        Raises
        ------
        InputError
            More servers than k^3/4.
        """
        half = self._half(num_servers)
        if num_servers > 2 * half**3:
            raise InputError(f"fat-tree: k={2 * half} holds {2 * half**3} servers, not {num_servers}; give a larger k")
        nic = bytes_per_s_from_gbps(self.nic_gbps)
        graph: nx.Graph[Any] = nx.Graph(half=half)
        for server in range(num_servers):
            graph.add_edge(server, _edge(server, half), bandwidth_bytes_per_s=nic, latency_s=self.latency_s)
        upward = {"bandwidth_bytes_per_s": nic / self.oversubscription, "latency_s": self.latency_s}
        for first in range(0, num_servers, half):
            graph.add_edges_from((_edge(first, half), _aggregation(first, half, i)) for i in range(half))
        for first in range(0, num_servers, half * half):
            for i in range(half):
                graph.add_edges_from((_aggregation(first, half, i), f"core {i}.{c}") for c in range(half))
        for a, b, data in graph.edges(data=True):
            if not data:
                graph.edges[a, b].update(upward)
        return graph

    def _half(self, num_servers: int) -> int:
        return self.k // 2 or next(half for half in range(1, num_servers + 1) if 2 * half**3 >= num_servers)

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the rack (its edge switch) and pod of each server."""
        half = self._half(num_servers)
        return {"rack": neighbours(num_servers, half), "pod": neighbours(num_servers, half**2)}

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route, as high up as the two servers need."""
        half = graph.graph["half"]
        first, last = _edge(source, half), _edge(target, half)
        if first == last:
            return source, first, target
        up, down = _aggregation(source, half, target % half), _aggregation(target, half, target % half)
        if up == down:
            return source, first, up, last, target
        core = f"core {target % half}.{target // half % half}"
        return source, first, up, core, down, last, target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the path over each aggregation switch, and between pods over each of its core switches."""
        half = graph.graph["half"]
        first, last = _edge(source, half), _edge(target, half)
        if first == last:
            return [(source, first, target)]
        switches = [(_aggregation(source, half, n), _aggregation(target, half, n)) for n in range(half)]
        if switches[0][0] == switches[0][1]:
            return [(source, first, up, last, target) for up, _ in switches]
        return [
            (source, first, up, f"core {number}.{core}", down, last, target)
            for number, (up, down) in enumerate(switches)
            for core in range(half)
        ]


def _edge(server: int, half: int) -> str:
    return f"edge {server // half**2}.{server // half % half}"


def _aggregation(server: int, half: int, number: int) -> str:
    return f"aggregation {server // half**2}.{number}"
