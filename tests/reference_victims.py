"""A plain search for victims by Kueue's rules, which the product's must equal: all candidates, sorted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from algorithms.admission.victims import Need, order_of, without_needless
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, TenantsView, Victim

_WITHIN = "priority within the queue"
_RECLAIM = "reclaimed quota that it had borrowed"
_BORROW = "lower priority, for a queue that borrows"


class _Candidate(NamedTuple):
    holding: HeldQuota
    common: QuotaNode | None
    """The lowest group of both queues; None within the queue."""
    reason: str
    only_without_borrowing: bool


def classic_victims(need: Need, tenants: TenantsView) -> list[Victim]:
    """Return who gives way to a job, as few as the order of candidates allows; none if it would not fit even so.

    Quotas are as before when this returns.

    References
    ----------
    Kueue, concepts/preemption ("classic preemption"), and keps/79-hierarchical-cohorts.
    """
    rules, queue = need.node.queue.preemption, need.node.name
    nearer, farther = _of_others(need, tenants)
    same = [
        _Candidate(holding, None, _WITHIN, False) for holding in need.candidates(tenants, queue, rules.within_queue)
    ]
    key = order_of(queue)
    candidates = [
        each for group in (nearer, farther, same) for each in sorted(group, key=lambda each: key(each.holding))
    ]
    for borrowing in _attempts(need, bool(nearer), bool(nearer or farther)):
        if victims := _attempt(need, tenants, candidates, borrowing=borrowing):
            return victims
    return []


def _attempts(need: Need, any_nearer: bool, any_other: bool) -> tuple[bool, ...]:
    """Return whether the queue may borrow with the job, in the order in which that is tried."""
    forbidden = need.node.queue.preemption.borrow == "never"
    below_quota = need.node.used[need.kind] < need.node.quota.get(need.kind, 0)
    if not any_other or (forbidden and not below_quota):
        return (True,)
    return (False, True) if forbidden and not any_nearer else (True, False)


def _attempt(need: Need, tenants: TenantsView, candidates: list[_Candidate], *, borrowing: bool) -> list[Victim]:
    """Take candidates' GPUs until the job fits; then let those stay that need not go."""
    victims: list[Victim] = []
    quotas, found = tenants.quotas, False

    def take(victim: Victim, sign: int = 1) -> None:
        queue = quotas[str(victim.job.queue)]
        (queue.remove if sign > 0 else queue.add)(need.kind, victim.job.num_gpus)

    for candidate in candidates:
        if not _is_valid(candidate, need, tenants, borrowing=borrowing):
            continue
        victims.append(Victim(candidate.holding.job, candidate.reason))
        take(victims[-1])
        if _fits(need, borrowing=borrowing):
            found = True
            break
    return without_needless(
        victims, lambda victim: take(victim, -1), take, lambda: _fits(need, borrowing=borrowing), found=found
    )


def _fits(need: Need, *, borrowing: bool) -> bool:
    """Return whether the quotas do, without borrowing if need be."""
    return need.fits() and (borrowing or not need.node.lacks(need.kind, need.gpus))


def _is_valid(candidate: _Candidate, need: Need, tenants: TenantsView, *, borrowing: bool) -> bool:
    """Return whether a candidate's queue still uses more than its quota, and so do the groups below the common one."""
    if candidate.common is None:
        return True
    if borrowing and candidate.only_without_borrowing:
        return False
    node = tenants.quotas[candidate.holding.queue]
    if not node.lacks(need.kind):
        return False
    for group in node.above():
        if group is candidate.common:
            break
        if not group.lacks(need.kind):
            return False
    return True


def _of_others(need: Need, tenants: TenantsView) -> tuple[list[_Candidate], list[_Candidate]]:
    """Return the candidates of other queues: those on GPUs that are nearer to the job's queue, and the others."""
    nearer: list[_Candidate] = []
    farther: list[_Candidate] = []
    node, kind = need.node, need.kind
    if node.parent is None or node.queue.preemption.reclaim == "never":
        return nearer, farther
    advantage, rest = not node.lacks(kind, need.gpus), max(0, need.gpus - node.free_here(kind))
    before: QuotaNode | None = None
    for group in node.above():
        found = nearer if advantage else farther
        for leaf in _borrowing_leaves(group, before, need):
            for holding in need.candidates(tenants, leaf.name, node.queue.preemption.reclaim):
                found.append(_classified(holding, group, need, advantage))
        advantage = advantage or not group.lacks(kind, rest)
        rest, before = max(0, rest - group.free_here(kind)), group
    return nearer, farther


def _borrowing_leaves(group: QuotaNode, skipped: QuotaNode | None, need: Need) -> Iterator[QuotaNode]:
    """Yield the queues of a group that use more than their quota, if so do the groups between."""
    groups = [child for child in group.children if not child.is_leaf]
    for child in groups:
        if child is not skipped and child.lacks(need.kind):
            yield from _borrowing_leaves(child, skipped, need)
    for child in group.children:
        if child.is_leaf and child is not need.node and child.lacks(need.kind):
            yield child


def _classified(holding: HeldQuota, common: QuotaNode, need: Need, advantage: bool) -> _Candidate:
    rules = need.node.queue.preemption
    if advantage:
        return _Candidate(holding, common, _RECLAIM, False)
    above = rules.borrow_max_priority is not None and holding.job.priority > rules.borrow_max_priority
    if rules.borrow == "never" or holding.job.priority >= need.job.priority or above:
        return _Candidate(holding, common, _RECLAIM, True)
    return _Candidate(holding, common, _BORROW, False)
