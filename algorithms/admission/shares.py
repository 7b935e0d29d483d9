"""What queues and their users have used of late, and rounds of policies that give each queue a share of the cluster.

In a round, queues above their shares give way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from algorithms.admission.victims import WITHIN, Need, borrowers_of, lacking_of, without_needless
from ddlsched.cluster.tenants import ANY_KIND
from ddlsched.errors import InputError
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import Admission, HeldQuota, NotAdmitted, TenantsView, Victim
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.units import NS_PER_S

_PENALTY_S = 300.0
"""What counts at once of a job that starts, as if it had run for so long: what Kueue samples by default."""


class UsageHistory:
    """GPUs that each user of each queue used, what was earlier counting less, by half every half-life."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._used: dict[tuple[str, str | None], float] = defaultdict(float)
        self._now_ns = 0

    def update(self, tenants: TenantsView, running: Iterable[HeldQuota] | None = None) -> None:
        """Count what was used since it was last called, by who ran then and who runs now; or by others if told."""
        now_ns = tenants.now_ns
        kept = self._kept(now_ns - self._now_ns)
        for key in self._used:
            self._used[key] *= kept
        left = tenants.left if running is None else ()
        staying = ((holding, now_ns) for holding in (tenants.holdings.values() if running is None else running))
        for holding, until_ns in chain(staying, left):
            since_ns = max(self._now_ns, holding.since_ns)
            if until_ns > since_ns:
                part = self._kept(now_ns - until_ns) - self._kept(now_ns - since_ns)
                self._used[holding.queue, holding.job.user] += part * holding.num_gpus
        self._now_ns = now_ns

    def _kept(self, ago_ns: int) -> float:
        """Return how much counts now of what was so long ago."""
        return float(0.5 ** (ago_ns / NS_PER_S / self._half_life_s))

    def admitted(self, queue: str, job: JobView) -> None:
        """Count a job that starts at once, so that a user does not start many before they count."""
        self._used[queue, job.user] += (1 - 0.5 ** (_PENALTY_S / self._half_life_s)) * job.num_gpus

    def used(self, queue: str, user: str | None) -> float:
        """Return what a user of a queue has used of late, GPUs."""
        return self._used[queue, user]

    def of_queue(self, queue: str) -> float:
        """Return what all users of a queue have used of late, GPUs."""
        return sum(used for (name, _), used in self._used.items() if name == queue)


_SHARE = "its queue has more than its share"


def used_below(node: QuotaNode) -> int:
    """Return how many GPUs the jobs of a queue, or of those below it, use."""
    return sum(leaf.used[ANY_KIND] for leaf in node.leaves())


def requested_below(node: QuotaNode, tenants: TenantsView) -> int:
    """Return how many GPUs the jobs of the queues below use or wait for."""
    waiting = sum(job.num_gpus for leaf in node.leaves() for job in tenants.pending.jobs(leaf.name))
    return used_below(node) + waiting


class ShareRounds:
    """During a run: which queue is next, by its share; who may start; who gives way.

    The queue above all others lends what the cluster has, whatever the quotas sum up to. A policy says by its methods
    what shares are, and what they allow.
    """

    name = ""

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        """How many GPUs each queue is to have now."""

    def set_shares(self, tenants: TenantsView, total: int) -> None:
        """Reckon :attr:`shares` of so many GPUs."""
        raise NotImplementedError

    def rank(self, leaf: QuotaNode, more: int = 0) -> Any:
        """Return what queues are sorted by, smallest first: with so many GPUs more, those of their first jobs."""
        raise NotImplementedError

    def allows(self, need: Need) -> bool:
        """Return whether a queue may have a job's GPUs, if there is room."""
        raise NotImplementedError

    def may_reclaim(self, need: Need) -> bool:
        """Return whether others may give way to a job."""
        raise NotImplementedError

    def gives_way(self, holding: HeldQuota, leaf: QuotaNode, need: Need) -> bool:
        """Return whether a job of another queue may give way, as things are after those before it."""
        raise NotImplementedError

    def heads(self, queue: str, tenants: TenantsView) -> list[JobView]:
        """Return the jobs of a queue of which one starts next, if any does."""
        return tenants.pending.heads(queue)

    def may_preempt(self, need: Need, holding: HeldQuota) -> bool:
        """Return whether a job of the same queue gives way to one of higher priority."""
        return need.job.priority > holding.job.priority

    def admit(self, tenants: TenantsView, cluster: ClusterView) -> Iterator[Admission | NotAdmitted]:
        """Yield who may start, queue by queue."""
        total = sum(cluster.is_up(gpu) for gpu in range(cluster.num_gpus))
        self._refuse_others(tenants)
        root = tenants.quotas.roots[0]
        root.quota[ANY_KIND] = total
        self.set_shares(tenants, total)
        refused: dict[str, set[int]] = defaultdict(set)
        while (need := self._next(tenants, refused)) is not None:
            victims = [] if self.allows(need) and need.fits() else self._victims(need, tenants)
            if victims or (self.allows(need) and need.fits()):
                yield Admission(need.job, ANY_KIND, tuple(victims))
            else:
                yield NotAdmitted(need.job, self._why(need, tenants))
            if tenants.holding(need.job.number) is None:
                refused[need.node.name].add(need.job.number)

    def _refuse_others(self, tenants: TenantsView) -> None:
        if len(tenants.quotas.roots) > 1 or set(tenants.quotas.kinds) - {ANY_KIND}:
            raise InputError(f"{self.name} divides the GPUs of all kinds; expected quotas of 'any', and one root queue")

    def _why(self, need: Need, tenants: TenantsView) -> str:
        if not self.allows(need):
            return f"share: {need.node.name} has its share"
        return borrowers_of(need, lacking_of(tenants.quotas.leaves, ANY_KIND))

    def _next(self, tenants: TenantsView, refused: dict[str, set[int]]) -> Need | None:
        """Return the first job, not yet refused, of the queue whose turn it is."""
        firsts = [(self._first(leaf, tenants, refused[leaf.name]), leaf) for leaf in tenants.quotas.leaves]
        needs = [Need(job, leaf, ANY_KIND) for job, leaf in firsts if job is not None]
        return min(needs, key=lambda need: self.rank(need.node, need.gpus), default=None)

    def _first(self, leaf: QuotaNode, tenants: TenantsView, refused: set[int]) -> JobView | None:
        heads = self.heads(leaf.name, tenants)
        if leaf.queue.order == "strict":
            heads = heads[:1]
        return next((job for job in heads if job.number not in refused), None)

    def _victims(self, need: Need, tenants: TenantsView) -> list[Victim]:
        """Return who gives way: of other queues if the job's queue may reclaim, else of its own."""
        found: list[Victim] = []
        if self.may_reclaim(need):
            found = self._enough(need, tenants, self._of_others(need, tenants), _SHARE)
        if not found:
            own = [each for each in _started_before(need.node.name, tenants) if self.may_preempt(need, each)]
            found = self._enough(need, tenants, own, WITHIN)
        return found

    def _of_others(self, need: Need, tenants: TenantsView) -> list[HeldQuota]:
        others = [leaf for leaf in tenants.quotas.leaves if leaf is not need.node]
        return [holding for leaf in others for holding in _started_before(leaf.name, tenants)]

    def _enough(self, need: Need, tenants: TenantsView, candidates: list[HeldQuota], why: str) -> list[Victim]:
        """Return the first candidates without whom the job may start; none if it may not even so."""
        quotas, victims, found = tenants.quotas, list[Victim](), False

        def fits() -> bool:
            return need.fits() and self.allows(need)

        def take(victim: Victim) -> None:
            quotas[str(victim.job.queue)].remove(ANY_KIND, victim.job.num_gpus)

        def let_stay(victim: Victim) -> None:
            quotas[str(victim.job.queue)].add(ANY_KIND, victim.job.num_gpus)

        for holding in self._in_turn(candidates, tenants):
            leaf = quotas[holding.queue]
            if leaf is need.node or self.gives_way(holding, leaf, need):
                victims.append(Victim(holding.job, why))
                take(victims[-1])
                if found := fits():
                    break
        return without_needless(victims, let_stay, take, fits, found=found)

    def _in_turn(self, candidates: list[HeldQuota], tenants: TenantsView) -> Iterator[HeldQuota]:
        """Yield who gives way first: of the queue that is last in rank then, of low priority, started last.

        Of queues of equal rank the one goes first whose next one does.
        """
        waiting: dict[str, list[HeldQuota]] = defaultdict(list)
        for holding in sorted(candidates, key=_first_last):
            waiting[holding.queue].append(holding)
        while waiting:
            queue = max(waiting, key=lambda name: (self.rank(tenants.quotas[name]), _first_last(waiting[name][-1])))
            yield waiting[queue].pop()
            if not waiting[queue]:
                del waiting[queue]


def _first_last(holding: HeldQuota) -> tuple[int, int, int]:
    return -holding.priority, holding.since_ns, holding.job.number


def _started_before(queue: str, tenants: TenantsView) -> list[HeldQuota]:
    """Return the running jobs of a queue that ran when the round began."""
    return [holding for holding in tenants.running(queue) if holding.since_ns < tenants.now_ns]
