"""What the collectives of a placed job of groups put on links, tuple by tuple and class by class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ddlsched.engine.alike import Colours, Crossings, in_order, mixed, refined
from ddlsched.engine.build_tasks import spans
from ddlsched.engine.decisions.costs import CommunicationCosts, PlannedTransfer
from ddlsched.engine.grouped_parts import GroupedDag, Partition, Parts
from ddlsched.network.traffic import Way
from ddlsched.network.tuple_traffic import SentByTuples
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import CollectiveTask

__all__ = ["Crossed", "SentInGroups"]


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
        crossed = np.concatenate([np.zeros(0, np.int64), *(kind.links for kind in self.kinds)])
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
        none = np.zeros(0, np.int64)
        tuples = [self._first_tuples[group] + kind.tuples for kind, group in zip(self.kinds, self._groups, strict=True)]
        shares = np.concatenate([np.zeros(0), *(kind.shares for kind in self.kinds)])
        numbers = np.repeat(np.arange(len(self.kinds)), [len(kind.links) for kind in self.kinds])
        return Crossings(np.concatenate([none, *tuples]), self._places, mixed(numbers, shares))

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
        folded = np.zeros(len(self.links), np.int64)
        simulated, everything, begin = [], [], 0
        for kind, group in zip(self.kinds, self._groups, strict=True):
            classes, places = partition.tuples[group], self._places[begin : begin + len(kind.links)]
            begin += len(kind.links)
            own = classes[kind.tuples].astype(np.int32)
            copies = np.bincount(classes)
            on = np.flatnonzero(leads[places])
            on = on[np.lexsort((kind.shares[on], colours.links[places[on]], own[on]))]
            np.maximum.at(folded, places[on], copies[own[on]] > 1)
            simulated.append(_rows(own[on], kind.links[on], kind.shares[on], len(copies)))
            by_class = np.argsort(own.astype(np.uint16) if len(copies) < 1 << 16 else own, kind="stable")
            everything.append(_rows(own[by_class], kind.links[by_class], kind.shares[by_class], len(copies)))
        kinds = self.kind_of[parts.task[parts.num_computes :]]
        classes = np.concatenate(partition.tuples)[self._first_tuples[parts.group] + parts.place]
        first, num_links, links, shares = _rows_of(simulated, kinds, classes)
        at = spans(first, num_links)
        starts, counts, all_links, all_shares = _rows_of(everything, kinds, classes)
        leaders = self.links[leader_of_class[colours.links]] if len(self.links) else self.links
        return Crossed(num_links, links[at], shares[at], starts, counts, all_links, all_shares, leaders, folded)

    def planned_of(self, parts: Parts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each transfer the bytes on its links, the latency, nanoseconds, and the load, nanoseconds."""
        kinds = self.kind_of[parts.task[parts.num_computes :]]
        first = np.cumsum([0, *(len(kind.wire_bytes) for kind in self.kinds)])
        at = first[kinds] + parts.place
        wire, latency = (
            np.concatenate([np.zeros(0), *(getattr(kind, name) for kind in self.kinds)])[at]
            for name in ("wire_bytes", "latency_ns")
        )
        return wire, latency, np.concatenate([np.zeros(0, np.int64), *(kind.load_ns for kind in self.kinds)])[at]


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


class _Rows(NamedTuple):
    """Rows of crossings one after another: where each begins, and how many it has."""

    first: np.ndarray
    counts: np.ndarray
    links: np.ndarray
    shares: np.ndarray


def _rows(owner: np.ndarray, links: np.ndarray, shares: np.ndarray, count: int) -> _Rows:
    counts = np.bincount(owner, minlength=count) if len(owner) else np.zeros(count, np.int64)
    return _Rows(np.cumsum(counts) - counts, counts, links, shares)


def _rows_of(
    kinds: Sequence[_Rows], kind: np.ndarray, row: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return where rows of kinds begin and how long they are, in links and shares of all kinds, which follow."""
    none = np.zeros(0, np.int64)
    begin = np.cumsum([0, *(len(rows.links) for rows in kinds)])
    at = np.cumsum([0, *(len(rows.counts) for rows in kinds)])[kind] + row
    first = np.concatenate([none, *(rows.first + start for rows, start in zip(kinds, begin[:-1], strict=True))])
    counts, links = (np.concatenate([none, *(rows[what] for rows in kinds)]) for what in (1, 2))
    return first[at], counts[at], links, np.concatenate([np.zeros(0), *(rows.shares for rows in kinds)])
