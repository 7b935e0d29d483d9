"""The network of ASTRA-sim's ``Ring`` in one or more dimensions: every rank sends to the next one only, round each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from operator import mul
from typing import Any

import networkx as nx

_FAST = 1e6
"""How many times as fast as the fastest ring a rank reaches its own place in it."""


@dataclass(frozen=True, kw_only=True)
class Torus:
    """Servers in rings of one-way links, a ring through each server in each dimension.

    Parameters
    ----------
    sizes
        Servers of a ring of each dimension. The first counts fastest: server i is at place i mod ``sizes[0]`` of the
        first dimension.
    bytes_per_s
        Bandwidth from one server to the next, of each dimension.
    latency_s
        Of each such step, of each dimension.
    """

    sizes: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    latency_s: tuple[float, ...]

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; the place of server i in the rings is ``("place", i)``."""
        graph: nx.Graph[Any] = nx.Graph()
        own_bytes_per_s = _FAST * max(self.bytes_per_s)
        for server in range(num_servers):
            graph.add_edge(server, ("place", server), bandwidth_bytes_per_s=own_bytes_per_s, latency_s=0.0)
        for server, dimension in product(range(num_servers), range(len(self.sizes))):
            if self.sizes[dimension] > 1:
                cable = {
                    "bandwidth_bytes_per_s": self.bytes_per_s[dimension],
                    "latency_s": self.latency_s[dimension],
                }
                graph.add_edge(("place", server), ("place", self._following(server, dimension)), **cable)
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[object]:
        """Return the way round the rings, one dimension after the other."""
        places = [source]
        for dimension in range(len(self.sizes)):
            while self._place(places[-1], dimension) != self._place(target, dimension):
                places.append(self._following(places[-1], dimension))
        return [source, *(("place", server) for server in places), target]

    def groups(self, dimension: int) -> tuple[tuple[int, ...], ...]:
        """Return the servers of each ring of a dimension, in its order."""
        stride, size = self._strides[dimension], self.sizes[dimension]
        firsts = [server for server in range(self._strides[-1]) if self._place(server, dimension) == 0]
        return tuple(tuple(first + stride * place for place in range(size)) for first in firsts)

    @property
    def _strides(self) -> list[int]:
        return [1, *accumulate(self.sizes, mul)]

    def _place(self, server: int, dimension: int) -> int:
        return server // self._strides[dimension] % self.sizes[dimension]

    def _following(self, server: int, dimension: int) -> int:
        place, stride = self._place(server, dimension), self._strides[dimension]
        return server + ((place + 1) % self.sizes[dimension] - place) * stride
