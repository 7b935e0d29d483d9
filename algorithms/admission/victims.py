"""What admission policies share: which running jobs a rule lets a job preempt, in which order, and how few suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from ddlsched.cluster.tenants import Rule
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, TenantsView
from ddlsched.policies.views import JobView

__all__ = ["WITHIN", "Need", "borrowers_of", "lacking_of", "names_of", "order_of", "without_needless"]

_T = TypeVar("_T")
_TOLD = 3

WITHIN = "priority within the queue"
"""Why a job gives way to another of its queue."""


class Need:
    """A job that waits, its queue, the kind of GPU that it is tried with, and how many it needs."""

    __slots__ = ("gpus", "job", "kind", "node")

    def __init__(self, job: JobView, node: QuotaNode, kind: str) -> None:
        self.job, self.node, self.kind, self.gpus = job, node, kind, job.num_gpus

    def fits(self, *, borrowing: bool = True) -> bool:
        """Return whether the quotas do, without borrowing if need be."""
        if not borrowing and self.node.lacks(self.kind, self.gpus):
            return False
        return self.gpus <= self.node.available(self.kind)

    def candidates(self, tenants: TenantsView, queue: str, rule: Rule) -> list[HeldQuota]:
        """Return the running jobs of a queue, on GPUs of the kind, that a rule lets the job preempt."""
        if rule == "never":
            return []
        now_ns = tenants.now_ns
        return [each for _, each in tenants.ordered(queue) if each.since_ns < now_ns and self._may_preempt(each, rule)]

    def _may_preempt(self, holding: HeldQuota, rule: Rule) -> bool:
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
    victims: list[_T], let_stay: Callable[[_T], None], take: Callable[[_T], None], fits: Callable[[], bool]
) -> list[_T]:
    """Return victims without those that the job fits beside; the last one made it fit.

    ``let_stay`` and ``take`` count a victim's GPUs again and no more.
    """
    needed = victims[-1:]
    for victim in reversed(victims[:-1]):
        let_stay(victim)
        if not fits():
            take(victim)
            needed.append(victim)
    return needed


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
