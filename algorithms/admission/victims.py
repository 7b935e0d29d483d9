"""What admission policies share: which running jobs a rule lets a job preempt, in which order, and how few suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from typing import TypeVar

import numpy as np

from ddlsched.policies.quota_tree import QuotaNode, QuotaTree
from ddlsched.policies.tenants_view import HeldQuota, TenantsView
from ddlsched.policies.views import JobView

_T = TypeVar("_T")
_TOLD = 3

UNLIMITED = 2**62
"""A limit for compiled code where there is none."""

WITHIN = "priority within the queue"
"""Why a job gives way to another of its queue."""
RECLAIMED = "reclaimed quota that it had borrowed"
LOWER = "lower priority, for a queue that borrows"
"""Why one gives way to another queue's."""


class Need:
    """A job that waits, its queue, the kind of GPU that it is tried with, and how many it needs."""

    __slots__ = ("gpus", "job", "kind", "node")

    def __init__(self, job: JobView, node: QuotaNode, kind: str) -> None:
        self.job, self.node, self.kind, self.gpus = job, node, kind, job.num_gpus

    def fits(self) -> bool:
        """Return whether the quotas do."""
        return self.gpus <= self.node.available(self.kind)

    def candidates(self, tenants: TenantsView, queue: str, rule: str) -> list[HeldQuota]:
        """Return the running jobs of a queue, on GPUs of the kind, that a rule lets the job preempt."""
        if rule == "never":
            return []
        now_ns = tenants.now_ns
        return [each for _, each in tenants.ordered(queue) if each.since_ns < now_ns and self._may_preempt(each, rule)]

    def _may_preempt(self, holding: HeldQuota, rule: str) -> bool:
        if holding.kind != self.kind:
            return False
        if rule == "any" or holding.priority < self.job.priority:
            return True
        newer = holding.came > (self.job.arrival_ns, self.job.number)
        return rule == "lower-or-newer" and holding.priority == self.job.priority and newer


def order_of(queue: str) -> Callable[[HeldQuota], tuple[bool, int, int, int]]:
    """Return by what candidates go, first who gives way first: of other queues, of low priority, started last."""

    def key(holding: HeldQuota) -> tuple[bool, int, int, int]:
        return holding.queue == queue, holding.priority, -holding.since_ns, holding.came[1]

    return key


def without_needless(
    victims: list[_T],
    let_stay: Callable[[_T], None],
    take: Callable[[_T], None],
    fits: Callable[[], bool],
    *,
    found: bool,
) -> list[_T]:
    """Return victims without those that the job fits beside; none if it was not found to fit without all of them.

    The last one made it fit. ``let_stay`` and ``take`` count a victim's GPUs again and no more; in the end all count.
    """
    needed = victims[-1:] if found else victims
    for victim in reversed(victims[:-1]) if found else ():
        let_stay(victim)
        if not fits():
            take(victim)
            needed.append(victim)
    for victim in needed:
        let_stay(victim)
    return needed if found else []


def from_root(node: QuotaNode) -> list[QuotaNode]:
    """Return a queue's groups, the root first, and the queue."""
    return [*reversed(list(node.above())), node]


def below_common(node: QuotaNode, other: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """Return the queues, or groups, where two paths from the root part."""
    return next((a, b) for a, b in zip(from_root(node), from_root(other), strict=False) if a is not b)


@cache
def height_of(node: QuotaNode) -> int:
    """Return how many groups lie on the longest way from a node down to a queue, with it; 0 of a queue."""
    return 1 + max(map(height_of, node.children)) if node.children else 0


def lacking_of(leaves: Iterable[QuotaNode], kind: str) -> list[QuotaNode]:
    """Return the first queues that use more than their quota: as many as explanations tell of, and two."""
    return list(islice((leaf for leaf in leaves if leaf.lacks(kind)), _TOLD + 2))


def names_of(lacking: list[QuotaNode], node: QuotaNode) -> str:
    """Return what explanations say of other queues that use more than their quota; nothing if there are none."""
    names = [leaf.name for leaf in lacking if leaf is not node]
    others = " and others" if len(names) > _TOLD else ""
    return f"quota: {' and '.join(names[:_TOLD])}{others} borrowed it" if names else ""


def borrowers_of(need: Need, lacking: list[QuotaNode]) -> str:
    """Return who holds the GPUs that a job's quota lacks, for explanations; ``lacking`` is :func:`lacking_of`."""
    if others := names_of(lacking, need.node):
        return others
    if need.node.lacks(need.kind, need.gpus):
        return f"quota: {need.node.name} has used its own"
    return "quota: used up"


class QuotaArrays:
    """A tree of queues for compiled searches: arrays with an entry a node; the last belongs to none, above the roots.

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
    changes
        Of each queue a number that was another whenever its running jobs were others.
    """

    def __init__(self, quotas: QuotaTree) -> None:
        self._nodes = list(quotas.nodes.values())
        places = {node: place for place, node in enumerate(self._nodes)}
        none = len(self._nodes)
        self.parents = np.array([places[node.parent] if node.parent else none for node in self._nodes] + [none])
        self.downwards = np.argsort([sum(1 for _ in node.above()) for node in self._nodes], kind="stable")
        self.heights = np.array([height_of(node) for node in self._nodes] + [0])
        self.leaves = {leaf: places[leaf] for leaf in quotas.leaves}
        self._amounts: dict[str, np.ndarray] = {}
        self._used: dict[str, np.ndarray] = {}
        self.rows = np.zeros((len(self.parents), 16, 7), np.int64)
        self.counts = np.zeros(len(self.parents), np.int64)
        self.changes = np.full(len(self.leaves), -1)

    def note(self, tenants: TenantsView) -> None:
        """Note who runs now, and what is used."""
        self._used.clear()
        changes = np.array(tenants.changes())
        for (leaf, place), is_other in zip(self.leaves.items(), (changes != self.changes).tolist(), strict=True):
            if is_other:
                rows = tenants.rows(leaf.name)
                self.counts[place] = count = len(rows)
                while count >= self.rows.shape[1]:
                    self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)], axis=1)
                self.rows[place, :count, :6] = rows
                np.cumsum(rows[:, 3], out=self.rows[place, 1 : count + 1, 6])
        self.changes = changes

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
