"""The star: one network card a server, one switch that never limits (the 64-GPU experiment's network)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.deferred import nx
from ddlsched.network.cables import Cables
from ddlsched.network.topology import Inside, Node, bytes_per_s_from_gbps, refuse_bad_port
from ddlsched.ranges import Checked, ranged


class GpuPorts(Checked):
    """A topology that knows the inside of servers where the bandwidth of a GPU's port there is given."""

    nvlink_gbps: float | None
    nvlink_latency_s: float

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_bad_port(self._who, self.nvlink_gbps, self.nvlink_latency_s)

    def _inside(self, **more: Any) -> Inside | None:
        if self.nvlink_gbps is None:
            return None
        return Inside(gpu_gbps=self.nvlink_gbps, latency_s=self.nvlink_latency_s, **more)


@dataclass(frozen=True, kw_only=True)
class Star(GpuPorts, who="star"):
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
    nvlink_gbps: float | None = ranged(None, 0.0, above=True)
    nvlink_latency_s: float = ranged(0.0, 0.0, 1e6)

    @property
    def inside(self) -> Inside | None:
        """The inside of a server."""
        return self._inside()

    def cables(self, num_servers: int) -> Cables:
        """Return the cables of the graph."""
        ends = np.stack([np.arange(num_servers), np.full(num_servers, num_servers)], axis=1)
        bytes_per_s = np.full(num_servers, bytes_per_s_from_gbps(self.nic_gbps))

        def node_of(number: int) -> Node:
            card = number if self.inside is None else (number, 0)
            return "switch" if number == num_servers else card

        return Cables(ends, bytes_per_s, np.full(num_servers, self.latency_s), node_of).as_in_graph()

    def switches(self, sources: tuple[np.ndarray, np.ndarray], targets: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Return the switch for each route."""
        return np.zeros((len(sources[0]), 1), np.int64)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; the switch is the node ``"switch"``."""
        return nx.from_edgelist(self.cables(num_servers).edges())

    def route(self, graph: nx.Graph[Any], source: Node, target: Node) -> Sequence[Node]:
        """Return the route through the switch."""
        return source, "switch", target
