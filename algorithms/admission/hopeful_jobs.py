"""Which jobs might start, whoever gives way: a bound, reckoned for the first jobs of all queues at once.

It is that of :func:`~algorithms.admission.kueue_classic.ClassicSearch`: of queues of which a job may take GPUs all
that they use counts. For who does not fit even so nobody is searched for.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from algorithms.admission.quota_arrays import QuotaArrays
from ddlsched.cluster.tenants import Rule
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import TenantsView
from ddlsched.policies.views import JobView

__all__ = ["HopefulJobs"]


class _Heads(NamedTuple):
    """The jobs of a queue of which one is next, from which list, and at which change of its running jobs."""

    source: list[JobView]
    changes: int
    jobs: list[tuple[int, QuotaNode]]
    asked: np.ndarray
    """Of each its GPUs and its priority."""
    needs: np.ndarray
    """Of each the place of its queue, its GPUs, and how many the jobs of its queue have that it might preempt."""


class HopefulJobs:
    """Reckons the bound, in a tree of queues that all have quotas of the same kind."""

    def __init__(self, arrays: QuotaArrays, kind: str) -> None:
        self._arrays, self._kind = arrays, kind
        self._rules = arrays.rules()
        self._heads: dict[QuotaNode, _Heads] = {}
        self._jobs: list[tuple[int, QuotaNode]] = []
        self._needs = np.zeros((0, 3), np.int64)

    def among(self, tenants: TenantsView) -> dict[int, QuotaNode]:
        """Return the numbers of the first jobs of queues that might start, and their queues."""
        arrays = self._arrays
        changed = [self._note_heads(leaf, place, tenants) for leaf, place in arrays.leaves.items()]
        if any(changed):
            all_heads = self._heads.values()
            self._jobs = [job for heads in all_heads for job in heads.jobs]
            self._needs = np.concatenate([heads.needs for heads in all_heads])
        amounts = arrays.used(self._kind), arrays.amounts(self._kind)
        hopeful = _hopeful(*amounts, arrays.parents, arrays.downwards, self._rules, self._needs)
        return dict(self._jobs[place] for place in hopeful.tolist())

    def _note_heads(self, leaf: QuotaNode, place: int, tenants: TenantsView) -> bool:
        """Note the first jobs of a queue; return whether these, or its running ones, are others than before."""
        source, changes, known = tenants.pending.heads(leaf.name), tenants.changes(leaf.name), self._heads.get(leaf)
        same = known is not None and known.source is source
        if known is not None and same and known.changes == changes:
            return False
        if known is not None and same:
            numbers, asked = known.jobs, known.asked
        else:
            jobs = source[:1] if leaf.queue.order == "strict" else source
            numbers = [(job.number, leaf) for job in jobs]
            asked = np.array([(job.num_gpus, job.priority) for job in jobs], np.int64).reshape(-1, 2)
        own = _most_of_own(leaf.queue.preemption.within_queue, asked[:, 1], tenants.rows(leaf.name))
        needs = np.stack([np.full(len(asked), place), asked[:, 0], own], axis=1)
        self._heads[leaf] = _Heads(source, changes, numbers, asked, needs)
        return True


def _most_of_own(rule: Rule, priorities: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return how many GPUs the jobs of a queue have that some of these priorities may preempt, or more."""
    if rule == "never":
        return np.zeros(len(priorities), np.int64)
    gpus = np.concatenate([[0], np.cumsum(rows[:, 3])])
    return gpus[np.searchsorted(rows[:, 0], priorities, side="left" if rule == "lower-priority" else "right")]


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
