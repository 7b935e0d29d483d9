"""Cables between servers and switches: as much of a networkx graph as a network asks for, in arrays.

To import networkx, and to make a graph, takes longer than a short run; a topology that has ``cables(num_servers)``
beside ``graph`` does without.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np


class Cables(NamedTuple):
    """Full-duplex cables.

    Parameters
    ----------
    ends
        Both nodes of each cable by number, a row a cable: network cards first, server by server, then switches.
    bytes_per_s, latency_s
        Of each cable.
    node_of
        The node that has a number.
    """

    ends: np.ndarray
    bytes_per_s: np.ndarray
    latency_s: np.ndarray
    node_of: Callable[[int], Hashable]

    @classmethod
    def of(cls, graph: Any, cards: Sequence[Hashable]) -> Cables:
        """Return those of a networkx graph with these network cards; what a cable does not say is nan."""
        nodes = [*dict.fromkeys([*cards, *graph])]
        numbers = {node: number for number, node in enumerate(nodes)}
        edges = list(graph.edges(data=True))
        ends = np.array([(numbers[a], numbers[b]) for a, b, _ in edges], np.int64).reshape(-1, 2)
        bytes_per_s = np.array([data.get("bandwidth_bytes_per_s", nan) for *_, data in edges], np.float64)
        latency_s = np.array([data.get("latency_s", nan) for *_, data in edges], np.float64)
        return cls(ends, bytes_per_s, latency_s, nodes.__getitem__)

    def as_in_graph(self) -> Cables:
        """Return them in the order in which networkx has them if they are added one by one."""
        added = self.ends.ravel()
        first = np.zeros(added.max() + 1, np.int64)
        first[added[::-1]] = np.arange(len(added))[::-1]
        when = first[self.ends]
        order = np.argsort(when.min(axis=1), kind="stable")
        ends = np.where((when[:, 0] <= when[:, 1])[:, None], self.ends, self.ends[:, ::-1])
        return Cables(ends[order], self.bytes_per_s[order], self.latency_s[order], self.node_of)

    def edges(self) -> Iterator[tuple[Hashable, Hashable, dict[str, float]]]:
        """Yield each cable as networkx does."""
        for (a, b), bytes_per_s, latency_s in zip(
            self.ends.tolist(), self.bytes_per_s.tolist(), self.latency_s.tolist(), strict=True
        ):
            yield self.node_of(a), self.node_of(b), {"bandwidth_bytes_per_s": bytes_per_s, "latency_s": latency_s}

    def not_by_one(self, num_cards: int) -> int | None:
        """Return the first of the network cards that has not exactly one cable."""
        degrees = np.bincount(self.ends.ravel(), minlength=num_cards)[:num_cards]
        return _first(degrees != 1)

    @property
    def not_sound(self) -> int | None:
        """The first cable without a finite bandwidth above 0 or a finite latency from 0."""
        fast = (self.bytes_per_s > 0) & (self.bytes_per_s < inf)
        return _first(~(fast & (self.latency_s >= 0) & (self.latency_s < inf)))


class Wires:
    """Cables as links: those of network cards, which are one each, and those between switches, one a direction.

    Links are numbered from 0 on, those of the first cable between switches first.

    Attributes
    ----------
    switch_of
        The switch of each network card, by its number as a node.
    """

    def __init__(self, cables: Cables, num_cards: int) -> None:
        self._cables, self._num_cards = cables, num_cards
        own, ends = np.nonzero(cables.ends < num_cards)
        cards = cables.ends[own, ends]
        self._at_card, self.switch_of = np.zeros((2, num_cards), np.int64)
        self._at_card[cards], self.switch_of[cards] = own, cables.ends[own, 1 - ends]
        between = np.ones(len(cables.ends), bool)
        between[own] = False
        self._between = np.flatnonzero(between)

    @property
    def cards_bytes_per_s(self) -> np.ndarray:
        """Bandwidths of network cards."""
        return self._cables.bytes_per_s[self._at_card]

    @property
    def links_bytes_per_s(self) -> np.ndarray:
        """Bandwidths of links between switches."""
        return np.repeat(self._cables.bytes_per_s[self._between], 2)

    def ends_of(self, link: int) -> list[Hashable]:
        """Return the switches from which and to which a link goes."""
        ends = [*map(self._cables.node_of, self._cables.ends[self._between[link // 2]].tolist())]
        return ends[::-1] if link % 2 else ends

    @cached_property
    def numbers(self) -> dict[Hashable, int]:
        """The number of each node."""
        return {self._cables.node_of(number): number for number in range(int(self._cables.ends.max(initial=-1)) + 1)}

    @cached_property
    def _directed(self) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of each link as one number, ascending, and the link."""
        a, b = self._cables.ends[self._between].T
        ends = np.stack([a << 32 | b, b << 32 | a], axis=1).ravel()
        order = np.argsort(ends)
        return ends[order], order

    @cached_property
    def _links(self) -> dict[int, int]:
        ends, links = self._directed
        return dict(zip(ends.tolist(), links.tolist(), strict=True))

    def link(self, one: int, other: int) -> int:
        """Return the link from a switch to another, or -1."""
        return self._links.get(one << 32 | other, -1) if min(one, other) >= 0 else -1

    def card_latency_s(self, card: int) -> float:
        """Return the latency of a card's cable."""
        return float(self._cables.latency_s.item(self._at_card.item(card)))

    @cached_property
    def _latencies_s(self) -> dict[int, float]:
        a, b = self._cables.ends.T
        both_ways = np.concatenate([a << 32 | b, b << 32 | a]).tolist()
        return dict(zip(both_ways, np.tile(self._cables.latency_s, 2).tolist(), strict=True))

    def latency_s(self, one: int, other: int) -> float | None:
        """Return the latency of the cable between two nodes, or None if there is none."""
        return self._latencies_s.get(one << 32 | other)

    def along(
        self, switches: np.ndarray, sources: np.ndarray, targets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the links along routes between cards, rows of switches with -1 behind, latencies, and wrong rows."""
        numbers, known = self._num_cards + switches, switches >= 0
        last = np.take_along_axis(numbers, known.sum(axis=1)[:, None] - 1, axis=1)[:, 0]
        wrong = (numbers[:, 0] != self.switch_of[sources]) | (last != self.switch_of[targets])
        links, latency_s = np.full((len(numbers), switches.shape[1] - 1), -1), self._cables.latency_s
        total_s, (ends, order) = latency_s[self._at_card[sources]], self._directed
        for place in range(links.shape[1]):
            on = np.flatnonzero(known[:, place + 1])
            wanted = numbers[on, place] << 32 | numbers[on, place + 1]
            found = np.searchsorted(ends, wanted).clip(max=len(ends) - 1)
            wrong[on] |= ends[found] != wanted
            links[on, place] = order[found]
            total_s[on] += latency_s[self._between[order[found] // 2]]
        return links, total_s + latency_s[self._at_card[targets]], np.flatnonzero(wrong)

    def route(self, switches: np.ndarray, source: int, target: int) -> list[Hashable]:
        """Return the nodes of a route between cards over some switches."""
        between = (self._num_cards + switches[switches >= 0]).tolist()
        return [*map(self._cables.node_of, (int(source), *between, int(target)))]


def _first(where: np.ndarray) -> int | None:
    return next(iter(np.flatnonzero(where)[:1].tolist()), None)
