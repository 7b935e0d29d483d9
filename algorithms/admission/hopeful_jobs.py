"""Which jobs might start, whoever gives way: a bound, reckoned for the first jobs of all queues at once.

It is that of :func:`~algorithms.admission.kueue_classic.classic_victims`: of queues of which a job may take GPUs all
that they use counts. For who does not fit even so nobody is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from algorithms.admission.victims import most_of_own
from ddlsched.policies.quota_tree import QuotaNode, QuotaTree
from ddlsched.policies.tenants_view import TenantsView
from ddlsched.policies.views import JobView

__all__ = ["HopefulJobs"]

_UNLIMITED = 2**62


class _Heads(NamedTuple):
    """The jobs of a queue of which one is next, from which list, and at which change of its running jobs."""

    source: list[JobView]
    jobs: list[JobView]
    changes: int
    gpus: np.ndarray
    own: np.ndarray
    """How many GPUs the jobs of its queue have that each might preempt."""


class _Level(NamedTuple):
    """The nodes of one depth, and where their parents are."""

    nodes: np.ndarray
    parents: np.ndarray


class HopefulJobs:
    """Reckons the bound, in a tree of queues that all have quotas of the same kind.

    Arrays have an entry a node; that of the last belongs to no node and stands above the roots.
    """

    def __init__(self, quotas: QuotaTree, kind: str) -> None:
        self._kind, self._nodes = kind, list(quotas.nodes.values())
        places = {node: place for place, node in enumerate(self._nodes)}
        none = len(self._nodes)
        self._parents = np.array([places[node.parent] if node.parent else none for node in self._nodes] + [none])
        depths = np.array([sum(1 for _ in node.above()) for node in self._nodes])
        self._levels = [
            _Level(nodes, self._parents[nodes])
            for depth in range(depths.max() + 1)
            for nodes in [np.flatnonzero(depths == depth)]
        ]
        self._leaves = {leaf: places[leaf] for leaf in quotas.leaves}
        rules = [node.queue.preemption for node in self._nodes]
        self._reclaims = np.array([rule.reclaim != "never" for rule in rules])
        self._borrows = np.array([rule.borrow != "never" for rule in rules])
        self._is_group = np.array([not node.is_leaf for node in self._nodes])
        self._quota, self._kept = (
            self._array(node.quota for node in self._nodes),
            self._array(node.kept for node in self._nodes),
        )
        limits = [node.own(kind).borrowing_limit for node in self._nodes]
        self._limits = np.array([_UNLIMITED if limit is None else limit for limit in limits])
        self._heads: dict[QuotaNode, _Heads] = {}

    def _array(self, amounts: Iterable[dict[str, int]]) -> np.ndarray:
        return np.array([of.get(self._kind, 0) for of in amounts] + [0])

    def among(self, leaves: Sequence[QuotaNode], tenants: TenantsView) -> dict[int, QuotaNode]:
        """Return the numbers of the first jobs of queues that might start, and their queues."""
        heads = [self._heads_of(leaf, tenants) for leaf in leaves]
        counts = [len(each.jobs) for each in heads]
        places = np.repeat([self._leaves[leaf] for leaf in leaves], counts)
        gpus = np.concatenate([each.gpus for each in heads])
        own = np.concatenate([each.own for each in heads])
        hopeful = np.flatnonzero(self._may_suffice(places, gpus, own))
        if not len(hopeful):
            return {}
        jobs = [(job.number, leaf) for each, leaf in zip(heads, leaves, strict=True) for job in each.jobs]
        return dict(jobs[place] for place in hopeful.tolist())

    def _heads_of(self, leaf: QuotaNode, tenants: TenantsView) -> _Heads:
        source, changes, known = tenants.pending.heads(leaf.name), tenants.changes(leaf.name), self._heads.get(leaf)
        if known is not None and known.source is source and known.changes == changes:
            return known
        jobs = source[:1] if leaf.queue.order == "strict" else source
        own = np.array([most_of_own(leaf, job.priority, tenants) for job in jobs], np.int64)
        self._heads[leaf] = _Heads(source, jobs, changes, np.array([job.num_gpus for job in jobs], np.int64), own)
        return self._heads[leaf]

    def _may_suffice(self, places: np.ndarray, gpus: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return of jobs, by the places of their queues, whether they might start."""
        used = self._array(node.used for node in self._nodes)
        free_here = np.maximum(0, self._kept - used)
        lacking = gpus - own - self._available(used, free_here)[places]
        within = used[places] + gpus - own <= self._quota[places]
        lent, below = self._lent(used)
        nearer, rest = used[places] + gpus <= self._quota[places], np.maximum(0, gpus - free_here[places])
        may, borrows = self._reclaims[places], self._borrows[places]
        borrowing, staying = np.zeros_like(gpus), np.zeros_like(gpus)
        before, group = places, self._parents[places]
        for _ in self._levels[1:]:
            most = np.where(may, below[group] - lent[before], 0)
            staying += most
            borrowing += np.where(nearer | borrows, most, 0)
            nearer = nearer | (used[group] + rest <= self._quota[group])
            rest = np.maximum(0, rest - free_here[group])
            before, group = group, self._parents[group]
        hopeful: np.ndarray = (lacking <= borrowing) | (within & (lacking <= staying))
        return hopeful

    def _available(self, used: np.ndarray, free_here: np.ndarray) -> np.ndarray:
        """Return how many GPUs more each node may use."""
        available: np.ndarray = self._quota - used
        lent = self._quota - self._kept
        for nodes, parents in self._levels[1:]:
            to_limit = lent[nodes] - np.maximum(0, used[nodes] - self._kept[nodes]) + self._limits[nodes]
            available[nodes] = free_here[nodes] + np.minimum(available[parents], to_limit)
        return available

    def _lent(self, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how much queues use that lack quota, and groups' queues; and that below groups, lacking or not."""
        below = np.zeros_like(used)
        lacks = used > self._quota
        lent = np.where(lacks, used, 0)
        for nodes, parents in reversed(self._levels):
            groups = nodes[self._is_group[nodes]]
            lent[groups] = np.where(lacks[groups], below[groups], 0)
            np.add.at(below, parents, lent[nodes])
        below[-1] = lent[-1] = 0
        return lent, below
