"""What the collectives of a placed job of groups put on links, tuple by tuple and class by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ddlsched.engine.alike import Colours, Crossings, GroupedDag, Partition, Parts, in_order, mixed, refined
from ddlsched.engine.build_tasks import spans
from ddlsched.engine.decisions.costs import CommunicationCosts, PlannedTransfer
from ddlsched.network.traffic import Way
from ddlsched.network.tuple_traffic import SentByTuples
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import CollectiveTask


class Crossed(NamedTuple):
    """Links that transfers cross, those of one after another.

    Parameters
    ----------
    num_links, links, shares
        Of the links that are simulated: how many crossings each transfer has, which, and what part of its bytes goes
        there.
    first, num, all_links, all_shares
        The same of all links that a transfer crosses, or one that it stands for; transfers share them.
    leaders, folded
        Of each of the job's links the one simulated for it, and 1 if transfers stand for others on it.
    """

    num_links: np.ndarray
    links: np.ndarray
    shares: np.ndarray
    first: np.ndarray
    num: np.ndarray
    all_links: np.ndarray
    all_shares: np.ndarray
    leaders: np.ndarray
    folded: np.ndarray


class _Kind:
    """Collectives of one group that send the same: what each tuple puts on links."""

    def __init__(self, sent: SentByTuples, costs: CommunicationCosts) -> None:
        self.links, self.shares, self.wire_bytes = sent.links, sent.shares, sent.wire_bytes
        self.tuples = np.repeat(np.arange(len(sent.counts)), sent.counts)
        # the times of each different transfer, once
        _, first, which = np.unique(mixed(sent.wire_bytes, sent.latency_s, sent.counts > 0), True, True)
        rows = np.stack([sent.wire_bytes, sent.latency_s, sent.counts > 0])[:, first]
        some = [PlannedTransfer((0,) * int(links), wire, cable_s) for wire, cable_s, links in rows.T.tolist()]
        latency_ns = [costs.latency_s(each.cable_latency_s) * NS_PER_S for each in some]
        self.latency_ns = np.array(latency_ns, np.float64)[which]
        self.load_ns = np.array([costs.load_ns(each) for each in some], np.int64)[which]
        alone_ns = [costs.alone_ns(each.wire_bytes, each.cable_latency_s) for each in some if each.links]
        self.longest_ns = max(alone_ns, default=0)


class SentInGroups:
    """What each tuple of a job's groups sends where, on these GPUs."""

    def __init__(self, dag: GroupedDag, costs: CommunicationCosts, gpus: Sequence[int], way: Way | None) -> None:
        self._dag = dag
        numbers: dict[tuple[object, ...], int] = {}
        self.kinds: list[_Kind] = []
        self._groups: list[int] = []
        self.kind_of = np.full(len(dag.dag.tasks), -1)
        traffic = costs.traffic(gpus, way)
        for place, (task, group) in enumerate(zip(dag.dag.tasks, dag.group_of.tolist(), strict=True)):
            if not isinstance(task, CollectiveTask):
                continue
            key = task.kind, task.algorithm, task.message_bytes, group
            if key not in numbers:
                numbers[key] = len(self.kinds)
                self.kinds.append(_Kind(costs.sent(traffic, task, dag.groups[group]), costs))
                self._groups.append(group)
            self.kind_of[place] = numbers[key]
        crossed = _joined(kind.links for kind in self.kinds)
        places = np.zeros(len(costs.network.links) + 1, np.int64)
        places[crossed] = 1
        self.links = np.flatnonzero(places)
        places[self.links] = np.arange(len(self.links))
        self._places = places[crossed]

    @property
    def iteration_ns(self) -> int:
        """What an iteration's collectives take without contention: of a group's tuples, the longest."""
        longest_ns = np.array([kind.longest_ns for kind in self.kinds], np.int64)
        return sum(longest_ns[self.kind_of[self.kind_of >= 0]].tolist())

    @cached_property
    def _first_tuples(self) -> np.ndarray:
        return np.cumsum([0, *(group.size for group in self._dag.groups)])

    @cached_property
    def crossings(self) -> Crossings:
        """All crossings, of tuples of all groups, by places among the job's links; labels by kind and share."""
        tuples = [self._first_tuples[group] + kind.tuples for kind, group in zip(self.kinds, self._groups, strict=True)]
        shares = _joined((kind.shares for kind in self.kinds), float)
        numbers = np.repeat(np.arange(len(self.kinds)), [len(kind.links) for kind in self.kinds])
        return Crossings(_joined(tuples), self._places, mixed(numbers, shares))

    @cached_property
    def members(self) -> tuple[np.ndarray, np.ndarray]:
        """Workers, and the tuple of each among those of all groups, an entry a membership."""
        groups = self._dag.groups
        tuples = [first + group.owners for first, group in zip(self._first_tuples[:-1], groups, strict=True)]
        return np.concatenate([group.workers for group in groups]), np.concatenate(tuples)

    @cached_property
    def tuples(self) -> np.ndarray:
        """A number for each tuple, by its group and by what it sends."""
        codes = np.repeat(np.arange(len(self._dag.groups)), np.diff(self._first_tuples)).astype(np.uint64)
        for kind, group in zip(self.kinds, self._groups, strict=True):
            own = slice(*self._first_tuples[group : group + 2])
            codes[own] = mixed(codes[own], kind.wire_bytes, kind.latency_ns, kind.load_ns)
        return codes

    def partition(self, colours: Colours) -> Partition:
        """Return the classes of workers and, group by group, of tuples."""
        tuples = [colours.tuples[a:b] for a, b in zip(self._first_tuples[:-1], self._first_tuples[1:], strict=True)]
        return Partition(colours.workers, [in_order(own) for own in tuples])

    def crossed(self, parts: Parts, partition: Partition, colours: Colours) -> Crossed:
        """Return what the transfers of classes put on the links that stand for others."""
        leader_of_class = np.unique(colours.links, return_index=True)[1]
        leads = np.zeros(len(self.links), bool)
        leads[leader_of_class] = True
        copies = [np.bincount(partition.tuples[group]) for group in self._groups]
        rows = np.cumsum([0, *map(len, copies)])  # a row a class of a kind
        each = zip(rows.tolist(), self.kinds, self._groups, strict=False)
        row = _joined(first + partition.tuples[group][kind.tuples] for first, kind, group in each)
        links, shares = _joined(kind.links for kind in self.kinds), _joined((kind.shares for kind in self.kinds), float)
        on = np.flatnonzero(leads[self._places])
        on = on[np.lexsort((shares[on], colours.links[self._places[on]], row[on]))]
        folded = np.zeros(len(self.links), np.int64)
        np.maximum.at(folded, self._places[on], _joined(copies)[row[on]] > 1)
        by_row = np.argsort(row, kind="stable")
        of_part = rows[self.kind_of[parts.task[parts.num_computes :]]]
        of_part += np.concatenate(partition.tuples)[self._first_tuples[parts.group] + parts.place]
        (first, num_links), (starts, counts) = (_spans_of(row[own], of_part, rows[-1]) for own in (on, by_row))
        at = on[spans(first, num_links)]
        leaders = self.links[leader_of_class[colours.links]] if len(self.links) else self.links
        found = num_links, links[at], shares[at], starts, counts, links[by_row], shares[by_row]
        return Crossed(*found, leaders, folded)

    def planned_of(self, parts: Parts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each transfer the bytes on its links, the latency, nanoseconds, and the load, nanoseconds."""
        first = np.cumsum([0, *(len(kind.wire_bytes) for kind in self.kinds)])
        at = first[self.kind_of[parts.task[parts.num_computes :]]] + parts.place
        wire_bytes = _joined((kind.wire_bytes for kind in self.kinds), float)
        latency_ns = _joined((kind.latency_ns for kind in self.kinds), float)
        return wire_bytes[at], latency_ns[at], _joined(kind.load_ns for kind in self.kinds)[at]


def alike(jobs: Sequence[tuple[SentInGroups, Colours]]) -> list[Colours]:
    """Return which workers, tuples and links of some jobs are alike, beginning with these colours of each.

    Links that several jobs cross begin with the colours that they have in each.
    """
    links = np.flatnonzero(np.bincount(np.concatenate([sent.links for sent, _ in jobs])))
    places = [np.searchsorted(links, sent.links) for sent, _ in jobs]
    of_links = np.zeros(len(links), np.uint64)
    for (_, first), own in zip(jobs, places, strict=True):
        of_links[own] = mixed(of_links[own], first.links)
    starts = [np.cumsum([0, *(len(first[what]) for _, first in jobs)]) for what in (0, 1)]
    workers, tuples = (
        np.concatenate(
            [mixed(np.full(len(first[what]), number), first[what]) for number, (_, first) in enumerate(jobs)]
        )
        for what in (0, 1)
    )
    members = [np.concatenate([s.members[what] + starts[what][n] for n, (s, _) in enumerate(jobs)]) for what in (0, 1)]
    crossings = Crossings(
        np.concatenate([sent.crossings.tuple + starts[1][number] for number, (sent, _) in enumerate(jobs)]),
        np.concatenate([own[sent.crossings.link] for (sent, _), own in zip(jobs, places, strict=True)]),
        np.concatenate([sent.crossings.label for sent, _ in jobs]),
    )
    found = refined(Colours(workers, tuples, of_links), (members[0], members[1]), crossings)
    return [
        Colours(*(in_order(each) for each in (found.workers[a:b], found.tuples[c:d], found.links[own])))
        for a, b, c, d, own in zip(starts[0], starts[0][1:], starts[1], starts[1][1:], places, strict=False)
    ]


def _spans_of(owners: np.ndarray, wanted: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where those of each wanted owner begin among owners in order, and how many they are."""
    counts = np.bincount(owners, minlength=count)
    return (np.cumsum(counts) - counts)[wanted], counts[wanted]


def _joined(arrays: Iterable[np.ndarray], number: type = int) -> np.ndarray:
    """Return arrays of numbers, of which there may be none, one after another."""
    return np.concatenate([np.zeros(0, number), *arrays])
