"""Which workers, tuples and links of a placed job of groups are alike, and its iteration with one of each kind.

Workers are told apart by their GPU, tuples by their group and by what they send, links by their bandwidth and by who
else uses them; then by how many neighbours of each kind they have, again and again until nothing more is told apart
(colour refinement, or the one-dimensional Weisfeiler-Leman algorithm: the coarsest equitable partition). Members of a
class then have as many neighbours in each class, so that they do the same at the same instants: a worker waits for the
tuples that it is in, a tuple for its workers, and how fast its bytes go depends on how many transfers of each class
share its links.

A class of workers is simulated by its first one, a class of a group's tuples by its first. So a part of the iteration
(a compute task of a class of workers, or a collective in a class of tuples) waits for other parts, each once. In the
finest partition every worker and every tuple is a class of its own.

References
----------
Berkholz, Bonsma, Grohe, "Tight lower and upper bounds for the complexity of canonical colour refinement", Theory of
Computing Systems 60 (2017).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ddlsched.network.tuple_traffic import Tuples
from ddlsched.workload.dag import ComputeTask, IterationDag


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


class Partition(NamedTuple):
    """Which workers, and which tuples of each group, are alike: numbers of classes, in the order of first members.

    ``tuples`` has an array for each of :attr:`GroupedDag.groups`.
    """

    workers: np.ndarray
    tuples: list[np.ndarray]


class Parts(NamedTuple):
    """The parts of an iteration: compute tasks by worker, then collectives by task and tuple.

    Parameters
    ----------
    task, part
        Number in the DAG; number among the parts of the finest partition, the compute task of a group being one.
    copies
        How many there are alike: workers, or tuples.
    worker
        Who computes it; -1 of a collective.
    predecessors
        How many parts it waits for.
    first_successor, successors
        Parts that wait for each one, one after another, and where those of each begin.
    first_member, num_members, members
        Workers that stand for those of a collective's tuple.
    sources
        Parts that wait for nothing.
    num_computes
        How many are compute tasks.
    group, place
        Of each collective its group among :attr:`GroupedDag.groups`, and the place of the tuple that stands for all.
    """

    task: np.ndarray
    part: np.ndarray
    copies: np.ndarray
    worker: np.ndarray
    predecessors: np.ndarray
    first_successor: np.ndarray
    successors: np.ndarray
    first_member: np.ndarray
    num_members: np.ndarray
    members: np.ndarray
    sources: np.ndarray
    num_computes: int
    group: np.ndarray
    place: np.ndarray

    def pending(self, ended: np.ndarray) -> np.ndarray:
        """Return for how many parts each one waits when some have ended; for none: as at the beginning."""
        waiting = np.repeat(~ended, np.diff(self.first_successor))
        counts = np.bincount(self.successors[waiting], minlength=len(self.task))
        return np.where(counts == 0, self.predecessors, counts)


@dataclass(frozen=True)
class GroupedDag:
    """The tasks of an iteration whose workers do different things, on so many GPUs."""

    dag: IterationDag
    num_gpus: int

    @cached_property
    def groups(self) -> list[Tuples]:
        """The tuples of the groups that tasks name; a task of none is one of all workers."""
        everybody = (range(self.num_gpus),)
        return [Tuples.of(everybody if name is None else self.dag.groups[name]) for name in self._group_names]

    @cached_property
    def _group_names(self) -> list[str | None]:
        return [*dict.fromkeys(task.group for task in self.dag.tasks)]

    @cached_property
    def group_of(self) -> np.ndarray:
        """The group of each task."""
        numbers = {name: number for number, name in enumerate(self._group_names)}
        return np.array([numbers[task.group] for task in self.dag.tasks])

    @cached_property
    def computes(self) -> np.ndarray:
        """Whether each task is a compute task."""
        return np.array([isinstance(task, ComputeTask) for task in self.dag.tasks])

    @cached_property
    def durations_ns(self) -> np.ndarray:
        """Of compute tasks, of others 0."""
        return np.array([task.duration_ns if isinstance(task, ComputeTask) else 0 for task in self.dag.tasks])

    @cached_property
    def first_parts(self) -> np.ndarray:
        """The number of each task's first part in the finest partition, and of all parts."""
        tuples = np.array([group.size for group in self.groups])[self.group_of]
        first: np.ndarray = np.concatenate([[0], np.cumsum(np.where(self.computes, 1, tuples))])
        return first

    @cached_property
    def _edges(self) -> np.ndarray:
        edges = [(earlier, number) for number, before in enumerate(self.dag.predecessors) for earlier in before]
        return np.array(edges, np.int64).reshape(-1, 2)

    @property
    def finest(self) -> Partition:
        """Every worker and every tuple by itself."""
        return Partition(np.arange(self.num_gpus), [np.arange(group.size) for group in self.groups])

    def parts(self, partition: Partition) -> Parts:
        """Return the parts of an iteration of workers and tuples of which some are alike."""
        return _Builder(self, partition).parts()


class _OfGroup(NamedTuple):
    """What classes a group has: of workers, ascending, that of the tuples of each; and each class' first tuple."""

    workers: np.ndarray
    tuples: np.ndarray
    first: np.ndarray
    copies: np.ndarray


class _Builder:
    def __init__(self, of: GroupedDag, partition: Partition) -> None:
        self.of = of
        _, first, self.worker_copies = np.unique(partition.workers, return_index=True, return_counts=True)
        self.first_worker, self._number = first, np.full(of.num_gpus, -1)
        self._number[first] = np.arange(len(first))
        self.groups = [self._group(group, tuples) for group, tuples in zip(of.groups, partition.tuples, strict=True)]
        counts = np.where(of.computes, self._sizes(lambda g: len(g.workers)), self._sizes(lambda g: len(g.first)))
        self.task = np.repeat(np.arange(len(counts)), counts)
        self.first_of_task = np.concatenate([[0], np.cumsum(counts)])

    def _sizes(self, size: Callable[[_OfGroup], int]) -> np.ndarray:
        return np.array([size(group) for group in self.groups]).take(self.of.group_of)

    def _group(self, group: Tuples, classes: np.ndarray) -> _OfGroup:
        numbers = self._number[group.workers]
        members = np.flatnonzero(numbers >= 0)
        members = members[np.argsort(numbers[members])]
        tuples = np.searchsorted(group.first, members, "right") - 1
        _, first, copies = np.unique(classes, return_index=True, return_counts=True)
        return _OfGroup(numbers[members], classes[tuples], first, copies)

    def parts(self) -> Parts:
        of, local = self.of, np.arange(len(self.task)) - self.first_of_task[self.task]
        group, computes = of.group_of[self.task], of.computes[self.task]
        worker = self._taken(group, local, computes, lambda g: g.workers)
        place = self._taken(group, local, ~computes, lambda g: g.first)
        order = np.lexsort((local, self.task, worker, ~computes))
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        before, after = self._waits()
        by_first = np.lexsort((number[after], number[before]))
        before, after = number[before][by_first], number[after][by_first]
        predecessors = np.bincount(after, minlength=len(order))
        first_member, num_members, members = self._members()
        num_computes, collective = int(computes.sum()), np.maximum(place, 0)
        lone = np.where(computes, self.worker_copies[worker], self._taken(group, local, ~computes, lambda g: g.copies))
        tuple_class = np.where(computes, 0, self._first_class[group] + local)[order]
        return Parts(
            task=self.task[order],
            part=(of.first_parts[self.task] + np.where(computes, 0, collective))[order],
            copies=lone[order],
            worker=np.where(computes, self.first_worker[worker], -1)[order],
            predecessors=predecessors,
            first_successor=np.searchsorted(before, np.arange(len(order) + 1)),
            successors=after,
            first_member=first_member[tuple_class],
            num_members=np.where(computes[order], 0, num_members[tuple_class]),
            members=members,
            sources=np.flatnonzero(predecessors == 0),
            num_computes=num_computes,
            group=group[order][num_computes:],
            place=place[order][num_computes:],
        )

    def _taken(
        self, group: np.ndarray, local: np.ndarray, where: np.ndarray, values: Callable[[_OfGroup], np.ndarray]
    ) -> np.ndarray:
        """Return of each part where ``where`` holds the value of its group at its place there, elsewhere -1."""
        arrays = [values(each) for each in self.groups]
        first = np.cumsum([0, *map(len, arrays)])
        taken = np.full(len(group), -1)
        taken[where] = np.concatenate(arrays)[(first[group] + local)[where]]
        return taken

    def _waits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of parts, by task and place there, of which the second waits for the first."""
        before, after = self.of._edges.T
        sides = self.of.group_of * 2 + self.of.computes
        kinds, kind = np.unique(sides[before] << 32 | sides[after], return_inverse=True)
        order = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
        earlier, later = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for one, other, edges in zip((kinds >> 32).tolist(), (kinds & 0xFFFFFFFF).tolist(), order, strict=False):
            first, second = self._meeting(one // 2, one % 2 > 0, other // 2, other % 2 > 0)
            earlier.append((self.first_of_task[before[edges], None] + first).ravel())
            later.append((self.first_of_task[after[edges], None] + second).ravel())
        return np.concatenate(earlier), np.concatenate(later)

    def _meeting(
        self, first: int, first_computes: bool, second: int, second_computes: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of parts of tasks of two groups that share a worker, each pair once."""
        one, other = self.groups[first], self.groups[second]
        _, here, there = np.intersect1d(one.workers, other.workers, assume_unique=True, return_indices=True)
        pairs = np.stack(
            [here if first_computes else one.tuples[here], there if second_computes else other.tuples[there]]
        )
        earlier, later = np.unique(pairs, axis=1)
        return earlier, later

    @cached_property
    def _first_class(self) -> np.ndarray:
        return np.cumsum([0, *(len(group.first) for group in self.groups)])

    def _members(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where the workers of each class of tuples begin, group after group, how many they are, and they."""
        classes = np.concatenate(
            [first + group.tuples for first, group in zip(self._first_class[:-1], self.groups, strict=True)]
        )
        workers = np.concatenate([group.workers for group in self.groups])
        order = np.argsort(classes, kind="stable")
        counts = np.bincount(classes, minlength=self._first_class[-1])
        return np.cumsum(counts) - counts, counts, self.first_worker[workers[order]]
