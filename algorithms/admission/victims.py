"""What admission policies share: which running jobs a rule lets a job preempt, in which order, and how few suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ddlsched.cluster.tenants import Rule
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, TenantsView, Victim
from ddlsched.policies.views import JobView

__all__ = ["Need", "borrowers_of", "may_preempt", "order_of", "without_needless"]


@dataclass(frozen=True)
class Need:
    """A job that waits, its queue, and the kind of GPU that it is tried with."""

    job: JobView
    node: QuotaNode
    kind: str

    @property
    def gpus(self) -> int:
        """How many GPUs it needs."""
        return self.job.num_gpus

    def fits(self, *, borrowing: bool = True) -> bool:
        """Return whether the quotas do, without borrowing if need be."""
        if not borrowing and self.node.lacks(self.kind, self.gpus):
            return False
        return self.gpus <= self.node.available(self.kind)

    def candidates(self, tenants: TenantsView, queue: str, rule: Rule) -> Iterator[HeldQuota]:
        """Yield the running jobs of a queue, on GPUs of the kind, that a rule lets the job preempt."""
        if rule != "never":
            for holding in tenants.running(queue):
                started_before = holding.since_ns < tenants.now_ns
                if started_before and holding.kind == self.kind and may_preempt(self.job, holding.job, rule):
                    yield holding


def may_preempt(job: JobView, other: JobView, rule: Rule) -> bool:
    """Return whether a rule lets a job preempt another."""
    if rule == "any" or job.priority > other.priority:
        return rule != "never"
    came_before = (job.arrival_ns, job.number) < (other.arrival_ns, other.number)
    return rule == "lower-or-newer" and job.priority == other.priority and came_before


def order_of(queue: str) -> Callable[[HeldQuota], tuple[bool, int, int, int]]:
    """Return by what candidates go, first who gives way first: of other queues, of low priority, started last."""

    def key(holding: HeldQuota) -> tuple[bool, int, int, int]:
        return holding.queue == queue, holding.job.priority, -holding.since_ns, holding.job.number

    return key


def without_needless(
    victims: list[Victim], let_stay: Callable[[Victim], None], take: Callable[[Victim], None], fits: Callable[[], bool]
) -> list[Victim]:
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


def borrowers_of(need: Need, leaves: Iterable[QuotaNode]) -> str:
    """Return who holds the GPUs that a job's quota lacks, for explanations."""
    names = [leaf.name for leaf in leaves if leaf is not need.node and leaf.borrowed(need.kind)]
    if names:
        return f"quota: {' and '.join(names[:3])}{' and others' if len(names) > 3 else ''} borrowed it"
    if need.node.lacks(need.kind, need.gpus):
        return f"quota: {need.node.name} has used its own"
    return "quota: used up"
