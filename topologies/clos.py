"""Three-tier Clos: racks under the aggregation switches of their pod, pods under core switches, each tier thinner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class Clos(Checked, who="clos"):
    """Pods of racks; every rack is on every aggregation switch of its pod.

    Aggregation switch a of every pod is on the core switches a.0, a.1, ... A transfer to server d takes
    aggregation switch d mod ``aggregations`` of both pods and, between pods, of that switch's core switches number
    (d / ``aggregations``) mod ``cores`` (destination-based routing).

    Parameters
    ----------
    servers_per_rack
        From 1 to 1024.
    racks_per_pod
        From 1 to 1024.
    aggregations
        Aggregation switches of a pod, from 1 to 1024.
    cores
        Core switches that each aggregation switch is on, from 1 to 1024.
    nic_gbps
        Bandwidth of a server's network cards together, Gbit/s.
    rack_oversubscription
        Bandwidth of a rack's servers over that of its cables to aggregation switches.
    pod_oversubscription
        Bandwidth of an aggregation switch's cables to racks over that of those to core switches.
    latency_s
        Of each cable, seconds.
    """

    servers_per_rack: int = ranged(4, 1, 1024)
    racks_per_pod: int = ranged(4, 1, 1024)
    aggregations: int = ranged(4, 1, 1024)
    cores: int = ranged(4, 1, 1024)
    nic_gbps: float = ranged(3200.0, 0.0, above=True)
    rack_oversubscription: float = ranged(1.0, 0.0, above=True)
    pod_oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph, with as many pods as the servers need, the last perhaps with fewer racks."""
        graph: nx.Graph[Any] = nx.Graph()
        nic = bytes_per_s_from_gbps(self.nic_gbps)
        to_rack = nic * self.servers_per_rack / (self.aggregations * self.rack_oversubscription)
        to_core = to_rack * self.racks_per_pod / (self.cores * self.pod_oversubscription)
        for server in range(num_servers):
            graph.add_edge(server, self._rack(server), bandwidth_bytes_per_s=nic, latency_s=self.latency_s)
        for first in range(0, num_servers, self.servers_per_rack):
            for number in range(self.aggregations):
                ends = self._rack(first), self._aggregation(first, number)
                graph.add_edge(*ends, bandwidth_bytes_per_s=to_rack, latency_s=self.latency_s)
        for first in range(0, num_servers, self.servers_per_rack * self.racks_per_pod):
            for number in range(self.aggregations):
                for core in range(self.cores):
                    ends = self._aggregation(first, number), f"core {number}.{core}"
                    graph.add_edge(*ends, bandwidth_bytes_per_s=to_core, latency_s=self.latency_s)
        return graph

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the rack and pod of each server."""
        return {
            "rack": neighbours(num_servers, self.servers_per_rack),
            "pod": neighbours(num_servers, self.servers_per_rack * self.racks_per_pod),
        }

    def _pod(self, server: int) -> int:
        return server // (self.servers_per_rack * self.racks_per_pod)

    def _rack(self, server: int) -> str:
        return f"rack {self._pod(server)}.{server // self.servers_per_rack % self.racks_per_pod}"

    def _aggregation(self, server: int, number: int) -> str:
        return f"aggregation {self._pod(server)}.{number}"

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route, as high up as the two servers need."""
        first, last = self._rack(source), self._rack(target)
        if first == last:
            return source, first, target
        number = target % self.aggregations
        up, down = self._aggregation(source, number), self._aggregation(target, number)
        if up == down:
            return source, first, up, last, target
        return source, first, up, f"core {number}.{target // self.aggregations % self.cores}", down, last, target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the path over each aggregation switch, and between pods over each core switch of its plane."""
        first, last = self._rack(source), self._rack(target)
        if first == last:
            return [(source, first, target)]
        switches = [(self._aggregation(source, n), self._aggregation(target, n)) for n in range(self.aggregations)]
        if self._pod(source) == self._pod(target):
            return [(source, first, up, last, target) for up, _ in switches]
        return [
            (source, first, up, f"core {number}.{core}", down, last, target)
            for number, (up, down) in enumerate(switches)
            for core in range(self.cores)
        ]
