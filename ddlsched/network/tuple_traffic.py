"""What collectives in the tuples of groups put on links: worked out once for tuples whose ranks lie alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ddlsched.network.collectives import Rank
from ddlsched.network.topology import Network, Path
from ddlsched.network.traffic import Pattern, RingBytes, TaskMessage, Way, collective_for, pattern_of, traffic_of


class Tuples(NamedTuple):
    """A group's tuples: the workers of one after another, and where those of each begin."""

    workers: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, tuples: Sequence[Sequence[int]]) -> Tuples:
        """Return it from a sequence a tuple."""
        sizes = np.fromiter(map(len, tuples), np.int64, len(tuples))
        workers = np.fromiter(chain.from_iterable(tuples), np.int64, int(sizes.sum()))
        return cls(workers, np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.first) - 1

    @property
    def owners(self) -> np.ndarray:
        """The tuple of each of the workers."""
        return np.repeat(np.arange(self.size), np.diff(self.first))


class SentByTuples(NamedTuple):
    """What a collective puts on links in each tuple.

    Parameters
    ----------
    counts
        How many links each tuple crosses.
    links, shares
        Which, those of one tuple after another, and bytes on each / those of ``wire_bytes``.
    wire_bytes, latency_s
        Those of :class:`~ddlsched.network.traffic.Traffic`, of each tuple.
    """

    counts: np.ndarray
    links: np.ndarray
    shares: np.ndarray
    wire_bytes: np.ndarray
    latency_s: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[_Part], num_tuples: int) -> SentByTuples:
        """Return it for all tuples from what is alike in some of them; other tuples send nothing."""
        counts, wire_bytes, latency_s = np.zeros(num_tuples, np.int64), np.zeros(num_tuples), np.zeros(num_tuples)
        for part in parts:
            counts[part.tuples], wire_bytes[part.tuples] = part.links.shape[1], part.wire_bytes
            latency_s[part.tuples] = part.latency_s
        first = np.cumsum(counts) - counts
        links, shares = np.zeros(counts.sum(), np.int64), np.zeros(counts.sum())
        for part in parts:
            at = first[part.tuples, None] + np.arange(part.links.shape[1])
            links[at], shares[at] = part.links, part.shares
        return cls(counts, links, shares, wire_bytes, latency_s)


class _Part(NamedTuple):
    """What tuples put on links, a row of links each."""

    tuples: np.ndarray
    links: np.ndarray
    shares: Sequence[float]
    wire_bytes: float
    latency_s: float


class _Lying(NamedTuple):
    """Tuples whose ranks lie alike: as ``ranks`` do, with a row of domains each in place of 0, 1 and so on."""

    tuples: np.ndarray
    domains: np.ndarray
    ranks: tuple[Rank, ...]


class _Form(NamedTuple):
    """Some of the tuples that lie alike, joined by paths of one form.

    ``between`` are the links between switches of each, ``links`` and ``latency_s`` the paths of the first, hop by hop.
    """

    key: bytes
    rows: np.ndarray
    between: np.ndarray
    links: np.ndarray
    latency_s: np.ndarray


class TupleTraffic:
    """Finds what collectives of one job put on links.

    Parameters
    ----------
    network, all_reduce_bytes, known
        As in :func:`~ddlsched.network.traffic.traffic_of`.
    ranks
        Where each worker is.
    way
        Which path goes from one card to another, asked in the order of tasks, tuples and flows, for each two again if
        they send otherwise; by default the topology's own route.
    """

    def __init__(
        self,
        network: Network,
        ranks: np.ndarray,
        all_reduce_bytes: RingBytes,
        known: dict[Any, Pattern],
        way: Way | None = None,
    ) -> None:
        self._network, self._ranks, self._bytes, self._known = network, ranks, all_reduce_bytes, known
        self._asks, self._way = way is not None, network.own_way if way is None else way
        inside = network.inside
        self._width = network.cards * (1 if inside is None else inside.servers)
        self._ranks_of: dict[bytes, tuple[Rank, ...]] = {}
        self._lying: dict[int, tuple[Tuples, list[_Lying]]] = {}
        self._forms: dict[tuple[object, ...], list[list[_Form]]] = {}

    def of(self, kind: str, algorithm: Any, message_bytes: float, tuples: Tuples) -> SentByTuples:
        """Return what each tuple puts on links."""
        if not message_bytes:
            return SentByTuples.of([], tuples.size)
        sent = TaskMessage(kind, algorithm, message_bytes)
        by_order = self._network.inside is not None and getattr(collective_for(kind, algorithm), "by_order", False)
        if not by_order:
            return SentByTuples.of([self._one(sent, tuples, number) for number in range(tuples.size)], tuples.size)
        lying = self._alike(tuples)
        patterns = [pattern_of(self._network, sent, each.ranks, self._bytes, self._known) for each in lying]
        key = id(tuples), *(pattern.ends.tobytes() for pattern in patterns)
        if key not in self._forms:
            self._forms[key] = self._forms_of(lying, patterns)
        parts = [
            part
            for each, pattern, forms in zip(lying, patterns, self._forms[key], strict=True)
            for part in self._parts(each, pattern, forms)
        ]
        return SentByTuples.of(parts, tuples.size)

    def _one(self, sent: TaskMessage, tuples: Tuples, number: int) -> _Part:
        own = tuples.workers[slice(*tuples.first[number : number + 2])]
        ranks = [Rank(*rank) for rank in self._ranks[own].tolist()]
        found = traffic_of(self._network, sent, ranks, self._bytes, self._way)
        links = np.array([found.links], np.int64).reshape(1, -1)
        return _Part(np.array([number]), links, found.shares, found.wire_bytes, found.latency_s)

    def _alike(self, tuples: Tuples) -> list[_Lying]:
        if id(tuples) not in self._lying:
            self._lying[id(tuples)] = tuples, [*_lying(self._ranks, tuples, self._ranks_of)]
        return self._lying[id(tuples)][1]

    def _ends(self, each: _Lying, pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
        """Return the cards from which and to which each hop goes, a row a tuple."""
        first, (a, card, b, other) = each.domains * self._width, pattern.ends.T
        return first[:, a] + card, first[:, b] + other

    def _parts(self, each: _Lying, pattern: Pattern, forms: Sequence[_Form]) -> Iterator[_Part]:
        for form in forms:
            if form.key not in pattern.found:
                hops = zip(form.links, form.latency_s.tolist(), strict=True)
                paths = [Path(tuple(own[own >= 0].tolist()), latency_s) for own, latency_s in hops]
                pattern.learn(form.key, each.domains[form.rows[0]].tolist(), self._network, paths)
            traffic, cards, ports = pattern.found[form.key]
            domains = each.domains[form.rows]
            at_cards = domains[:, cards[:, 0]] * self._width + cards[:, 1]
            at_ports = self._network.first_ports[domains[:, ports[:, 0]] * self._width // self._network.cards]
            links = np.concatenate([at_cards, at_ports + ports[:, 1], form.between], axis=1)
            yield _Part(each.tuples[form.rows], links, traffic.shares, traffic.wire_bytes, traffic.latency_s)

    def _forms_of(self, lying: Sequence[_Lying], patterns: Sequence[Pattern]) -> list[list[_Form]]:
        """Return the forms of the paths of each, which are asked for tuple by tuple."""
        ends = [self._ends(each, pattern) for each, pattern in zip(lying, patterns, strict=True)]
        owners = [np.repeat(each.tuples, own[0].shape[1]) for each, own in zip(lying, ends, strict=True)]
        order = np.argsort(np.concatenate(owners), kind="stable")
        sources, targets = (np.concatenate([own[end].ravel() for own in ends])[order] for end in (0, 1))
        back = np.argsort(order)
        links, latency_s = (each[back] for each in self._between(sources, targets))
        shapes = [own[0].shape for own in ends]
        cuts, width = np.cumsum([rows * hops for rows, hops in shapes])[:-1], links.shape[1]
        found = zip(shapes, np.split(links, cuts), np.split(latency_s, cuts), strict=True)
        return [_forms(own.reshape(*shape, width), own_s.reshape(shape)) for shape, own, own_s in found]

    def _between(self, sources: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the links between switches on the path from each card to another, -1 behind, and its latency."""
        if not self._asks and (found := self._network.own_ways(sources, targets)) is not None:
            return found
        cards = self._network.cards
        _, first, which = np.unique(sources * self._network.first_ports[0] + targets, True, True)
        order = np.argsort(first)
        ends = zip(sources[first[order]].tolist(), targets[first[order]].tolist(), strict=True)
        paths = [self._way(divmod(source, cards), divmod(target, cards)) for source, target in ends]
        links = np.full((len(paths), max((len(path.links) for path in paths), default=0)), -1)
        for place, path in zip(order.tolist(), paths, strict=True):
            links[place, : len(path.links)] = path.links
        latency_s = np.empty(len(paths))
        latency_s[order] = [path.latency_s for path in paths]
        return links[which], latency_s[which]


def _forms(links: np.ndarray, latency_s: np.ndarray) -> list[_Form]:
    """Return the forms of paths, of each tuple a row of hops."""
    flat = links.reshape(len(links), -1)
    ordered, new, places = _places(flat)
    new &= ordered >= 0
    places = np.where(flat >= 0, places - (ordered[:, :1] < 0), -1)
    forms = np.concatenate([latency_s.view(np.int64), places], axis=1)
    return [
        _Form(forms[rows[0]].tobytes(), rows, _kept(ordered[rows], new[rows]), links[rows[0]], latency_s[rows[0]])
        for rows in _alike_rows(forms)
    ]


def _lying(ranks: np.ndarray, tuples: Tuples, known: dict[bytes, tuple[Rank, ...]]) -> Iterator[_Lying]:
    sizes = np.diff(tuples.first)
    for size in np.unique(sizes).tolist():
        numbers = np.flatnonzero(sizes == size)
        own = ranks[tuples.workers[tuples.first[numbers, None] + np.arange(size)]]
        ordered, new, places = _places(own[:, :, 0])
        lies = np.stack([places, own[:, :, 1], own[:, :, 2]], axis=2)
        for rows in _alike_rows(lies.reshape(len(numbers), -1)):
            if (key := (lie := lies[rows[0]]).tobytes()) not in known:
                known[key] = tuple(map(Rank._make, lie.tolist()))
            yield _Lying(numbers[rows], _kept(ordered[rows], new[rows]), known[key])


def _places(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each row in order, where something new is in it, and the place of each value among the different ones."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    new = np.ones(values.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = np.empty(values.shape, np.int64)
    np.put_along_axis(places, order, np.cumsum(new, axis=1) - 1, axis=1)
    return ordered, new, places


def _kept(rows: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return of each row what is kept, of each as much."""
    kept: np.ndarray = rows[where].reshape(len(rows), -1)
    return kept


@lru_cache
def _weights(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1 << 62, size=count)


def _alike_rows(rows: np.ndarray) -> list[np.ndarray]:
    """Return the numbers of equal rows, in the order of the first of each."""
    if (rows == rows[:1]).all():
        return [np.arange(len(rows))]
    sums = rows @ _weights(rows.shape[1])  # equal for equal rows; for others seldom
    _, first, classes = np.unique(sums, return_index=True, return_inverse=True)
    if (rows[first[classes]] != rows).any():
        _, first, classes = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    order = np.argsort(rank[classes.reshape(-1)], kind="stable")
    return np.split(order, np.cumsum(np.bincount(rank[classes.reshape(-1)]))[:-1])
