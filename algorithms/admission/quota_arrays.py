"""A tree of queues as arrays, for compiled searches over it."""

from __future__ import annotations

import numpy as np

from ddlsched.policies.quota_tree import QuotaNode, QuotaTree
from ddlsched.policies.tenants_view import TenantsView

__all__ = ["UNLIMITED", "QuotaArrays"]

UNLIMITED = 2**62


class QuotaArrays:
    """Arrays with an entry a node; that of the last belongs to no node and stands above the roots.

    Attributes
    ----------
    leaves
        The queues and their places.
    parents, downwards, heights
        The place of the node above each; all places with each after the one above it; how many groups lie on the
        longest way from each down to a queue, with it.
    rows, counts
        Of each queue its running jobs when they were last noted, as ``RunningJobs.rows`` has them, and the GPUs of all
        before; and how many these are.
    """

    def __init__(self, quotas: QuotaTree) -> None:
        self._nodes = list(quotas.nodes.values())
        places = {node: place for place, node in enumerate(self._nodes)}
        none = len(self._nodes)
        self.parents = np.array([places[node.parent] if node.parent else none for node in self._nodes] + [none])
        self.downwards = np.argsort([sum(1 for _ in node.above()) for node in self._nodes], kind="stable")
        self.heights = np.zeros(len(self.parents), np.int64)
        for place in self.downwards[::-1].tolist():
            if self._nodes[place].children:
                below = [self.heights.item(places[child]) for child in self._nodes[place].children]
                self.heights[place] = 1 + max(below)
        self.leaves = {leaf: places[leaf] for leaf in quotas.leaves}
        self._amounts: dict[str, np.ndarray] = {}
        self._used: dict[str, np.ndarray] = {}
        self.rows = np.zeros((len(self.parents), 16, 7), np.int64)
        self.counts = np.zeros(len(self.parents), np.int64)
        self._changes = [-1] * len(self.leaves)

    def note(self, tenants: TenantsView) -> None:
        """Note who runs now, and what is used."""
        self._used.clear()
        if (changes := tenants.changes()) == self._changes:
            return
        for (leaf, place), before, now in zip(self.leaves.items(), self._changes, changes, strict=True):
            if now != before:
                rows = tenants.rows(leaf.name)
                self.counts[place] = count = len(rows)
                while count >= self.rows.shape[1]:
                    self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)], axis=1)
                self.rows[place, :count, :6] = rows
                np.cumsum(rows[:, 3], out=self.rows[place, 1 : count + 1, 6])
        self._changes = changes

    def rules(self) -> np.ndarray:
        """Return of each node whether it reclaims, borrows so, is a group, preempts lower priorities only, or any."""
        return np.array([_rules_of(node) for node in self._nodes])

    def amounts(self, kind: str) -> np.ndarray:
        """Return rows of what nodes have of a kind: quotas, what of them is kept, and limits of borrowing."""
        if kind not in self._amounts:
            limits = [node.own(kind).borrowing_limit for node in self._nodes]
            self._amounts[kind] = np.array(
                [
                    [node.quota.get(kind, 0) for node in self._nodes] + [0],
                    [node.kept.get(kind, 0) for node in self._nodes] + [0],
                    [UNLIMITED if limit is None else limit for limit in limits] + [0],
                ]
            )
        return self._amounts[kind]

    def used(self, kind: str) -> np.ndarray:
        """Return what nodes used of a kind when that was last noted."""
        if kind not in self._used:
            self._used[kind] = np.array([node.used[kind] for node in self._nodes] + [0])
        return self._used[kind]


def _rules_of(node: QuotaNode) -> tuple[bool, ...]:
    rules = node.queue.preemption
    within = rules.within_queue == "lower-priority", rules.within_queue != "never"
    return rules.reclaim != "never", rules.borrow != "never", not node.is_leaf, *within
