"""Double-sided network: every host on two top-of-rack switches (the larger network of the Crux paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.network.topology import Inside, Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import ranged
from topologies.star import GpuPorts


@dataclass(frozen=True, kw_only=True)
class DoubleSided(GpuPorts, who="double-sided"):
    """Pairs of top-of-rack switches; a host has half of its links on each of a pair.

    Published are the numbers of switches, 6, 12 and 32, and eight links a host to two racks. The rest is a guess: a
    pair has aggregation switches of its own, 12 / 3, each of which is on every core switch; links have 200 Gbit/s; no
    tier is oversubscribed. With ``nvlink_gbps`` each of a host's links is a card of its own, even ones on the first
    switch of the pair, odd ones on the second. Without it a server has one link, so that a pair counts as one node, of
    both switches' bandwidth: exact for hosts that spread their traffic evenly over both.

    A transfer to server d takes aggregation switch d mod their number, and core switch d mod ``cores``.

    Parameters
    ----------
    pairs
        Pairs of switches, from 1 to 1024. Hosts are dealt to them in order, equally many to each but for the last.
    aggregations_per_pair
        Aggregation switches of a pair, from 1 to 1024.
    cores
        Core switches, from 1 to 1024.
    links_per_host
        To both switches together.
    link_gbps
        Bandwidth of each, Gbit/s.
    oversubscription
        Bandwidth of a pair's hosts over that of its cables to aggregation switches.
    latency_s
        Of each cable, seconds.
    nvlink_gbps
        Bandwidth of a GPU's port towards the others of its host, one direction, Gbit/s.
    nvlink_latency_s
        Of a step from GPU to GPU inside a server, seconds; nothing without ``nvlink_gbps``.

    References
    ----------
    Cao et al., "Crux: GPU-efficient communication scheduling for deep learning training", SIGCOMM 2024.
    """

    pairs: int = ranged(3, 1, 1024)
    aggregations_per_pair: int = ranged(4, 1, 1024)
    cores: int = ranged(32, 1, 1024)
    links_per_host: int = ranged(8, 1, 1024)
    link_gbps: float = ranged(200.0, 0.0, above=True)
    oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)
    nvlink_gbps: float | None = ranged(None, 0.0, above=True)
    nvlink_latency_s: float = ranged(0.0, 0.0, 1e6)

    @property
    def inside(self) -> Inside | None:
        """The inside of a server: a card a link."""
        return self._inside(cards=self.links_per_host)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; its attribute ``hosts`` is the number of hosts of a pair."""
        hosts = -(-num_servers // self.pairs)
        graph: nx.Graph[Any] = nx.Graph(hosts=hosts)
        link = bytes_per_s_from_gbps(self.link_gbps)
        cards = [None] if self.inside is None else list(range(self.links_per_host))
        for server in range(num_servers):
            for card in cards:
                end = server if card is None else (server, card)
                host = link * (self.links_per_host if card is None else 1)
                graph.add_edge(end, self._switch(graph, end), bandwidth_bytes_per_s=host, latency_s=self.latency_s)
        for switch in [node for node in graph if isinstance(node, str)]:
            links = self.links_per_host if self.inside is None else (self.links_per_host + 1 - int(switch[-1])) // 2
            self._add_uplinks(
                graph, switch, hosts * link * links / (self.aggregations_per_pair * self.oversubscription)
            )
        return graph

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the block (its pair of switches) of each server."""
        return {"block": neighbours(num_servers, -(-num_servers // self.pairs))}

    def _add_uplinks(self, graph: nx.Graph[Any], switch: str, uplink: float) -> None:
        for number in range(self.aggregations_per_pair):
            up = self._aggregation(switch, number)
            graph.add_edge(switch, up, bandwidth_bytes_per_s=uplink, latency_s=self.latency_s)
            for core in range(self.cores):
                ends = up, f"core {core}"
                rest = graph.edges[ends]["bandwidth_bytes_per_s"] if graph.has_edge(*ends) else 0.0
                bandwidth = rest + uplink / self.cores
                graph.add_edge(*ends, bandwidth_bytes_per_s=bandwidth, latency_s=self.latency_s)

    def _switch(self, graph: nx.Graph[Any], end: Any) -> str:
        if self.inside is None:
            return f"pair {end // graph.graph['hosts']}"
        server, card = end
        return f"pair {server // graph.graph['hosts']}.{card % 2}"

    def _aggregation(self, switch: str, number: int) -> str:
        return f"aggregation {switch.removeprefix('pair ').split('.')[0]}.{number}"

    def route(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Node]:
        """Return the route: between switches of a pair over an aggregation switch, between pairs over a core switch."""
        first, last = self._switch(graph, source), self._switch(graph, target)
        if first == last:
            return source, first, target
        server = target if self.inside is None else target[0]
        number, core = server % self.aggregations_per_pair, f"core {server % self.cores}"
        up, down = self._aggregation(first, number), self._aggregation(last, number)
        if up == down:
            return source, first, up, last, target
        return source, first, up, core, down, last, target

    def paths(self, graph: nx.Graph[Any], source: Any, target: Any) -> Sequence[Sequence[Node]]:
        """Return the paths between pairs, over each aggregation switch up, core switch, and aggregation switch down.

        Between the two switches of a pair they are those over each of its aggregation switches.
        """
        first, last = self._switch(graph, source), self._switch(graph, target)
        if first == last:
            return [(source, first, target)]
        ups = [self._aggregation(first, number) for number in range(self.aggregations_per_pair)]
        downs = [self._aggregation(last, number) for number in range(self.aggregations_per_pair)]
        if ups == downs:
            return [(source, first, up, last, target) for up in ups]
        cores = [f"core {core}" for core in range(self.cores)]
        return [(source, first, up, core, down, last, target) for up in ups for core in cores for down in downs]
