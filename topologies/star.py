"""The star: one network card a server, one switch that never limits (the 64-GPU experiment's network)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlsched.network.cables import Cables
from ddlsched.network.inside import Inside, refuse_bad_port
from ddlsched.network.topology import Node, bytes_per_s_from_gbps
from ddlsched.ranges import check_fields, ranged

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Star"]


@dataclass(frozen=True, kw_only=True)
class Star:
    """All servers on one switch.

    Parameters
    ----------
    nic_gbps
        Bandwidth of each server's network card, Gbit/s.
    latency_s
        Of each cable, seconds.
    nvlink_gbps
        Bandwidth of a GPU's port towards the others of its server, one direction, Gbit/s: then collectives inside a
        server take time. By default they take none.
    nvlink_latency_s
        Of a step from GPU to GPU inside a server, seconds; nothing without ``nvlink_gbps``.
    """

    nic_gbps: float = ranged(10.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)
    nvlink_gbps: float | None = None
    nvlink_latency_s: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "star")
        refuse_bad_port("star", self.nvlink_gbps, self.nvlink_latency_s)

    @property
    def inside(self) -> Inside | None:
        """The inside of a server."""
        if self.nvlink_gbps is None:
            return None
        return Inside(gpu_gbps=self.nvlink_gbps, latency_s=self.nvlink_latency_s)

    def cables(self, num_servers: int) -> Cables:
        """Return the cables of the graph."""
        cables = Cables()
        bandwidth = bytes_per_s_from_gbps(self.nic_gbps)
        for server in range(num_servers):
            node = server if self.inside is None else (server, 0)
            cables.add_edge(node, "switch", bandwidth_bytes_per_s=bandwidth, latency_s=self.latency_s)
        return cables

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; the switch is the node ``"switch"``."""
        import networkx as nx

        graph: nx.Graph[Any] = nx.Graph()
        graph.add_edges_from(self.cables(num_servers).edges(data=True))
        return graph

    def route(self, graph: nx.Graph[Any], source: Node, target: Node) -> Sequence[Node]:
        """Return the route through the switch."""
        return source, "switch", target
