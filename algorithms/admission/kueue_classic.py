"""Kueue's preemption by rules: within the queue, reclaiming what is lent, and borrowing by priority.

Candidates are merged from the sorted lists of their queues, no further than until the job fits; a queue that no longer
uses more than its quota is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from algorithms.admission.victims import Need, without_needless
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, Rank, TenantsView, Victim

__all__ = ["classic_victims"]

_WITHIN = "priority within the queue"
_RECLAIM = "reclaimed quota that it had borrowed"
_BORROW = "lower priority, for a queue that borrows"


class _Level(NamedTuple):
    """A group above the job's queue."""

    group: QuotaNode
    before: QuotaNode
    """The one below it on the way, or the queue."""
    advantage: bool


class _Source(NamedTuple):
    """Another queue that uses more than its quota, and its lowest common group with the job's."""

    leaf: QuotaNode
    between: tuple[QuotaNode, ...]
    """The queue, and the groups between it and the common one."""
    advantage: bool
    """Whether its GPUs are nearer to the job's queue, which takes them back."""

    def lacks(self, kind: str) -> bool:
        """Return whether the queue still uses more than its quota, and so do the groups below the common one."""
        return all(node.lacks(kind) for node in self.between)


class _Candidate(NamedTuple):
    rank: Rank
    holding: HeldQuota
    source: _Source | None
    """None within the queue."""


def classic_victims(need: Need, tenants: TenantsView) -> list[Victim]:
    """Return who gives way to a job, as few as the order of candidates allows; none if it would not fit even so.

    Quotas are as before when this returns.

    References
    ----------
    Kueue, concepts/preemption ("classic preemption"), and keps/79-hierarchical-cohorts.
    """
    search = _Search(need, tenants)
    for borrowing in search.attempts():
        if victims := search.attempt(borrowing=borrowing):
            return victims
    return []


class _Search:
    def __init__(self, need: Need, tenants: TenantsView) -> None:
        self._need, self._tenants = need, tenants
        self._rules, self._node = need.node.queue.preemption, need.node
        self._levels = list(_levels(need))

    @cached_property
    def _sources(self) -> list[_Source]:
        return [
            _Source(between[0], between, level.advantage)
            for level in self._levels
            for between in _borrowing_below(level.group, level.before, self._need.kind)
        ]

    def attempts(self) -> tuple[bool, ...]:
        """Return whether the queue may borrow with the job, in the order in which that is tried."""
        forbidden, need = self._rules.borrow == "never", self._need
        below_quota = self._node.used[need.kind] < self._node.quota.get(need.kind, 0)
        if (forbidden and not below_quota) or not any(map(self._has_some, self._sources)):
            return (True,)
        any_nearer = any(source.advantage and self._has_some(source) for source in self._sources)
        return (False, True) if forbidden and not any_nearer else (True, False)

    def _has_some(self, source: _Source) -> bool:
        return next(self._need.ordered(self._tenants, source.leaf.name, self._rules.reclaim), None) is not None

    def _is_usable(self, advantage: bool, borrowing: bool) -> bool:
        return advantage or not borrowing or self._rules.borrow != "never"

    def attempt(self, *, borrowing: bool) -> list[Victim]:
        """Take candidates' GPUs until the job fits; then let those stay that need not go."""
        victims: list[_Candidate] = []
        need, fits = self._need, False
        for candidate in self._candidates(borrowing):
            victims.append(candidate)
            self._take(candidate)
            if fits := need.fits(borrowing=borrowing):
                break
        if fits:
            fit = lambda: need.fits(borrowing=borrowing)  # noqa: E731
            victims = without_needless(victims, self._let_stay, self._take, fit)
        for candidate in victims:
            self._let_stay(candidate)
        return [Victim(each.holding.job, self._reason(each)) for each in victims] if fits else []

    def _take(self, candidate: _Candidate) -> None:
        self._tenants.quotas[candidate.holding.queue].remove(self._need.kind, candidate.holding.num_gpus)

    def _let_stay(self, candidate: _Candidate) -> None:
        self._tenants.quotas[candidate.holding.queue].add(self._need.kind, candidate.holding.num_gpus)

    def _candidates(self, borrowing: bool) -> Iterator[_Candidate]:
        """Yield those that may give way now, each after the one before was taken: nearer ones first, the own last."""
        need = self._need
        for advantage in (True, False):
            lists = [self._of(source, borrowing) for source in self._sources if source.advantage == advantage]
            for candidate in heapq.merge(*lists):
                if candidate.source is not None and candidate.source.lacks(need.kind):
                    yield candidate
        for rank, holding in need.ordered(self._tenants, self._node.name, self._rules.within_queue):
            yield _Candidate(rank, holding, None)

    def _of(self, source: _Source, borrowing: bool) -> Iterator[_Candidate]:
        need = self._need
        if self._is_usable(source.advantage, borrowing):
            for rank, holding in need.ordered(self._tenants, source.leaf.name, self._rules.reclaim):
                if not source.lacks(need.kind):
                    return  # for good: what is used only falls
                if source.advantage or not borrowing or self._may_borrow_from(holding):
                    yield _Candidate(rank, holding, source)

    def _may_borrow_from(self, holding: HeldQuota) -> bool:
        """Return whether a job is of so low a priority that it gives way to a queue that borrows."""
        most = self._rules.borrow_max_priority
        below = holding.priority < self._need.job.priority and (most is None or holding.priority <= most)
        return self._rules.borrow != "never" and below

    def _reason(self, candidate: _Candidate) -> str:
        if candidate.source is None:
            return _WITHIN
        nearer = candidate.source.advantage or not self._may_borrow_from(candidate.holding)
        return _RECLAIM if nearer else _BORROW


def _levels(need: Need) -> Iterator[_Level]:
    """Yield the groups above the job's queue, and whether the GPUs that they lend are nearer to it than to others."""
    node, kind = need.node, need.kind
    if node.parent is None or node.queue.preemption.reclaim == "never":
        return
    advantage, rest = not node.lacks(kind, need.gpus), max(0, need.gpus - node.free_here(kind))
    before: QuotaNode = node
    for group in node.above():
        yield _Level(group, before, advantage)
        advantage = advantage or not group.lacks(kind, rest)
        rest, before = max(0, rest - group.free_here(kind)), group


def _borrowing_below(group: QuotaNode, skipped: QuotaNode, kind: str) -> Iterator[tuple[QuotaNode, ...]]:
    """Yield the queues of a group that use more than their quota with the groups between, if so do these."""
    for child in group.children:
        if child is skipped or not child.lacks(kind):
            continue
        if child.is_leaf:
            yield (child,)
        else:
            yield from ((*path, child) for path in _borrowing_below(child, skipped, kind))
