"""What the collectives of a placed job of groups put on links, tuple by tuple and class by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ddlsched.engine.alike import Colours, Crossings, GroupedDag, Parts, in_order, mixed, refined
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
        self.dag = dag
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
    def crossings(self) -> Crossings:
        """All crossings, of tuples of all groups, by places among the job's links; labels by kind and share."""
        first = self.dag.first_tuples[self._groups].tolist()
        tuples = [first + kind.tuples for first, kind in zip(first, self.kinds, strict=True)]
        shares = _joined((kind.shares for kind in self.kinds), float)
        numbers = np.repeat(np.arange(len(self.kinds)), [len(kind.links) for kind in self.kinds])
        return Crossings(_joined(tuples), self._places, mixed(numbers, shares))

    @cached_property
    def tuples(self) -> np.ndarray:
        """A number for each tuple, by its group and by what it sends."""
        codes = self.dag.group_of_tuple.astype(np.uint64)
        for kind, group in zip(self.kinds, self._groups, strict=True):
            own = slice(*self.dag.first_tuples[group : group + 2])
            codes[own] = mixed(codes[own], kind.wire_bytes, kind.latency_ns, kind.load_ns)
        return codes

    def crossed(self, parts: Parts, colours: Colours) -> Crossed:
        """Return what the transfers of classes put on the links that stand for others."""
        leader_of_class = np.unique(colours.links, return_index=True)[1]
        leads = np.zeros(len(self.links), bool)
        leads[leader_of_class] = True
        copies, classes = np.bincount(colours.tuples), colours.tuples[self.crossings.tuple]
        # a row a class of a kind
        of_groups = colours.tuples[self.dag.first_tuples[:-1]]
        counts = np.diff(of_groups, append=len(copies))[self._groups]
        ends = np.cumsum(counts)
        first = ends - counts - of_groups[self._groups]
        row = np.repeat(first, [len(kind.links) for kind in self.kinds]) + classes
        links, shares = _joined(kind.links for kind in self.kinds), _joined((kind.shares for kind in self.kinds), float)
        on = np.flatnonzero(leads[self._places])
        on = on[np.lexsort((shares[on], colours.links[self._places[on]], row[on]))]
        folded = np.zeros(len(self.links), np.int64)
        np.maximum.at(folded, self._places[on], copies[classes[on]] > 1)
        by_row = np.argsort(row, kind="stable")
        of_part = first[self.kind_of[parts.task[parts.num_computes :]]] + colours.tuples[parts.tuple]
        num_rows = int(counts.sum())
        (first, num_links), (starts, counts) = (_spans_of(row[own], of_part, num_rows) for own in (on, by_row))
        at = on[spans(first, num_links)]
        leaders = self.links[leader_of_class[colours.links]] if len(self.links) else self.links
        found = num_links, links[at], shares[at], starts, counts, links[by_row], shares[by_row]
        return Crossed(*found, leaders, folded)

    def planned_of(self, parts: Parts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each transfer the bytes on its links, the latency, nanoseconds, and the load, nanoseconds."""
        counts = np.array([len(kind.wire_bytes) for kind in self.kinds], np.int64)
        first = np.cumsum(counts) - counts - self.dag.first_tuples[self._groups]
        at = first[self.kind_of[parts.task[parts.num_computes :]]] + parts.tuple
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
    workers, tuples = list[np.ndarray](), list[np.ndarray]()
    members, crossings, num_workers, num_tuples = list[np.ndarray](), list[Crossings](), 0, 0
    for number, ((sent, first), own) in enumerate(zip(jobs, places, strict=True)):
        of_links[own] = mixed(of_links[own], first.links)
        workers.append(mixed(np.full(len(first.workers), number), first.workers))
        tuples.append(mixed(np.full(len(first.tuples), number), first.tuples))
        (worker, tuple_of_worker), (tuple_of, link, label) = sent.dag.members, sent.crossings
        members.append(np.stack([worker + num_workers, tuple_of_worker + num_tuples]))
        crossings.append(Crossings(tuple_of + num_tuples, own[link], label))
        num_workers, num_tuples = num_workers + len(first.workers), num_tuples + len(first.tuples)
    begin = Colours(np.concatenate(workers), np.concatenate(tuples), of_links)
    of_workers, of_tuples = np.concatenate(members, axis=1)
    found = refined(begin, (of_workers, of_tuples), Crossings(*map(np.concatenate, zip(*crossings, strict=True))))
    own_workers, own_tuples = (
        np.split(colours, np.cumsum([*map(len, firsts)])[:-1])
        for colours, firsts in ((found.workers, workers), (found.tuples, tuples))
    )
    own_links = (found.links[own] for own in places)
    return [Colours(*map(in_order, own)) for own in zip(own_workers, own_tuples, own_links, strict=True)]


def _spans_of(owners: np.ndarray, wanted: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where those of each wanted owner begin among owners in order, and how many they are."""
    counts = np.bincount(owners, minlength=count)
    return (np.cumsum(counts) - counts)[wanted], counts[wanted]


def _joined(arrays: Iterable[np.ndarray], number: type = int) -> np.ndarray:
    """Return arrays of numbers, of which there may be none, one after another."""
    return np.concatenate([np.zeros(0, number), *arrays])
