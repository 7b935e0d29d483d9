"""Three-tier Clos: racks under the aggregation switches of their pod, pods under core switches, each tier thinner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import networkx as nx

from ddlsched.network.topology import Node, bytes_per_s_from_gbps, neighbours
from ddlsched.ranges import Checked, ranged


class Shape(NamedTuple):
    """How many servers a rack has, racks a pod, aggregation switches a pod, and core switches each of those."""

    servers: int
    racks: int
    aggregations: int
    cores: int


class ThreeTiers:
    """Pods of racks; a rack's switch is on all aggregation switches of its pod, each of which has cores of its own."""

    tier: ClassVar[str]
    """What the switch of a rack is called."""
    latency_s: float

    def _shape(self, num_servers: int) -> Shape:
        raise NotImplementedError

    def _cabled(self, num_servers: int, nic: float, to_rack: float, to_core: float) -> nx.Graph[Any]:
        """Return the graph of cables with these bandwidths, with its shape as an attribute."""
        shape = self._shape(num_servers)
        graph: nx.Graph[Any] = nx.Graph(shape=shape)
        for server in range(num_servers):
            rack = self._rack(shape, server)
            graph.add_edge(server, rack, bandwidth_bytes_per_s=nic, latency_s=self.latency_s)
        for first in range(0, num_servers, shape.servers):
            for number in range(shape.aggregations):
                ends = self._rack(shape, first), _aggregation(shape, first, number)
                graph.add_edge(*ends, bandwidth_bytes_per_s=to_rack, latency_s=self.latency_s)
        for first in range(0, num_servers, shape.servers * shape.racks):
            for number in range(shape.aggregations):
                for core in range(shape.cores):
                    ends = _aggregation(shape, first, number), f"core {number}.{core}"
                    graph.add_edge(*ends, bandwidth_bytes_per_s=to_core, latency_s=self.latency_s)
        return graph

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the rack and pod of each server."""
        shape = self._shape(num_servers)
        sizes = {"rack": shape.servers, "pod": shape.servers * shape.racks}
        return {name: neighbours(num_servers, size) for name, size in sizes.items()}

    def _rack(self, shape: Shape, server: int) -> str:
        return f"{self.tier} {server // (shape.servers * shape.racks)}.{server // shape.servers % shape.racks}"

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the route, as high up as the two servers need."""
        shape = graph.graph["shape"]
        first, last = self._rack(shape, source), self._rack(shape, target)
        if first == last:
            return source, first, target
        number = target % shape.aggregations
        up, down = _aggregation(shape, source, number), _aggregation(shape, target, number)
        if up == down:
            return source, first, up, last, target
        return source, first, up, f"core {number}.{target // shape.aggregations % shape.cores}", down, last, target

    def paths(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Sequence[Node]]:
        """Return the path over each aggregation switch, and between pods over each core switch of its plane."""
        shape = graph.graph["shape"]
        first, last = self._rack(shape, source), self._rack(shape, target)
        if first == last:
            return [(source, first, target)]
        switches = [[_aggregation(shape, end, n) for end in (source, target)] for n in range(shape.aggregations)]
        if switches[0][0] == switches[0][1]:
            return [(source, first, up, last, target) for up, _ in switches]
        return [
            (source, first, up, f"core {number}.{core}", down, last, target)
            for number, (up, down) in enumerate(switches)
            for core in range(shape.cores)
        ]


def _aggregation(shape: Shape, server: int, number: int) -> str:
    return f"aggregation {server // (shape.servers * shape.racks)}.{number}"


@dataclass(frozen=True, kw_only=True)
class Clos(ThreeTiers, Checked, who="clos"):
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

    tier: ClassVar[str] = "rack"

    def _shape(self, num_servers: int) -> Shape:
        return Shape(self.servers_per_rack, self.racks_per_pod, self.aggregations, self.cores)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph, with as many pods as the servers need, the last perhaps with fewer racks."""
        nic = bytes_per_s_from_gbps(self.nic_gbps)
        to_rack = nic * self.servers_per_rack / (self.aggregations * self.rack_oversubscription)
        to_core = to_rack * self.racks_per_pod / (self.cores * self.pod_oversubscription)
        return self._cabled(num_servers, nic, to_rack, to_core)
