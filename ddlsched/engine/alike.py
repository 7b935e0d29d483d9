"""Which workers, tuples and links of a placed job of groups are alike: the coarsest equitable partition.

Workers are told apart by their GPU, tuples by their group and by what they send, links by their bandwidth and by who
else uses them; then by how many neighbours of each kind they have, again and again until nothing more is told apart
(colour refinement, or the one-dimensional Weisfeiler-Leman algorithm). Members of a class then have as many neighbours
in each class, so that they do the same at the same instants: a worker waits for the tuples that it is in, a tuple for
its workers, and how fast its bytes go depends on how many transfers of each class share its links.

References
----------
Berkholz, Bonsma, Grohe, "Tight lower and upper bounds for the complexity of canonical colour refinement", Theory of
Computing Systems 60 (2017).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Colours", "Crossings", "in_order", "mixed", "refined"]


class Crossings(NamedTuple):
    """Which links tuples cross: an entry a crossing, with a number for what is sent there."""

    tuple: np.ndarray
    link: np.ndarray
    label: np.ndarray


class Colours(NamedTuple):
    """A number for each worker, tuple and link: equal ones are alike."""

    workers: np.ndarray
    tuples: np.ndarray
    links: np.ndarray

    @property
    def counts(self) -> tuple[int, ...]:
        """How many different ones there are of each."""
        return tuple(len(np.unique(each)) for each in self)


def refined(first: Colours, members: tuple[np.ndarray, np.ndarray], crossings: Crossings) -> Colours:
    """Return the coarsest equitable colours that tell apart what ``first`` does.

    Parameters
    ----------
    first
        What is told apart to begin with.
    members
        Workers, and the tuple of each, an entry a membership.
    crossings
        What tuples send on which links.
    """
    now, label = Colours(*map(mixed, first)), mixed(crossings.label) | np.uint64(1)
    counts = now.counts
    while True:
        own = _sums(members[0], now.tuples[members[1]], len(now.workers))
        members_of = _sums(members[1], now.workers[members[0]], len(now.tuples))
        sent = _sums(crossings.tuple, now.links[crossings.link] * label, len(now.tuples))
        carried = _sums(crossings.link, now.tuples[crossings.tuple] * label, len(now.links))
        before = counts
        now = Colours(mixed(now.workers, own), mixed(now.tuples, members_of, sent), mixed(now.links, carried))
        if (counts := now.counts) == before:
            return now


def _sums(owner: np.ndarray, hashes: np.ndarray, count: int) -> np.ndarray:
    """Add up hashes of neighbours by whose they are, in any order."""
    sums = np.zeros(count, np.uint64)
    np.add.at(sums, owner, hashes)
    return sums


def mixed(*columns: np.ndarray) -> np.ndarray:
    """Return 64 bits for each row that scatter what its numbers are, of fractions their bits (splitmix64)."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.uint64, copy=False)
    hashes += np.uint64(len(columns))
    shifted = np.empty_like(hashes)
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes ^= np.right_shift(hashes, np.uint64(bits), out=shifted)
        hashes *= np.uint64(factor)
    hashes ^= np.right_shift(hashes, np.uint64(31), out=shifted)
    return hashes


def _numbered(values: np.ndarray) -> np.ndarray:
    """Return which different value each is."""
    return np.searchsorted(np.unique(values), values)  # quicker than the inverse, as few are different


def in_order(values: np.ndarray) -> np.ndarray:
    """Return which different value each is, numbered in the order in which they come first."""
    numbered = _numbered(values)
    first = np.empty(int(numbered.max(initial=-1)) + 1, np.int64)
    first[numbered[::-1]] = np.arange(len(numbered))[::-1]
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    ordered: np.ndarray = rank[numbered]
    return ordered
