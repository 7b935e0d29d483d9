"""The network that MonkeyTree was evaluated on: 16 racks of 64 GPUs under 16 spines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.errors import InputError
from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import check_fields, ranged

__all__ = ["MonkeyTree"]


@dataclass(frozen=True, kw_only=True)
class MonkeyTree:
    """Racks of 8 servers of 8 GPUs; every rack has one cable to every spine. Give the cluster 8 GPUs a server.

    A rack has a card a GPU, 64 x 400 Gbit/s, and 16 x 400 Gbit/s up: 4:1. A server has one link here, that of one
    card, since a job's one ring enters and leaves each of its servers by one; jobs have whole servers there, so that no
    other ring crosses it. What waits for several links a server: jobs of several rings (up to 8, with tensor
    parallelism), without which a rack's 8 servers send at most 8 rings up.

    A transfer to server d of another rack takes spine d mod ``spines``, unless a path policy (``--path``) chooses.

    Parameters
    ----------
    racks
        From 1 to 1024.
    servers_per_rack
        From 1 to 1024.
    spines
        Spine switches, from 1 to 1024.
    nic_gbps
        Bandwidth of a card, and of a cable to a spine, Gbit/s.
    latency_s
        Of each cable, seconds.

    References
    ----------
    Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296.
    """

    racks: int = ranged(16, 1, 1024)
    servers_per_rack: int = ranged(8, 1, 1024)
    spines: int = ranged(16, 1, 1024)
    nic_gbps: float = ranged(400.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "monkeytree")

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; racks are nodes ``"rack i"``, spines ``"spine i"``.

        Raises
        ------
        InputError
            More servers than the racks hold.
        """
        holds = self.racks * self.servers_per_rack
        if num_servers > holds:
            raise InputError(f"monkeytree: {self.racks} racks hold {holds} servers, not {num_servers}; give more racks")
        cable = {"bandwidth_bytes_per_s": bytes_per_s_from_gbps(self.nic_gbps), "latency_s": self.latency_s}
        graph: nx.Graph[Any] = nx.Graph()
        graph.add_edges_from(((server, self._rack(server)) for server in range(num_servers)), **cable)
        for first in range(0, num_servers, self.servers_per_rack):
            graph.add_edges_from(((self._rack(first), f"spine {spine}") for spine in range(self.spines)), **cable)
        return graph

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the rack of each server."""
        return {"rack": neighbours(num_servers, self.servers_per_rack)}

    def _rack(self, server: int) -> str:
        return f"rack {server // self.servers_per_rack}"

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route, over a spine only between racks."""
        if self._rack(source) == self._rack(target):
            return source, self._rack(source), target
        return source, self._rack(source), f"spine {target % self.spines}", self._rack(target), target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the path over each spine; inside a rack the only one."""
        first, last = self._rack(source), self._rack(target)
        if first == last:
            return [(source, first, target)]
        return [(source, first, f"spine {spine}", last, target) for spine in range(self.spines)]
