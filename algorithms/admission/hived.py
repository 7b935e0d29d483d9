"""HiveD's guarantees: the cells that a queue owns are there for its jobs; opportunistic jobs give way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from algorithms.admission.victims import Need
from algorithms.placement.hived import BoundCell, Cells, CellsOfTenants, OwnedCells, tenants_of
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND
from ddlsched.errors import InputError
from ddlsched.policies.tenants_view import Admission, NotAdmitted, TenantsView, Victim
from ddlsched.policies.views import ClusterView, GpuId, JobView

_NO_CELL = "cells: those that its queue owns, and that hold it, are in use"
_NO_ROOM = "opportunistic: too few GPUs are free"
_BACK = "a cell that its GPUs are of went back to who owns it"
_LIMIT = "limit: jobs that may not stop for it use what its queue may borrow"


@dataclass(frozen=True, kw_only=True)
class HiveDGuarantees(CellsOfTenants):
    """HiveD: queues own cells, bound to GPUs while jobs of theirs are in them; GPUs of others go to who asks.

    A job of priority 0 or more that a cell of its queue holds is guaranteed. It goes to the queue's bound cell with the
    most GPUs in use that has room, else to the smallest that holds it, bound where the fewest GPUs have opportunistic
    jobs. These, all others, start on any free GPUs, and stop for guaranteed ones. Servers must be alike, and jobs have
    GPUs for themselves. It chooses GPUs itself.

    Parameters
    ----------
    cells
        What queues own, as of the placement ``hived``; by default as large ones as their quotas of GPUs hold.
    top_servers
        Servers of the largest cells, a power of two; 0 for as many as there are.

    References
    ----------
    Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020.
    """

    chooses_gpus: ClassVar[bool] = True

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Guarantees:
        """Return what remembers which cells are bound, and who is where."""
        return _Guarantees(self)


class _Guarantees:
    def __init__(self, policy: HiveDGuarantees) -> None:
        self._policy = policy
        self._divided: OwnedCells | None = None
        self._lent: dict[int, tuple[GpuId, ...]] = {}
        """Where opportunistic jobs are."""

    def admit(self, tenants: TenantsView, cluster: ClusterView) -> Iterator[Admission | NotAdmitted]:
        """Yield who may start: guaranteed jobs first, each sort by priority and age."""
        owned, refused = self._divided or self._divide(tenants, cluster), set[int]()
        self._forget(tenants, owned)
        while (job := self._next(tenants, refused, owned)) is not None:
            need = Need(job, tenants.quotas[str(job.queue)], ANY_KIND)
            if self._is_guaranteed(job, owned):
                yield self._guaranteed(need, owned, tenants, cluster)
            else:
                yield self._opportunistic(need, owned, cluster)
            if tenants.holding(job.number) is None:
                refused.add(job.number)
                self._forget(tenants, owned)

    def _divide(self, tenants: TenantsView, cluster: ClusterView) -> OwnedCells:
        """Return the cells of the cluster, of which queues own as many as is told, or quotas hold."""
        if not cluster.exclusive:
            raise InputError("hived: jobs share GPUs; expected an exclusive cluster")
        counts = [len(cluster.gpus_of(server)) for server in range(cluster.num_servers)]
        cells = Cells(counts, self._policy.top_servers)
        owned = tenants_of(self._policy.cells)
        if not owned:
            for leaf in tenants.quotas.leaves:
                owned[leaf.name], left = {}, leaf.own(ANY_KIND).gpus
                for size in reversed(cells.sizes):
                    owned[leaf.name][size], left = divmod(left, size)
        self._divided = OwnedCells(cells, owned, cluster.num_gpus)
        return self._divided

    def _is_guaranteed(self, job: JobView, owned: OwnedCells) -> bool:
        return job.priority >= 0 and owned.has_one_for(job.queue, job.num_gpus)

    def _next(self, tenants: TenantsView, refused: set[int], owned: OwnedCells) -> JobView | None:
        pending, names = tenants.pending, [leaf.name for leaf in tenants.quotas.leaves]
        heads = (job for name in names for job in (*pending.heads(name), *pending.heads(name, 0)))
        waiting = (job for job in heads if job.number not in refused)
        key = lambda job: (not self._is_guaranteed(job, owned), -job.priority, job.arrival_ns, job.number)  # noqa: E731
        return min(waiting, key=key, default=None)

    def _forget(self, tenants: TenantsView, owned: OwnedCells) -> None:
        """Forget jobs that have left, and give back the cells in which nobody is."""
        self._lent = {number: gpus for number, gpus in self._lent.items() if tenants.holding(number) is not None}
        for cell in list(owned.bound):
            cell.used = {number: gpus for number, gpus in cell.used.items() if tenants.holding(number) is not None}
            if not cell.used:
                owned.release(cell)

    def _guaranteed(
        self, need: Need, owned: OwnedCells, tenants: TenantsView, cluster: ClusterView
    ) -> Admission | NotAdmitted:
        """Give a job GPUs of a cell of its queue, from opportunistic jobs if need be."""
        free = set(cluster.eligible(need.job).tolist())
        on = {gpu: number for number, gpus in self._lent.items() for gpu in gpus if self._may_go(number, tenants)}
        mine = [cell for cell in owned.bound if cell.tenant == need.node.name]
        for cell in sorted(mine, key=lambda cell: -cell.num_used):
            if (gpus := _room(cell, need.gpus, free, on)) is not None:
                break
        else:
            bound = owned.bind(need.node.name, need.gpus, lambda cell: sum(gpu in on for gpu in cell))
            if bound is None or (gpus := _room(bound, need.gpus, free, on)) is None:
                return NotAdmitted(need.job, _NO_CELL)
            cell = bound
        numbers = dict.fromkeys(on[gpu] for gpu in gpus if gpu in on)
        victims = [holding.job for number in numbers if (holding := tenants.holding(number)) is not None]
        if not self._keeps_limits(need, victims, tenants):
            return NotAdmitted(need.job, _LIMIT)
        cell.used[need.job.number] = tuple(gpus)
        return Admission(need.job, ANY_KIND, tuple(Victim(job, _BACK) for job in victims), tuple(gpus))

    def _keeps_limits(self, need: Need, victims: list[JobView], tenants: TenantsView) -> bool:
        """Return whether the queue and its groups borrow no more than they may, once more opportunistic jobs stop.

        Those are put to the victims: jobs of who borrows too much, or of all if the tree uses more than it has.
        """
        quotas, kind, nodes = tenants.quotas, need.kind, (need.node, *need.node.above())
        lent = [tenants.holdings[number] for number in self._lent if self._may_go(number, tenants)]
        for job in victims:
            quotas[str(job.queue)].remove(kind, job.num_gpus)
        need.node.add(kind, need.gpus)
        for holding in sorted(lent, key=lambda each: (each.priority, -each.since_ns)):
            over = {node for node in nodes if node.above_limit(kind) or (node.parent is None and node.lacks(kind))}
            leaf = quotas[holding.queue]
            if holding.job not in victims and over.intersection((leaf, *leaf.above())):
                leaf.remove(kind, holding.num_gpus)
                victims.append(holding.job)
        keeps = not any(node.above_limit(kind) for node in nodes)
        need.node.remove(kind, need.gpus)
        for job in victims:
            quotas[str(job.queue)].add(kind, job.num_gpus)
        return keeps

    def _may_go(self, number: int, tenants: TenantsView) -> bool:
        """Return whether a job ran when the round began."""
        holding = tenants.holding(number)
        return holding is not None and holding.since_ns < tenants.now_ns

    def _opportunistic(self, need: Need, owned: OwnedCells, cluster: ClusterView) -> Admission | NotAdmitted:
        """Give a job free GPUs, those of no bound cell first."""
        in_cells = {gpu for cell in owned.bound for gpu in cell.gpus}
        gpus = sorted(cluster.eligible(need.job).tolist(), key=lambda gpu: (gpu in in_cells, gpu))[: need.gpus]
        if len(gpus) < need.gpus or not need.fits():
            return NotAdmitted(need.job, _NO_ROOM)
        self._lent[need.job.number] = tuple(gpus)
        return Admission(need.job, ANY_KIND, (), tuple(gpus))


def _room(cell: BoundCell, count: int, free: set[GpuId], on: dict[GpuId, int]) -> list[GpuId] | None:
    """Return GPUs of a cell for a job, first those on which there is nobody; None if there are too few."""
    gpus = [gpu for gpu in cell.gpus if gpu in free or gpu in on]
    gpus.sort(key=lambda gpu: (gpu not in free, gpu))
    return gpus[:count] if len(gpus) >= count else None
