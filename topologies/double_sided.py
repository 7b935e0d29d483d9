"""Double-sided network: every host on two top-of-rack switches (the larger network of the Crux paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.network.topology import Node, bytes_per_s_from_gbps, refuse_bad_cables, refuse_bad_counts

__all__ = ["DoubleSided"]


@dataclass(frozen=True, kw_only=True)
class DoubleSided:
    """Pairs of top-of-rack switches; a host has half of its links on each of a pair.

    Published are the numbers of switches, 6, 12 and 32, and eight links a host to two racks. The rest is a guess: a
    pair has aggregation switches of its own, 12 / 3, each of which is on every core switch; links have 200 Gbit/s; no
    tier is oversubscribed. A server has one link here, so that a pair counts as one node, of both switches'
    bandwidth: exact for hosts that spread their traffic evenly over both. A busier side, or one that fails, waits for
    several links a server.

    A transfer to server d takes aggregation switch d mod their number, and core switch d mod ``cores``.

    Parameters
    ----------
    pairs, aggregations_per_pair, cores
        Counts, from 1 to 1024. Hosts are dealt to pairs in order, equally many to each but for the last.
    links_per_host
        To both switches together.
    link_gbps
        Bandwidth of each, Gbit/s.
    oversubscription
        Bandwidth of a pair's hosts over that of its cables to aggregation switches.
    latency_s
        Of each cable, seconds.

    References
    ----------
    Cao et al., "Crux: GPU-efficient communication scheduling for deep learning training", SIGCOMM 2024.
    """

    pairs: int = 3
    aggregations_per_pair: int = 4
    cores: int = 32
    links_per_host: int = 8
    link_gbps: float = 200.0
    oversubscription: float = 1.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        counts = {"pairs": self.pairs, "aggregations_per_pair": self.aggregations_per_pair, "cores": self.cores}
        refuse_bad_counts("double-sided", **counts, links_per_host=self.links_per_host)
        bandwidths = {"link_gbps": self.link_gbps, "oversubscription": self.oversubscription}
        refuse_bad_cables("double-sided", latency_s=self.latency_s, **bandwidths)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; its attribute ``hosts`` is the number of hosts of a pair."""
        hosts = -(-num_servers // self.pairs)
        graph: nx.Graph[Any] = nx.Graph(hosts=hosts)
        host = self.links_per_host * bytes_per_s_from_gbps(self.link_gbps)
        uplink = host * hosts / (self.aggregations_per_pair * self.oversubscription)
        for server in range(num_servers):
            pair = server // hosts
            graph.add_edge(server, f"pair {pair}", bandwidth_bytes_per_s=host, latency_s=self.latency_s)
        for pair in range(-(-num_servers // hosts)):
            for number in range(self.aggregations_per_pair):
                up = f"aggregation {pair}.{number}"
                graph.add_edge(f"pair {pair}", up, bandwidth_bytes_per_s=uplink, latency_s=self.latency_s)
                for core in range(self.cores):
                    ends = up, f"core {core}"
                    graph.add_edge(*ends, bandwidth_bytes_per_s=uplink / self.cores, latency_s=self.latency_s)
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route: between pairs over a core switch."""
        first, last = (server // graph.graph["hosts"] for server in (source, target))
        if first == last:
            return source, f"pair {first}", target
        number, core = target % self.aggregations_per_pair, f"core {target % self.cores}"
        up, down = f"aggregation {first}.{number}", f"aggregation {last}.{number}"
        return source, f"pair {first}", up, core, down, f"pair {last}", target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the paths between pairs, over each aggregation switch up, core switch, and aggregation switch down."""
        first, last = (server // graph.graph["hosts"] for server in (source, target))
        if first == last:
            return [(source, f"pair {first}", target)]
        return [
            (
                source,
                f"pair {first}",
                f"aggregation {first}.{up}",
                f"core {core}",
                f"aggregation {last}.{down}",
                f"pair {last}",
                target,
            )
            for up in range(self.aggregations_per_pair)
            for core in range(self.cores)
            for down in range(self.aggregations_per_pair)
        ]
