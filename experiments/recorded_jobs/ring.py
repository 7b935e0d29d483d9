"""The network of ASTRA-sim's ``Ring``: every rank sends to the next one only, all the way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

_FAST = 1e6
"""How many times as fast as the ring a rank reaches its own place in it."""


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Servers in a ring of one-way links.

    Parameters
    ----------
    bytes_per_s
        Bandwidth from one server to the next.
    latency_s
        Of each such step.
    """

    bytes_per_s: float
    latency_s: float

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; the place of server i in the ring is ``("place", i)``."""
        graph: nx.Graph[Any] = nx.Graph()
        for server in range(num_servers):
            here, following = ("place", server), ("place", (server + 1) % num_servers)
            graph.add_edge(server, here, bandwidth_bytes_per_s=_FAST * self.bytes_per_s, latency_s=0.0)
            graph.add_edge(here, following, bandwidth_bytes_per_s=self.bytes_per_s, latency_s=self.latency_s)
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[object]:
        """Return the way round the ring."""
        count = sum(isinstance(node, int) for node in graph)
        between = [("place", (source + step) % count) for step in range((target - source) % count + 1)]
        return [source, *between, target]
