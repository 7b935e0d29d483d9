"""Which jobs might start, whoever gives way: a bound, reckoned for the first jobs of all queues at once.

It is that of :func:`~algorithms.admission.kueue_classic.ClassicSearch`: of queues of which a job may take GPUs all
that they use counts. For who does not fit even so nobody is searched for.
"""

from __future__ import annotations

import numba
import numpy as np

from algorithms.admission.victims import QuotaArrays
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import Heads, TenantsView


class HopefulJobs:
    """Reckons the bound, in a tree of queues that all have quotas of the same kind."""

    def __init__(self, arrays: QuotaArrays, kind: str) -> None:
        self._arrays, self._kind = arrays, kind
        self._rules = arrays.rules()
        self._leaf_at = {place: leaf for leaf, place in arrays.leaves.items()}
        self._places = np.array([*self._leaf_at])
        self._strict = [leaf.queue.order == "strict" for leaf in arrays.leaves]
        self._heads: list[Heads] = []
        self._numbers, self._needs = np.zeros(0, np.int64), np.zeros((0, 3), np.int64)
        """Of each job its number; its GPUs, its priority, and the place of its queue."""

    def among(self, tenants: TenantsView) -> dict[int, QuotaNode]:
        """Return the numbers of the first jobs of queues that might start, and their queues, by what was noted last."""
        arrays = self._arrays
        if (heads := tenants.pending.firsts()) is not self._heads:
            self._note_heads(heads)
        amounts = arrays.used(self._kind), arrays.amounts(self._kind)
        running = arrays.rows, arrays.counts
        hopeful = _hopeful(*amounts, arrays.parents, arrays.downwards, self._rules, self._needs, *running)
        leaves = map(self._leaf_at.__getitem__, self._needs[hopeful, 2].tolist())
        return dict(zip(self._numbers[hopeful].tolist(), leaves, strict=True))

    def _note_heads(self, heads: list[Heads]) -> None:
        """Note the first jobs of all queues."""
        asked = [first.asked[:1] if only else first.asked for only, first in zip(self._strict, heads, strict=True)]
        self._heads, noted = heads, np.concatenate(asked)
        self._numbers = noted[:, 2].copy()
        noted[:, 2] = np.repeat(self._places, [*map(len, asked)])
        self._needs = noted


@numba.njit(cache=True)
def _hopeful(used, amounts, parents, downwards, rules, needs, rows, counts):  # type: ignore[no-untyped-def]
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
        gpus, priority, place = needs[row]
        own = _most_of_own(rows[place], counts[place], priority - rules[place, 3]) if rules[place, 4] else 0
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


@numba.njit(cache=True)
def _most_of_own(rows, count, priority):  # type: ignore[no-untyped-def]
    """Return how many GPUs the jobs have of at most a priority."""
    first, end = 0, count
    while first < end:
        middle = (first + end) // 2
        if rows[middle, 0] > priority:
            end = middle
        else:
            first = middle + 1
    return rows[first, 6]
