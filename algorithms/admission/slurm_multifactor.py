"""Slurm's multifactor priority, limits and preemption by QOS, with a placement's backfilling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithms.admission.shares import UsageHistory
from algorithms.admission.victims import Need
from algorithms.placement.slurm_backfill import Place
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND
from ddlsched.errors import InputError
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy
from ddlsched.policies.tenants_view import Admission, HeldQuota, NotAdmitted, TenantsView, Victim
from ddlsched.policies.views import ClusterView, JobQueue, JobView
from ddlsched.ranges import check_fields, ranged

_LIMIT = "limit: the account's group may use no more"
_BEHIND = "backfilling: jobs of higher priority go first"
_QOS = "its QOS may be preempted"
_REQUEUED = "it gave way not long ago"
_MOST_TRIES = 3
"""How often Slurm orders candidates for preemption (preempt_reorder_count of 1, and what it does beside)."""


@dataclass(frozen=True, kw_only=True)
class SlurmMultifactor:
    """Jobs of all queues (accounts) in the order of a weighted sum of age, fair share, size and QOS.

    A queue's ``weight`` is its share of the cluster, its ``borrowing_limit`` beyond ``gpus`` its limit of GPUs
    (GrpTRES), and a job's ``priority`` that of its QOS: within ``preemption``'s ``within_queue`` and ``reclaim`` it
    preempts lower ones, and jobs of queues with one of these go first, by QOS. Of the placements
    that plan ahead only ``slurm-backfill`` preempts.

    Parameters
    ----------
    age_weight, fair_share_weight, size_weight, qos_weight
        What each factor, from 0 to 1, counts.
    highest_qos
        The priority of a QOS that counts as 1; 0: the highest of the jobs that wait.
    max_age_s
        Age that counts as 1, seconds.
    half_life_s
        In which past usage counts half, seconds.
    calc_period_s
        How often priorities are reckoned, seconds (PriorityCalcPeriod): by ages of then, and by usage of one period
        before, as Slurm does without its fair tree.
    requeue_s
        How long a job that gave way waits at least, seconds; its age counts from then.
    backfill
        The placement that plans ahead, such as ``easy-backfill``, and is asked in place of the run's, which then
        changes nothing; empty: the run's is asked, and nobody starts before a job of higher priority that waits.

    References
    ----------
    Slurm, priority_multifactor and preempt; the fair-share factor is 2^(-usage / shares), both as parts of those of all
    accounts (PriorityFlags=NO_FAIR_TREE). Victims are those of select/cons_tres. benchmarks/slurm_decisions.py compares
    with a real Slurm.
    """

    age_weight: float = ranged(1000.0, 0.0)
    fair_share_weight: float = ranged(10000.0, 0.0)
    size_weight: float = ranged(0.0, 0.0)
    qos_weight: float = ranged(2000.0, 0.0)
    highest_qos: int = 0
    max_age_s: float = ranged(604800.0, 0.0, above=True)
    half_life_s: float = ranged(604800.0, 0.0, above=True)
    calc_period_s: float = ranged(300.0, 0.0, above=True)
    requeue_s: float = ranged(121.0, 0.0)
    backfill: PlacementPolicy | str = ""

    def __post_init__(self) -> None:
        check_fields(self, "slurm-multifactor")
        if self.backfill and not hasattr(self._planner, "begin"):
            raise InputError(f"slurm-multifactor: backfill is {self.backfill!r}; expected one that plans ahead")

    @property
    def chooses_gpus(self) -> bool:
        """Whether ``backfill`` is asked, not the run's placement."""
        return bool(self.backfill)

    @property
    def _planner(self) -> Any:
        return resolve("placement", self.backfill)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _SlurmRun:
        """Return what remembers usage, and plans ahead."""
        return _SlurmRun(self, self._planner.begin(cluster, rng) if self.backfill else None)


class _SlurmRun:
    def __init__(self, policy: SlurmMultifactor, planner: Any) -> None:
        self._policy, self._planner = policy, planner
        self._history = UsageHistory(policy.half_life_s)
        self._used, self._counted, self._reckoned_s = dict[str, float](), dict[str, float](), 0.0
        self._ran: list[HeldQuota] = []
        """Who ran from when it was last asked to now."""
        self._begins_s: dict[int, float] = {}
        """When jobs that gave way may start again, by number."""

    def admit(self, tenants: TenantsView, cluster: ClusterView) -> Iterator[Admission | NotAdmitted]:
        """Yield who may start, in the order of priorities."""
        period_s, pending = self._policy.calc_period_s, tenants.pending
        self._begins_s = {number: begin_s for number, begin_s in self._begins_s.items() if number in pending}
        for _ in range(min(int(tenants.now_s // period_s - self._reckoned_s // period_s), 2)):
            self.reckon(tenants, self._ran)
        yield from self._admitted(self.in_order(tenants, cluster), tenants, cluster)
        self._ran = [*tenants.holdings.values()]

    def wake_s(self, now_s: float) -> float | None:
        """Return when the next job that gave way may start again."""
        return min((begin_s for begin_s in self._begins_s.values() if begin_s > now_s), default=None)

    def _admitted(
        self, waiting: list[JobView], tenants: TenantsView, cluster: ClusterView
    ) -> Iterator[Admission | NotAdmitted]:
        for job in waiting:
            if self.begins_s(job) > tenants.now_s:
                yield NotAdmitted(job, _REQUEUED)
        waiting = [job for job in waiting if self.begins_s(job) <= tenants.now_s]
        if self._planner is not None:
            yield from self._backfilled(waiting, tenants, cluster)
            return
        for job in waiting:
            need = Need(job, tenants.quotas[str(job.queue)], ANY_KIND)
            if not need.fits():
                yield NotAdmitted(job, _LIMIT)
                continue
            victims = self._victims(need, tenants, cluster) if tenants.place(job) is None else []
            yield Admission(job, ANY_KIND, tuple(victims))
            if tenants.holding(job.number) is None:
                return
            self.requeued([victim.job for victim in victims], tenants.now_s)

    def reservations_ns(self) -> Mapping[int, int]:
        """Return when the planner expects jobs to start, by number, if it says, nanoseconds."""
        return self._planner.reservations_ns() if hasattr(self._planner, "reservations_ns") else {}

    def requeued(self, jobs: Iterable[JobView], now_s: float) -> None:
        """Note that jobs have given way."""
        self._begins_s |= {job.number: now_s + self._policy.requeue_s for job in jobs}

    def reckon(self, tenants: TenantsView, running: Iterable[HeldQuota]) -> None:
        """Let priorities follow from ages of now, and from what had been used when they were reckoned before.

        Only who runs when that is counted counts, from when it was last; what ended in between does not, as in Slurm.
        """
        self._history.update(tenants, running)
        used = {leaf.name: self._history.of_queue(leaf.name) for leaf in tenants.quotas.leaves}
        self._used, self._counted, self._reckoned_s = self._counted, used, tenants.now_s

    def begins_s(self, job: JobView) -> float:
        """Return from when a job waits, or is to wait again, seconds."""
        return self._begins_s.get(job.number, job.arrival_s)

    def in_order(self, tenants: TenantsView, cluster: ClusterView) -> list[JobView]:
        """Return the jobs that wait, those that may preempt first, then those of the highest priority."""
        priorities = self.priorities(tenants, cluster)
        rules = {leaf.name: leaf.queue.preemption for leaf in tenants.quotas.leaves}
        may = {name for name, rule in rules.items() if {rule.within_queue, rule.reclaim} != {"never"}}

        def key(job: JobView) -> tuple[float, ...]:
            return -job.priority if job.queue in may else 0, -priorities[job], job.arrival_ns, job.number

        return sorted(priorities, key=key)

    def priorities(self, tenants: TenantsView, cluster: ClusterView) -> dict[JobView, float]:
        """Return the priorities of the jobs that wait."""
        jobs = [job for leaf in tenants.quotas.leaves for job in tenants.pending.jobs(leaf.name)]
        most = self._policy.highest_qos or max((job.priority for job in jobs), default=0) or 1
        policy, shares = self._policy, self._fair_shares(tenants)

        def priority(job: JobView) -> float:
            age = min(max(self._reckoned_s - self.begins_s(job), 0.0) / policy.max_age_s, 1.0)
            size, qos = job.num_gpus / cluster.num_gpus, max(job.priority, 0) / most
            fair = policy.fair_share_weight * shares[str(job.queue)]
            return policy.age_weight * age + fair + policy.size_weight * size + policy.qos_weight * qos

        return {job: priority(job) for job in jobs}

    def _fair_shares(self, tenants: TenantsView) -> dict[str, float]:
        """Return the fair-share factor of each account: 1 for no usage, 0.5 for as large a part of all as its share."""
        leaves = tenants.quotas.leaves
        weights = sum(leaf.queue.weight for leaf in leaves) or 1.0
        in_all = sum(self._used.values()) or 1.0
        return {
            leaf.name: 2.0 ** -(self._used.get(leaf.name, 0.0) / in_all * weights / leaf.queue.weight)
            if leaf.queue.weight
            else 0.0
            for leaf in leaves
        }

    def _victims(
        self, need: Need, tenants: TenantsView, cluster: ClusterView, place: Place | None = None
    ) -> list[Victim]:
        """Return the running jobs of lower QOS that are on the servers where the job would go without some of them.

        These leave one after the other, the lowest and smallest first, until the placement has a place. That is done up
        to three times: then who made room goes first, and of those before it who are on more of the servers.
        """
        rules, job = need.node.queue.preemption, need.job
        others = [leaf.name for leaf in tenants.quotas.leaves if leaf is not need.node]
        running = [*need.candidates(tenants, need.node.name, rules.within_queue)]
        running += [each for name in others for each in need.candidates(tenants, name, rules.reclaim)]
        order = [each.job for each in sorted(running, key=lambda each: (each.priority, each.num_gpus, each.came[1]))]
        for tries in range(1, _MOST_TRIES + 1):
            places = ((place or tenants.place)(job, order[:count]) for count in range(1, len(order) + 1))
            if (found := next(((n, gpus) for n, gpus in enumerate(places, 1) if gpus is not None), None)) is None:
                break
            gone, servers = order[: found[0]], {cluster.server_of(gpu) for gpu in found[1]}
            meets = {each.number: len(servers.intersection(each.servers)) for each in gone}
            if tries == _MOST_TRIES or len(order) <= tries:
                return [Victim(each, _QOS) for each in gone if meets[each.number]]
            meets[gone[-1].number] = len(servers) + 1
            order.sort(key=lambda each: -meets.get(each.number, 0))
        return []

    def _backfilled(
        self, waiting: list[JobView], tenants: TenantsView, cluster: ClusterView
    ) -> Iterator[Admission | NotAdmitted]:
        """Yield those that the planner starts, of those whose limits allow it."""
        may = []
        for job in waiting:
            need = Need(job, tenants.quotas[str(job.queue)], ANY_KIND)
            if need.fits():
                may.append(job)
            else:
                yield NotAdmitted(job, _LIMIT)

        def victims(job: JobView, place: Place) -> list[JobView]:
            need = Need(job, tenants.quotas[str(job.queue)], ANY_KIND)
            found = self._victims(need, tenants, cluster, place) if need.fits() else ()
            return [victim.job for victim in found]

        while may:
            beyond = None
            for job, gpus, gone in self._starts(may, cluster, victims):
                if not Need(job, tenants.quotas[str(job.queue)], ANY_KIND).fits():
                    beyond = job  # by those that have started: the others are planned again without it
                    break
                yield Admission(job, ANY_KIND, tuple(Victim(each, _QOS) for each in gone), tuple(gpus))
                self.requeued(gone, tenants.now_s)
            may = [job for job in may if tenants.holding(job.number) is None]
            if beyond is None:
                break
            yield NotAdmitted(beyond, _LIMIT)
            may.remove(beyond)
        for job in may:
            yield NotAdmitted(job, _BEHIND)

    def _starts(self, jobs: list[JobView], cluster: ClusterView, victims: Any) -> Iterator[Any]:
        """Yield whom the planner starts, where, and who gives way, if it lets others do so."""
        queue = JobQueue(np.array([job.number for job in jobs], np.int64), {job.number: job for job in jobs})
        if hasattr(self._planner, "start_round"):
            yield from self._planner.start_round(queue, cluster, victims)
        else:
            yield from ((job, gpus, ()) for job, gpus in self._planner.place_round(queue, cluster))
