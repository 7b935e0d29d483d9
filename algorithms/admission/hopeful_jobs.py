"""Which jobs might start, whoever gives way: a bound, reckoned for the first jobs of all queues at once.

It is that of :func:`~algorithms.admission.kueue_classic.classic_victims`: of queues of which a job may take GPUs all
that they use counts. For who does not fit even so nobody is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numba
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
    changes: int
    jobs: list[tuple[int, QuotaNode]]
    needs: np.ndarray
    """Of each the place of its queue, its GPUs, and how many the jobs of its queue have that it might preempt."""


class HopefulJobs:
    """Reckons the bound, in a tree of queues that all have quotas of the same kind.

    Arrays have an entry a node; that of the last belongs to no node and stands above the roots.
    """

    def __init__(self, quotas: QuotaTree, kind: str) -> None:
        self._kind, self._nodes = kind, list(quotas.nodes.values())
        places = {node: place for place, node in enumerate(self._nodes)}
        none = len(self._nodes)
        self._parents = np.array([places[node.parent] if node.parent else none for node in self._nodes] + [none])
        depths = [sum(1 for _ in node.above()) for node in self._nodes]
        self._downwards = np.argsort(depths, kind="stable")
        self._leaves = {leaf: places[leaf] for leaf in quotas.leaves}
        rules = [node.queue.preemption for node in self._nodes]
        self._rules = np.array(
            [
                (rule.reclaim != "never", rule.borrow != "never", not node.is_leaf)
                for rule, node in zip(rules, self._nodes, strict=True)
            ]
        )
        limits = [node.own(kind).borrowing_limit for node in self._nodes]
        self._amounts = np.array(
            [
                self._of_all(node.quota for node in self._nodes),
                self._of_all(node.kept for node in self._nodes),
                [_UNLIMITED if limit is None else limit for limit in limits] + [0],
            ]
        )
        self._heads: dict[QuotaNode, _Heads] = {}
        self._jobs: list[tuple[int, QuotaNode]] = []
        self._needs = np.zeros((0, 3), np.int64)

    def _of_all(self, amounts: Iterable[dict[str, int]]) -> list[int]:
        return [of.get(self._kind, 0) for of in amounts] + [0]

    def among(self, tenants: TenantsView) -> dict[int, QuotaNode]:
        """Return the numbers of the first jobs of queues that might start, and their queues."""
        changed = [self._note_heads(leaf, tenants) for leaf in self._leaves]  # of all, whichever is first
        if any(changed):
            all_heads = self._heads.values()
            self._jobs = [job for heads in all_heads for job in heads.jobs]
            self._needs = np.concatenate([heads.needs for heads in all_heads])
        used = np.array(self._of_all([node.used for node in self._nodes]))
        hopeful = _hopeful(used, self._amounts, self._parents, self._downwards, self._rules, self._needs)
        return dict(self._jobs[place] for place in hopeful.tolist())

    def _note_heads(self, leaf: QuotaNode, tenants: TenantsView) -> bool:
        """Note the first jobs of a queue; return whether these, or its running ones, are others than before."""
        source, changes, known = tenants.pending.heads(leaf.name), tenants.changes(leaf.name), self._heads.get(leaf)
        if known is not None and known.source is source and known.changes == changes:
            return False
        jobs = source[:1] if leaf.queue.order == "strict" else source
        needs = [(self._leaves[leaf], job.num_gpus, most_of_own(leaf, job.priority, tenants)) for job in jobs]
        numbers = [(job.number, leaf) for job in jobs]
        self._heads[leaf] = _Heads(source, changes, numbers, np.array(needs, np.int64).reshape(-1, 3))
        return True


@numba.njit(cache=True)
def _hopeful(used, amounts, parents, downwards, rules, needs):  # type: ignore[no-untyped-def]
    """Return the rows of ``needs`` that might start, when nodes use so much; ``amounts``: quotas, kept, limits."""
    quota, kept, limits = amounts[0], amounts[1], amounts[2]
    none = len(parents) - 1
    available, free_here = np.zeros_like(used), np.maximum(0, kept - used)
    # what queues and groups that lack quota use, and what is used so below each group, lacking or not
    lent, below = np.zeros_like(used), np.zeros_like(used)
    for node in downwards:
        available[node] = quota[node] - used[node]
        if parents[node] != none:
            to_limit = quota[node] - kept[node] - max(0, used[node] - kept[node]) + limits[node]
            available[node] = free_here[node] + min(available[parents[node]], to_limit)
    for node in downwards[::-1]:
        if used[node] > quota[node]:
            lent[node] = below[node] if rules[node, 2] else used[node]
        if parents[node] != none:
            below[parents[node]] += lent[node]
    hopeful = np.empty(len(needs), np.int64)
    count = 0
    for row in range(len(needs)):
        place, gpus, own = needs[row]
        lacking = gpus - own - available[place]
        nearer, rest = used[place] + gpus <= quota[place], max(0, gpus - free_here[place])
        borrowing = staying = 0
        before, group = place, parents[place]
        while group != none and rules[place, 0]:
            most = below[group] - lent[before]
            staying += most
            if nearer or rules[place, 1]:
                borrowing += most
            nearer = nearer or used[group] + rest <= quota[group]
            rest = max(0, rest - free_here[group])
            before, group = group, parents[group]
        within = used[place] + gpus - own <= quota[place]
        if lacking <= borrowing or (within and lacking <= staying):
            hopeful[count] = row
            count += 1
    return hopeful[:count]
