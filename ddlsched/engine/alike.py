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

from typing import NamedTuple

import numpy as np

from ddlsched.engine.build_tasks import spans
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


def in_order(values: np.ndarray) -> np.ndarray:
    """Return which different value each is, numbered in the order in which they come first."""
    different, first = np.unique(values, return_index=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    ordered: np.ndarray = rank[np.searchsorted(different, values)]
    return ordered


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
    tuple
        Of each collective the tuple that stands for all, among those of all groups.
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
    tuple: np.ndarray

    def pending(self, ended: np.ndarray) -> np.ndarray:
        """Return for how many parts each one waits when some have ended; for none: as at the beginning."""
        waiting = np.repeat(~ended, np.diff(self.first_successor))
        counts = np.bincount(self.successors[waiting], minlength=len(self.task))
        return np.where(counts == 0, self.predecessors, counts)


class GroupedDag:
    """The tasks of an iteration whose workers do different things, on so many GPUs.

    Attributes
    ----------
    groups
        The tuples of the groups that tasks name; a task of none is one of all workers.
    first_tuples
        Where those of each group begin among the tuples of all, and how many there are.
    members
        Workers, and the tuple of each, an entry a membership.
    group_of, group_of_tuple
        The group of each task, and of each tuple.
    computes, durations_ns
        Whether each task is a compute task; what it takes, of others 0.
    first_parts
        The number of each task's first part in the finest partition, and of all parts.
    """

    def __init__(self, dag: IterationDag, num_gpus: int) -> None:
        self.dag, self.num_gpus = dag, num_gpus
        numbers = {name: number for number, name in enumerate(dict.fromkeys(task.group for task in dag.tasks))}
        everybody = (range(num_gpus),)
        self.groups = [Tuples.of(everybody if name is None else dag.groups[name]) for name in numbers]
        self.group_of = np.array([numbers[task.group] for task in dag.tasks])
        sizes = np.array([group.size for group in self.groups])
        self.first_tuples = np.concatenate([[0], np.cumsum(sizes)])
        self.group_of_tuple = np.repeat(np.arange(len(sizes)), sizes)
        owners = [first + group.owners for first, group in zip(self.first_tuples.tolist(), self.groups, strict=False)]
        self.members = np.concatenate([group.workers for group in self.groups]), np.concatenate(owners)
        self.computes = np.array([isinstance(task, ComputeTask) for task in dag.tasks])
        durations_ns = [task.duration_ns if isinstance(task, ComputeTask) else 0 for task in dag.tasks]
        self.durations_ns = np.array(durations_ns)
        counts = np.where(self.computes, 1, sizes[self.group_of])
        self.first_parts: np.ndarray = np.concatenate([[0], np.cumsum(counts)])
        edges = [(earlier, number) for number, before in enumerate(dag.predecessors) for earlier in before]
        self.edges = np.array(edges, np.int64).reshape(-1, 2)

    @property
    def finest(self) -> Colours:
        """Every worker and every tuple by itself."""
        return Colours(np.arange(self.num_gpus), np.arange(len(self.group_of_tuple)), np.zeros(0, np.int64))

    def parts(self, colours: Colours) -> Parts:
        """Return the parts of an iteration, whose workers and tuples have colours in the order of first members."""
        led = _Led.of(self, colours)
        begin = np.where(self.computes, led.of_workers[self.group_of], led.of_tuples[self.group_of])
        end = np.where(self.computes, led.of_workers[self.group_of + 1], led.of_tuples[self.group_of + 1])
        count = end - begin
        task, at = np.repeat(np.arange(len(count)), count), spans(begin, count)
        computes, num_computes = self.computes[task], int(count[self.computes].sum())
        worker = np.where(computes, led.workers.take(at, mode="clip"), -1)
        order = np.lexsort((at, task, worker, ~computes))
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        before, after = number[self._waits(led, np.cumsum(count) - count)]
        by_first = np.lexsort((after, before))
        predecessors = np.bincount(after, minlength=len(order))
        task, classes, worker = task[order], at[order][num_computes:], worker[order][:num_computes]
        of_tuple = led.first[classes]
        place = of_tuple - self.first_tuples[self.group_of_tuple[of_tuple]]
        nobody = np.zeros(num_computes, np.int64)
        num_members = np.bincount(led.classes, minlength=len(led.first))
        first_member = np.cumsum(num_members) - num_members
        return Parts(
            task=task,
            part=self.first_parts[task] + np.concatenate([nobody, place]),
            copies=np.concatenate([np.bincount(colours.workers)[worker], np.bincount(colours.tuples)[classes]]),
            worker=np.concatenate([led.leaders[worker], np.full(len(classes), -1)]),
            predecessors=predecessors,
            first_successor=np.searchsorted(before[by_first], np.arange(len(order) + 1)),
            successors=after[by_first],
            first_member=np.concatenate([nobody, first_member[classes]]),
            num_members=np.concatenate([nobody, num_members[classes]]),
            members=led.leaders[led.workers[np.argsort(led.classes, kind="stable")]],
            sources=np.flatnonzero(predecessors == 0),
            num_computes=num_computes,
            tuple=of_tuple,
        )

    def _waits(self, led: _Led, first_of_task: np.ndarray) -> np.ndarray:
        """Return pairs of parts, task by task, of which the second waits for the first; each pair once."""
        before, after = self.edges.T
        sides = self.group_of * 2 + self.computes
        kinds, kind = np.unique(sides[before] << 32 | sides[after], return_inverse=True)
        order = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
        pairs = [np.zeros((2, 0), np.int64)]
        for side, other, edges in zip((kinds >> 32).tolist(), (kinds & 0xFFFFFFFF).tolist(), order, strict=False):
            (workers, own), (others, theirs) = led.places(*divmod(side, 2)), led.places(*divmod(other, 2))
            _, here, there = np.intersect1d(workers, others, assume_unique=True, return_indices=True)
            meeting = np.unique(np.stack([own[here], theirs[there]]), axis=1)
            tasks = first_of_task[np.stack([before[edges], after[edges]])]
            pairs.append((tasks[:, :, None] + meeting[:, None, :]).reshape(2, -1))
        return np.concatenate(pairs, axis=1)


class _Led(NamedTuple):
    """The workers that lead a class, ``leaders``, and the tuples that do, ``first``, by class.

    ``workers`` and ``classes`` are the classes of workers and tuples of the leaders' memberships, by group and worker;
    ``of_workers`` says where those of each group begin, and ``of_tuples`` where the classes of its tuples do.
    """

    leaders: np.ndarray
    first: np.ndarray
    workers: np.ndarray
    classes: np.ndarray
    of_workers: np.ndarray
    of_tuples: np.ndarray

    @classmethod
    def of(cls, dag: GroupedDag, colours: Colours) -> _Led:
        leaders, first = (np.unique(each, return_index=True)[1] for each in (colours.workers, colours.tuples))
        leads = np.zeros(dag.num_gpus, bool)
        leads[leaders] = True
        workers, tuples = (each[leads[dag.members[0]]] for each in dag.members)
        order = np.lexsort((workers, dag.group_of_tuple[tuples]))
        workers, tuples = workers[order], tuples[order]
        begins = (np.searchsorted(dag.group_of_tuple[own], np.arange(len(dag.groups) + 1)) for own in (tuples, first))
        return cls(leaders, first, colours.workers[workers], colours.tuples[tuples], *begins)

    def places(self, group: int, computes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the workers of a group, and the place of each one's part among those of a task of the group."""
        own = slice(*self.of_workers[group : group + 2])
        workers = self.workers[own]
        return workers, np.arange(len(workers)) if computes else self.classes[own] - self.of_tuples[group]
