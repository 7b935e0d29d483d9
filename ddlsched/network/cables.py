"""Cables between servers and switches: as much of a networkx graph as a network asks for.

To import networkx takes longer than a short run; a topology that has ``cables(num_servers)`` beside ``graph`` does
without.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import deepcopy
from typing import Any

__all__ = ["Cables"]


class Cables:
    """Full-duplex cables, in the order in which networkx would have them.

    Attributes
    ----------
    adj
        For each node its neighbours, and for each of these the cable's ``bandwidth_bytes_per_s`` and ``latency_s``;
        both directions of a cable have one mapping.
    """

    def __init__(self) -> None:
        self.adj: dict[Hashable, dict[Hashable, dict[str, Any]]] = {}

    def add_edge(self, one: Hashable, other: Hashable, **data: float) -> None:
        """Add a cable."""
        self.adj.setdefault(one, {})[other] = data
        self.adj.setdefault(other, {})[one] = data

    def __contains__(self, node: Hashable) -> bool:
        return node in self.adj

    def degree(self, node: Hashable) -> int:
        """Return how many cables a node has."""
        return len(self.adj[node])

    def edges(self, data: bool) -> Iterator[tuple[Hashable, Hashable, dict[str, Any]]]:
        """Yield each cable once."""
        seen: set[Hashable] = set()
        for node, neighbours in self.adj.items():
            yield from ((node, other, about) for other, about in neighbours.items() if other not in seen)
            seen.add(node)

    def copy(self) -> Cables:
        """Return cables that can be changed apart from these."""
        return deepcopy(self)
