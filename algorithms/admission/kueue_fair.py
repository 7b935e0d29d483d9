"""Kueue's preemption by fair shares: who has borrowed most gives way, as long as that makes shares more equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from algorithms.admission.victims import LOWER, RECLAIMED, WITHIN, Need, below_common, order_of, without_needless
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, TenantsView, Victim
from ddlsched.policies.views import JobView

_FAIR = "fair share"


@dataclass(frozen=True)
class FairRules:
    """Which of the strategies hold, in order, and whether a borrowing queue preempts lower priorities beside them."""

    final_share: bool = True
    initial_share: bool = True
    below_priority: bool = False


def fair_victims(need: Need, tenants: TenantsView, rules: FairRules) -> list[Victim]:
    """Return who gives way to a job, none if it would not fit even so. Quotas are as before when this returns.

    References
    ----------
    Kueue, keps/1714-fair-sharing, rules S1, S2-a, S2-b; the shares are compared just below the lowest common group.
    """
    candidates = sorted(_candidates(need, tenants), key=order_of(need.node.name))
    if not candidates:
        return []
    search = _Search(need, tenants, rules)
    need.node.add(need.kind, need.gpus)
    found = search.first(candidates)
    if not found and rules.final_share and rules.initial_share:
        found = search.second()
    need.node.remove(need.kind, need.gpus)
    return without_needless(search.victims, search.let_stay, search.take, search.fits, found=found)


def _candidates(need: Need, tenants: TenantsView) -> Iterator[HeldQuota]:
    preemption, node = need.node.queue.preemption, need.node
    yield from need.candidates(tenants, node.name, preemption.within_queue)
    if node.parent is not None and preemption.reclaim != "never":
        for leaf in node.root.leaves():
            if leaf is not node and leaf.lacks(need.kind):
                yield from need.candidates(tenants, leaf.name, preemption.reclaim)


@dataclass
class _Search:
    need: Need
    tenants: TenantsView
    rules: FairRules
    victims: list[Victim] = field(default_factory=list)
    again: list[HeldQuota] = field(default_factory=list)
    gone: dict[int, JobView] = field(default_factory=dict)

    def take(self, victim: Victim) -> None:
        self.gone[victim.job.number] = victim.job
        self.tenants.quotas[str(victim.job.queue)].remove(self.need.kind, victim.job.num_gpus)

    def let_stay(self, victim: Victim) -> None:
        del self.gone[victim.job.number]
        self.tenants.quotas[str(victim.job.queue)].add(self.need.kind, victim.job.num_gpus)

    def fits(self) -> bool:
        """Return whether quotas and the level's room do for the job, once those are gone that have been taken."""
        room = self.tenants.room
        return self.need.fits() and (room is None or room.suffices(self.need.job, [*self.gone.values()]))

    def _takes(self, holding: HeldQuota, reason: str) -> bool:
        """Add a victim; return whether the job fits, whose own GPUs are counted meanwhile."""
        self.victims.append(Victim(holding.job, reason))
        self.take(self.victims[-1])
        need = self.need
        need.node.remove(need.kind, need.gpus)
        fits = self.fits()
        need.node.add(need.kind, need.gpus)
        return fits

    def first(self, candidates: Sequence[HeldQuota]) -> bool:
        """Take victims by the first strategy."""
        targets = _Targets(self.need, self.tenants, candidates)
        entitled = not self.need.node.lacks(self.need.kind)
        while (leaf := targets.next()) is not None:
            if leaf is self.need.node or entitled:
                reason = WITHIN if leaf is self.need.node else RECLAIMED
                if self._takes(targets.pop(leaf), reason):
                    return True
            elif self._from_other(targets, leaf):
                return True
        return False

    def _from_other(self, targets: _Targets, leaf: QuotaNode) -> bool:
        """Take the first candidate of a queue that the strategy allows; return whether the job fits then."""
        own, other = below_common(self.need.node, leaf)
        share = self.tenants.quotas.share
        mine, before = share(own), share(other)
        while targets.of[leaf.name]:
            holding = targets.pop(leaf)
            leaf.remove(self.need.kind, holding.num_gpus)
            after = share(other)
            leaf.add(self.need.kind, holding.num_gpus)
            allowed = mine <= after if self.rules.final_share else mine < before
            if allowed or self._is_below(holding):
                return self._takes(holding, _FAIR if allowed else LOWER)
            self.again.append(holding)
        return False

    def _is_below(self, holding: HeldQuota) -> bool:
        """Return whether a job gives way by its priority, whatever the shares are."""
        rules = self.need.node.queue.preemption
        most = rules.borrow_max_priority
        lower = holding.job.priority < self.need.job.priority and (most is None or holding.job.priority <= most)
        return self.rules.below_priority and rules.borrow != "never" and lower

    def second(self) -> bool:
        """Take at most one victim of each queue whose share before was larger than the job's queue's is with it."""
        targets = _Targets(self.need, self.tenants, self.again)
        while (leaf := targets.next()) is not None:
            own, other = below_common(self.need.node, leaf)
            holding, share = targets.pop(leaf), self.tenants.quotas.share
            if share(own) < share(other) and self._takes(holding, _FAIR):
                return True
            targets.pruned.add(leaf.name)
        return False


@dataclass
class _Targets:
    """From which queue the next victim is: down from the root, always to who has the largest share."""

    need: Need
    tenants: TenantsView
    candidates: Sequence[HeldQuota]

    def __post_init__(self) -> None:
        self.pruned: set[str] = set()
        self.of: dict[str, list[HeldQuota]] = {leaf.name: [] for leaf in self.need.node.root.leaves()}
        for holding in self.candidates:
            self.of[holding.queue].append(holding)
        self._above = {group.name for group in self.need.node.above()}

    def pop(self, leaf: QuotaNode) -> HeldQuota:
        return self.of[leaf.name].pop(0)

    def next(self) -> QuotaNode | None:
        node, root = self.need.node, self.need.node.root
        if node is root:
            return node if self.of[node.name] and node.name not in self.pruned else None
        while root.name not in self.pruned:
            if (leaf := self._below(root)) is not None:
                return leaf
        return None

    def _below(self, group: QuotaNode) -> QuotaNode | None:
        """Return the queue below a group with the largest shares on the way; None if something was pruned."""
        share = self.tenants.quotas.share
        children = [child for child in group.children if self._stays(child)]
        leaves = sorted((child for child in children if child.is_leaf), key=self._first)
        groups = [child for child in children if not child.is_leaf]
        if not children:
            self.pruned.add(group.name)
            return None
        leaf = max(leaves, key=share, default=None)
        below = max(reversed(groups), key=share, default=None)
        if below is not None and (leaf is None or share(below) >= share(leaf)):
            return self._below(below)
        return leaf

    def _first(self, leaf: QuotaNode) -> tuple[bool, int, int, int]:
        return order_of(self.need.node.name)(self.of[leaf.name][0])

    def _stays(self, child: QuotaNode) -> bool:
        """Return whether a queue or group may have victims; one that has none is pruned for good."""
        borrows = self.tenants.quotas.borrows(child)
        if child.is_leaf:
            good = (borrows or child is self.need.node) and bool(self.of[child.name])
        else:
            good = borrows or child.name in self._above
        if not good:
            self.pruned.add(child.name)
        return child.name not in self.pruned
