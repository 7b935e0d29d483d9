"""A cluster's network, every rate multiplied by a factor: 10 Gbit/s on paper, 100 Mbit/s on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, label
from ddlsched.network.topology import Node
from ddlsched.plugins.names import resolve

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Scaled", "scaled"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Scaled:
    """A topology whose cables are ``factor`` times as fast as another's; routes are the same."""

    topology: Any
    factor: float

    def __repr__(self) -> str:
        return f"{label(self.topology)} x {self.factor:g}"

    @property
    def inside(self) -> Any:
        """The inside of servers, if the other states it."""
        return getattr(self.topology, "inside", None)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the other's graph with its rates multiplied."""
        graph: nx.Graph[Any] = self.topology.graph(num_servers).copy()
        for _, _, data in graph.edges(data=True):
            data["bandwidth_bytes_per_s"] *= self.factor
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the other's route."""
        nodes: Sequence[Node] = self.topology.route(graph, source, target)
        return nodes


def scaled(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose network is ``factor`` times as fast.

    Raises
    ------
    InputError
        The factor is not above 0, or above 1000.
    """
    if not 0 < factor <= 1e3:
        raise InputError(f"--scale is {factor}; expected a number above 0, to 1000")
    servers = tuple(
        server if server.nic_gbps is None else replace(server, nic_gbps=server.nic_gbps * factor)
        for server in cluster.servers
    )
    return replace(
        cluster, topology=Scaled(topology=resolve("topology", cluster.topology), factor=factor), servers=servers
    )
