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

__all__ = ["Colours", "Crossings", "refined"]


class Crossings(NamedTuple):
    """Which links tuples cross: an entry a crossing, with a number for what is sent there."""

    tuple: np.ndarray
    link: np.ndarray
    label: np.ndarray


class Colours(NamedTuple):
    """A number for each worker, tuple and link: equal ones are alike, numbered in the order of the first of each."""

    workers: np.ndarray
    tuples: np.ndarray
    links: np.ndarray

    @property
    def counts(self) -> tuple[int, ...]:
        """How many different ones there are of each."""
        return tuple(int(each.max(initial=-1)) + 1 for each in self)


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
    to_workers, to_tuples = _Sums(members[0], len(first.workers)), _Sums(members[1], len(first.tuples))
    to_links = _Sums(crossings.link, len(first.links))
    from_links = _Sums(crossings.tuple, len(first.tuples))
    now = Colours(*(_numbered(each.astype(np.uint64)) for each in first))
    while True:
        workers = _numbered(_mixed(now.workers, to_workers.of(now.tuples[members[1]])))
        sent = from_links.of(now.links[crossings.link], crossings.label)
        tuples = _numbered(_mixed(now.tuples, to_tuples.of(now.workers[members[0]]), sent))
        links = _numbered(_mixed(now.links, to_links.of(now.tuples[crossings.tuple], crossings.label)))
        finer = Colours(workers, tuples, links)
        if finer.counts == now.counts:
            return now
        now = finer


class _Sums:
    """Adds up hashes of neighbours by whose they are, in any order."""

    def __init__(self, owner: np.ndarray, count: int) -> None:
        self._order = np.argsort(owner, kind="stable")
        self._owners, self._first = np.unique(owner[self._order], return_index=True)
        self._count = count

    def of(self, colours: np.ndarray, label: np.ndarray | int = 0) -> np.ndarray:
        """Return a sum for each owner."""
        sums = np.zeros(self._count, np.uint64)
        if len(self._owners):
            hashes = _mixed(colours, np.zeros(len(colours), np.uint64) + np.asarray(label).astype(np.uint64))
            sums[self._owners] = np.add.reduceat(hashes[self._order], self._first)
        return sums


def _mixed(*columns: np.ndarray) -> np.ndarray:
    """Return 64 bits for each row that scatter what its numbers are (splitmix64)."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _numbered(values: np.ndarray) -> np.ndarray:
    """Return which different value each is, numbered in the order in which they come first."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbered: np.ndarray = rank[inverse]
    return numbered
