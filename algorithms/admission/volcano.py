"""Volcano: queues share a cluster in proportion, or have what they deserve; gangs start whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from algorithms.admission.shares import ShareRounds, requested_below
from algorithms.admission.victims import Need
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, TenantsView
from ddlsched.ranges import Checked


@dataclass(frozen=True, kw_only=True)
class Volcano(Checked, who="volcano"):
    """Volcano's allocate, reclaim and preempt, with one plug-in for the queues; each job is a gang.

    A queue's ``gpus`` is what it deserves, with ``borrowing_limit`` its capability, and what it does not lend its
    guarantee.

    Parameters
    ----------
    plugin
        ``proportion``: what queues deserve follows from their weights and what they ask for, and they get no more.
        ``capacity``: what they deserve is said, and they may have more while others leave it. ``drf``: the queue whose
        share / weight is least goes first, and takes from one whose stays no smaller.

    References
    ----------
    Volcano, pkg/scheduler/plugins: proportion, capacity, drf, gang.
    """

    plugin: Literal["proportion", "capacity", "drf"] = "proportion"

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> VolcanoRun:
        """Return what is asked during a run."""
        return VolcanoRun(self.plugin)


class VolcanoRun(ShareRounds):
    """What one plugin of Volcano answers during a run; of its rounds see :class:`ShareRounds`."""

    name = "volcano"

    def __init__(self, plugin: str) -> None:
        super().__init__()
        self._plugin = plugin

    def set_shares(self, tenants: TenantsView, total: int) -> None:
        """Set what each leaf deserves, in GPUs (`drf` and none: its weight)."""
        leaves = tenants.quotas.leaves
        if self._plugin == "capacity":
            self.shares = {leaf.name: float(leaf.quota.get(ANY_KIND, 0)) for leaf in leaves}
        elif self._plugin == "proportion":
            self.shares = _in_proportion(leaves, tenants, total)
        else:
            self.shares = {leaf.name: leaf.queue.weight for leaf in leaves}

    def rank(self, leaf: QuotaNode, more: int = 0) -> tuple[float, float]:
        """Return a leaf's place, least first: what it uses of what it deserves."""
        deserved, used = self.shares[leaf.name], leaf.used[ANY_KIND]
        return used / deserved if deserved else float(used > 0), -deserved

    def allows(self, need: Need) -> bool:
        """Return whether a job may start; only `proportion` bounds what a leaf uses."""
        return self._plugin != "proportion" or self._has_share_for(need)

    def may_reclaim(self, need: Need) -> bool:
        """Return whether a leaf may take back GPUs; `drf` always may."""
        return self._plugin == "drf" or self._has_share_for(need)

    def _has_share_for(self, need: Need) -> bool:
        return need.node.used[ANY_KIND] + need.gpus <= self.shares[need.node.name] + 1e-9

    def gives_way(self, holding: HeldQuota, leaf: QuotaNode, need: Need) -> bool:
        """Return whether a held job may be stopped for another leaf's need."""
        used = leaf.used[ANY_KIND]
        if self._plugin != "drf":
            return used > self.shares[leaf.name]
        mine = (need.node.used[ANY_KIND] + need.gpus) / (need.node.queue.weight or 1e-9)
        return mine <= (used - holding.num_gpus) / (leaf.queue.weight or 1e-9)


def _in_proportion(leaves: list[QuotaNode], tenants: TenantsView, total: int) -> dict[str, float]:
    """Divide GPUs by weight: no queue more than it asks for or may have, and none less than it is guaranteed."""
    guaranteed = {leaf.name: leaf.kept.get(ANY_KIND, 0) for leaf in leaves}
    most = {leaf.name: _capability(leaf, total - sum(guaranteed.values())) for leaf in leaves}
    wanted = {leaf.name: min(requested_below(leaf, tenants), most[leaf.name]) for leaf in leaves}
    deserved = {leaf.name: 0.0 for leaf in leaves}
    left, hungry = float(total), [leaf for leaf in leaves if wanted[leaf.name] or guaranteed[leaf.name]]
    while left > 1e-9 and (weights := sum(leaf.queue.weight for leaf in hungry)) > 0:
        before = left
        for leaf in hungry:
            had = deserved[leaf.name]
            grown = min(had + before * leaf.queue.weight / weights, wanted[leaf.name])
            deserved[leaf.name] = max(grown, guaranteed[leaf.name])
            left -= deserved[leaf.name] - had
        hungry = [leaf for leaf in hungry if deserved[leaf.name] < wanted[leaf.name] - 1e-9]
        if before - left < 1e-9:
            break
    return deserved


def _capability(leaf: QuotaNode, unguaranteed: int) -> float:
    own = leaf.own(ANY_KIND)
    most = unguaranteed + leaf.kept.get(ANY_KIND, 0)
    return most if own.borrowing_limit is None else min(most, own.gpus + own.borrowing_limit)
