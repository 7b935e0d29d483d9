"""KAI: quotas first, the rest by weight over the quota, and reclaiming from who has more than its fair share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from algorithms.admission.shares import ShareRounds, UsageHistory, requested_below, used_below
from algorithms.admission.victims import Need, below_common, from_root
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, TenantsView
from ddlsched.policies.views import JobView
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class Kai(Checked, who="kai"):
    """KAI's fair shares in a hierarchy of queues, its reclaiming and its preemption by priority.

    A queue's ``gpus`` are its quota, with ``borrowing_limit`` its limit, and ``weight`` that over the quota. So are a
    group's: they are not on top of its queues'.

    Parameters
    ----------
    preemptible_below
        Jobs of a lower priority may be preempted; others start within the quota only.
    usage_weight
        How much what a queue has used of late lowers its weight (KAI's k value); 0: not at all.
    usage_half_life_s
        By when half of it is forgotten, seconds.

    References
    ----------
    KAI Scheduler, pkg/scheduler/plugins/proportion, and docs/time-based-fairshare.
    """

    preemptible_below: int = 100
    usage_weight: float = ranged(0.0, 0.0, 1000.0)
    usage_half_life_s: float = ranged(86400.0, 0.0, above=True)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _KaiRun:
        """Return what is asked during a run."""
        return _KaiRun(self)


class _KaiRun(ShareRounds):
    name = "kai"

    def __init__(self, policy: Kai) -> None:
        super().__init__()
        self._policy = policy
        self._history = UsageHistory(policy.usage_half_life_s) if policy.usage_weight else None
        self._fixed: dict[str, int] = {}

    def set_shares(self, tenants: TenantsView, total: int) -> None:
        if self._history is not None:
            self._history.update(tenants)
        self.shares = {}
        self._fixed = {leaf.name: self._fixed_of(leaf, tenants) for leaf in tenants.quotas.leaves}
        self._divide(tenants.quotas.roots, float(total), total, tenants)

    def _fixed_of(self, leaf: QuotaNode, tenants: TenantsView) -> int:
        """Return how many GPUs the jobs of a queue have that nobody may preempt."""
        return sum(each.num_gpus for each in tenants.running(leaf.name) if not self._is_preemptible(each.job.priority))

    def _is_preemptible(self, priority: int) -> bool:
        return priority < self._policy.preemptible_below

    def _divide(self, queues: list[QuotaNode], amount: float, total: int, tenants: TenantsView) -> None:
        """Divide GPUs among queues: to each what it asks for of its quota, then by weight, in whole GPUs."""
        wanted = {node.name: float(min(requested_below(node, tenants), _limit(node))) for node in queues}
        given = {node.name: min(float(_quota(node)), wanted[node.name]) for node in queues}
        left = max(0.0, amount - sum(given.values()))
        rests: dict[str, float] = {}
        while left > 0 and (weights := self._weights(queues, given, wanted, total)):
            in_all, again, now = sum(weights.values()), False, left
            for name, weight in weights.items():
                fair, lacks = now * weight / in_all if in_all else 0.0, wanted[name] - given[name]
                more = lacks if lacks <= fair else math.floor(fair + 1e-9)
                rests[name] = fair - more if lacks > fair else 0.0
                given[name] += more
                left -= more
                again = again or lacks < fair
            if not again:
                break
        for name in sorted(rests, key=lambda name: -rests[name]):
            if rests[name] > 0 and left > 0:
                given[name] += min(1.0, left)
                left -= min(1.0, left)
        for node in queues:
            self.shares[node.name] = given[node.name]
            self._divide(node.children, given[node.name], total, tenants)

    def _weights(
        self, queues: list[QuotaNode], given: dict[str, float], wanted: dict[str, float], total: int
    ) -> dict[str, float]:
        """Return the weights of the queues that lack something, less what they have used of late."""
        hungry = [node for node in queues if given[node.name] < wanted[node.name] and node.queue.weight]
        in_all = sum(node.queue.weight for node in hungry)
        factor, weights = self._policy.usage_weight, {}
        for node in hungry:
            weight = node.queue.weight / in_all
            weights[node.name] = max(0.0, weight + factor * (weight - self._used_of_late(node) / max(total, 1)))
        return weights if sum(weights.values()) > 0 else {}

    def _used_of_late(self, node: QuotaNode) -> float:
        if self._history is None:
            return 0.0
        return sum(self._history.of_queue(leaf.name) for leaf in node.leaves())

    def rank(self, leaf: QuotaNode, more: int = 0) -> tuple[tuple[float, ...], ...]:
        """Return how much the groups above have, from the root down, and the queue, with so many GPUs more."""
        return tuple(self._standing(node, more) for node in from_root(leaf)[1:])

    def _standing(self, node: QuotaNode, more: int) -> tuple[float, ...]:
        used, share, quota = used_below(node), self.shares[node.name], _quota(node)
        most = max(share, quota)
        fullness = ((used + more) / most, used / most) if most else (float(used + more), float(used))
        return used > share, used + more > quota, not most, *fullness, most

    def allows(self, need: Need) -> bool:
        """Return whether those that nobody may preempt stay within the quotas, their own and those of groups."""
        if self._is_preemptible(need.job.priority):
            return True
        nodes = [node for node in from_root(need.node)[1:] if node.is_leaf or node.queue.quotas]
        fixed = (sum(self._fixed[leaf.name] for leaf in node.leaves()) for node in nodes)
        return all(used + need.gpus <= _quota(node) for used, node in zip(fixed, nodes, strict=True))

    def may_reclaim(self, need: Need) -> bool:
        return need.node.used[ANY_KIND] + need.gpus <= self.shares[need.node.name] and self.allows(need)

    def gives_way(self, holding: HeldQuota, leaf: QuotaNode, need: Need) -> bool:
        if not self._is_preemptible(holding.job.priority):
            return False
        mine, other = below_common(need.node, leaf)
        used, quota = used_below(other), _quota(other)
        after = used_below(mine) + need.gpus
        starves, share = after <= _quota(mine), self.shares[mine.name]
        if after > share and self.shares[other.name]:  # a group may not take more than its share from a poorer one
            theirs = (used - holding.num_gpus) / self.shares[other.name]
            if not share or after / share >= theirs:
                return False
        return used > max(self.shares[other.name], quota) or (starves and used > quota)

    def heads(self, queue: str, tenants: TenantsView) -> list[JobView]:
        """Return the first of each size, and the first that may be preempted, which may start beyond the quota."""
        firsts = tenants.pending.heads(queue)
        numbers = {job.number for job in firsts}
        rest = tenants.pending.heads(queue, self._policy.preemptible_below)
        return [*firsts, *(job for job in rest if job.number not in numbers)]

    def may_preempt(self, need: Need, holding: HeldQuota) -> bool:
        return need.job.priority > holding.job.priority and self._is_preemptible(holding.job.priority)


def _limit(node: QuotaNode) -> float:
    own = node.own(ANY_KIND)
    return math.inf if own.borrowing_limit is None else own.gpus + own.borrowing_limit


def _quota(node: QuotaNode) -> int:
    """Return a queue's quota; a group's is its own, or what its queues have if it has none."""
    return node.own(ANY_KIND).gpus if node.queue.quotas else node.quota.get(ANY_KIND, 0)
