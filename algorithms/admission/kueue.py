"""Kueue: quotas that queues lend to each other, and preemption by rules or by fair shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

import numpy as np

from algorithms.admission.hopeful_jobs import HopefulJobs
from algorithms.admission.kueue_classic import ClassicSearch
from algorithms.admission.kueue_fair import FairRules, fair_victims
from algorithms.admission.usage_history import UsageHistory
from algorithms.admission.victims import WITHIN, Need, QuotaArrays, borrowers_of, lacking_of, names_of
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND
from ddlsched.errors import InputError
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import Admission, NotAdmitted, TenantsView, Victim
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.ranges import check_fields, ranged

__all__ = ["Kueue"]

_STRATEGIES = ("both", "final-share", "initial-share")
_NEVER = "quota: more than the queue may ever use"
_NOBODY = ": nobody may be preempted for it"


@dataclass(frozen=True, kw_only=True)
class Kueue:
    """Kueue's admission in cycles: the first job of each queue, those within quota first, then by priority and age.

    A kind of GPU that has room is taken before one where others must give way.

    Parameters
    ----------
    fair_sharing
        Queues with small shares of what is borrowed go first, and preempt those with large ones.
    strategies
        Of fair sharing: ``final-share`` preempts while the other's share stays at least as large as the own becomes,
        ``initial-share`` while it was larger; ``both`` tries them in this order.
    preempt_below_priority
        With fair sharing, ``borrow`` of a queue's preemption rules holds whatever the shares are, as until Kueue 0.9;
        victims may then come back before the job for which they went.
    usage_half_life_s
        Within a queue, users that have used less go first (admission fair sharing); the half-life of what counts of the
        past, seconds. 0: no such order.

    References
    ----------
    https://kueue.sigs.k8s.io/docs/concepts/preemption, fair_sharing, admission_fair_sharing, of version 0.17.
    """

    fair_sharing: bool = False
    strategies: str = "both"
    preempt_below_priority: bool = False
    usage_half_life_s: float = ranged(0.0, 0.0)

    def __post_init__(self) -> None:
        check_fields(self, "kueue")
        if self.strategies not in _STRATEGIES:
            raise InputError(f"kueue: strategies is {self.strategies!r}; expected one of {', '.join(_STRATEGIES)}")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> KueueRun:
        """Return what remembers what was refused, and who used how much."""
        return KueueRun(self)


# How a job may start on GPUs of a kind; a higher one is better. (As plain numbers, which are read much faster.)
_NO_FIT = 0
_NO_VICTIMS = 1  # others would have to give way, and none may be made to
_PREEMPT = 2
_RECLAIM = 3  # nobody of its own queue gives way
_FIT = 4


@dataclass
class _Entry:
    """The first job of a queue, and how it may start."""

    need: Need
    mode: int
    borrowing: int
    """How high the smallest group is that has what the job needs, once the victims are gone; 0 for the own quota."""
    victims: list[Victim] = field(default_factory=list)
    reason: str = ""

    @property
    def may_start(self) -> bool:
        return self.mode >= _PREEMPT


class _Turn:
    """The jobs of a queue in the order of their turns, and who has been refused; nobody is refused no more."""

    __slots__ = ("_next", "jobs", "refused")

    def __init__(self, jobs: list[JobView], refused: set[int]) -> None:
        self.jobs, self.refused, self._next = jobs, refused, 0

    def first(self) -> JobView | None:
        """Return the first that has not been refused."""
        while self._next < len(self.jobs) and self.jobs[self._next].number in self.refused:
            self._next += 1
        return self.jobs[self._next] if self._next < len(self.jobs) else None

    def next(self, count: int) -> list[JobView]:
        """Return the first so many that have not been refused."""
        return [*islice((job for job in self.jobs if job.number not in self.refused), count)]


@cache
def _height(group: QuotaNode) -> int:
    """Return how many groups lie on the longest way down to a queue, with this one."""
    return 1 + max((_height(child) for child in group.children if not child.is_leaf), default=0)


def _group_that_fits(need: Need) -> tuple[int, bool]:
    """Return how high the smallest group is that has what a job needs, and whether others lie above it."""
    node = need.node
    if not node.lacks(need.kind, need.gpus) or node.parent is None:
        return 0, node.parent is not None
    rest, group = need.gpus - node.free_here(need.kind), node
    for group in node.above():
        if not group.lacks(need.kind, rest):
            return _height(group), group.parent is not None
        rest -= group.free_here(need.kind)
    return _height(group), False


@contextmanager
def _gone(victims: list[Victim], kind: str, tenants: TenantsView) -> Iterator[None]:
    """Count victims' GPUs no more, for a while."""
    leaves = [(tenants.quotas[str(victim.job.queue)], victim.job.num_gpus) for victim in victims]
    for leaf, gpus in leaves:
        leaf.remove(kind, gpus)
    yield
    for leaf, gpus in leaves:
        leaf.add(kind, gpus)


class KueueRun:
    """Kueue during a run."""

    def __init__(self, policy: Kueue) -> None:
        both = policy.strategies == "both"
        self._fair = FairRules(
            both or policy.strategies == "final-share",
            both or policy.strategies == "initial-share",
            policy.preempt_below_priority,
        )
        self._sharing = policy.fair_sharing
        self._history = UsageHistory(policy.usage_half_life_s) if policy.usage_half_life_s else None
        self._refused: dict[str, set[int]] = defaultdict(set)
        self._preempting: dict[str, int] = {}
        """The job of a queue for which others gave way last; it goes first in its queue until it starts."""
        self._freed = -1
        self._arrays: QuotaArrays | None = None
        self._search: ClassicSearch | None = None
        self._bounds: dict[str, HopefulJobs] = {}
        self._hopeful: dict[str, dict[int, QuotaNode]] = {}
        """By kind the first jobs that might start on it as things are, and their queues."""
        self._has_changed = True
        """Whether somebody may have started since that was found."""
        self._turns: dict[QuotaNode, _Turn] = {}
        self._kind, self._lacking = ANY_KIND, dict[QuotaNode, list[QuotaNode]]()
        """If there is one kind: which, and in each tree the first queues that used more than their quota then."""
        self._told: dict[int, str] = {}
        self._told_of: dict[QuotaNode, tuple[list[JobView], list[QuotaNode], list[int]]] = {}
        self._most: dict[tuple[QuotaNode, str], int] = {}

    def admit(self, tenants: TenantsView, cluster: ClusterView) -> Iterator[Admission | NotAdmitted]:
        """Yield who may start, cycle by cycle."""
        if self._freed != tenants.freed:
            self._refused.clear()
        if self._history is not None:
            self._history.update(tenants)
        leaves, cycles, self._has_changed = tenants.quotas.leaves, 0, True
        while True:
            if self._has_changed:
                leaves, cycles = self._with_turns(leaves, tenants), 0
                self._note(tenants)
                later = self._without_any_hope(leaves, tenants)
            if len(self._hopeful) == 1 and self._is_settled():
                for leaf in leaves:
                    yield from self._all_refused(leaf, tenants)
                break
            firsts = self._firsts(leaf for leaf in leaves if leaf not in later)
            if not firsts:
                break
            cycles += 1
            yield from self._without_hope(firsts)
            yield from self._processed(self._nominations(firsts, tenants), tenants)
            if self._has_changed:
                for leaf in later:
                    yield from self._refused_now(self._turns[leaf].next(cycles), leaf)
        self._freed = tenants.freed

    def _with_turns(self, leaves: Iterable[QuotaNode], tenants: TenantsView) -> list[QuotaNode]:
        """Note whose turn it is; return the queues of which not all have been refused. Nobody comes meanwhile."""
        known, self._turns = self._turns, {}
        for leaf in leaves:
            jobs, refused, turn = self._in_order(leaf, tenants), self._refused[leaf.name], known.get(leaf)
            same = turn is not None and turn.jobs is jobs and turn.refused is refused
            self._turns[leaf] = turn if turn is not None and same else _Turn(jobs, refused)
        return list(self._firsts(leaves))

    def _note(self, tenants: TenantsView) -> None:
        """Note how things are now, for the search for victims, and who might start."""
        self._has_changed = False
        if self._sharing:
            return
        if self._arrays is None:
            self._arrays = QuotaArrays(tenants.quotas)
            self._search = ClassicSearch(self._arrays)
        self._arrays.note(tenants)
        if self._history is None:
            for kind in tenants.quotas.kinds or (ANY_KIND,):
                if kind not in self._bounds:
                    self._bounds[kind] = HopefulJobs(self._arrays, kind)
                self._hopeful[kind] = self._bounds[kind].among(tenants)

    def _is_settled(self) -> bool:
        """Return whether all that might start have been refused, so that nothing changes any more."""
        return all(
            number in self._refused[leaf.name] for of_kind in self._hopeful.values() for number, leaf in of_kind.items()
        )

    def _without_any_hope(self, leaves: Iterable[QuotaNode], tenants: TenantsView) -> set[QuotaNode]:
        """Return queues of which each cycle refuses the first job, as long as nothing changes: that is done later."""
        if len(self._hopeful) != 1:
            return set()
        ((self._kind, hopeful),) = self._hopeful.items()
        self._lacking = {root: lacking_of(root.leaves(), self._kind) for root in tenants.quotas.roots}
        with_hope = {leaf for number, leaf in hopeful.items() if number not in self._refused[leaf.name]}
        return {
            leaf
            for leaf in leaves
            if leaf not in with_hope
            and leaf.queue.preemption.reclaim == "any"
            and any(other is not leaf for other in self._lacking[leaf.root])
        }

    def _without_hope(self, firsts: dict[QuotaNode, JobView]) -> Iterator[NotAdmitted]:
        """Refuse first jobs that cannot start, for which nothing is kept."""
        if len(self._hopeful) == 1:
            hopeful = self._hopeful[self._kind]
            for leaf, job in list(firsts.items()):
                if job.number not in hopeful and leaf.queue.preemption.reclaim == "any":
                    del firsts[leaf]
                    yield from self._refused_now([job], leaf)

    def cycle(self, tenants: TenantsView) -> dict[str, _Entry]:
        """Return the first job of each queue, and how it may start."""
        leaves = self._with_turns(tenants.quotas.leaves, tenants)
        self._note(tenants)
        return self._nominations(self._firsts(leaves), tenants)

    def _firsts(self, leaves: Iterable[QuotaNode]) -> dict[QuotaNode, JobView]:
        """Return the first job of each of these queues that has not been refused."""
        return {leaf: job for leaf in leaves if (job := self._turns[leaf].first()) is not None}

    def _nominations(self, firsts: dict[QuotaNode, JobView], tenants: TenantsView) -> dict[str, _Entry]:
        return {leaf.name: self._nominated(job, leaf, tenants) for leaf, job in firsts.items()}

    def _all_refused(self, leaf: QuotaNode, tenants: TenantsView) -> Iterator[NotAdmitted]:
        """Refuse the first jobs of a queue; what was told of the same ones, for the same reasons, is not told again."""
        heads, refused, lacking = tenants.pending.heads(leaf.name), self._refused[leaf.name], self._lacking[leaf.root]
        heads_told, lacking_told, numbers_told = self._told_of.get(leaf, (None, None, ()))
        if heads_told is heads and lacking_told == lacking:
            refused.update(numbers_told)
            return
        jobs = heads[:1] if leaf.queue.order == "strict" else heads
        new = [job for job in jobs if job.number not in refused]
        yield from self._refused_now(new, leaf)
        if len(new) == len(jobs) and names_of(lacking, leaf):
            self._told_of[leaf] = heads, lacking, [job.number for job in jobs]

    def _refused_now(self, jobs: Iterable[JobView], leaf: QuotaNode) -> Iterator[NotAdmitted]:
        lacking = self._lacking[leaf.root]
        others, most = names_of(lacking, leaf), self._most_of(leaf, self._kind)
        for job in jobs:
            if not others or self._told.get(job.number) != others or job.num_gpus > most:
                need = Need(job, leaf, self._kind)
                yield from self._refusal(need, _NEVER if need.gpus > most else others or borrowers_of(need, lacking))
            else:
                self._refused[leaf.name].add(job.number)

    def _most_of(self, leaf: QuotaNode, kind: str) -> int:
        """Return how many GPUs a queue may ever use."""
        if (most := self._most.get((leaf, kind))) is None:
            most = self._most[leaf, kind] = leaf.most(kind)
        return most

    def _refusal(self, need: Need, reason: str) -> Iterator[NotAdmitted]:
        """Refuse a job until there is more room; say so if the reason is new."""
        self._refuse(need)
        if self._told.get(need.job.number) != reason:
            self._told[need.job.number] = reason
            self._told_of.pop(need.node, None)
            yield NotAdmitted(need.job, reason)

    def _in_order(self, leaf: QuotaNode, tenants: TenantsView) -> list[JobView]:
        """Return whose turn it is in a queue, one after the other: the first job, of a best-effort queue others."""
        heads = tenants.pending.first(leaf.name).jobs
        if (history := self._history) is not None:
            heads = sorted(tenants.pending.jobs(leaf.name), key=lambda job: history.used(leaf.name, job.user))
        if leaf.queue.order == "strict":
            heads = heads[:1]
        preempting = self._preempting.get(leaf.name)
        if preempting is not None and preempting in tenants.pending:
            heads = sorted(heads, key=lambda job: job.number != preempting)
        return heads

    def _nominated(self, job: JobView, leaf: QuotaNode, tenants: TenantsView) -> _Entry:
        """Return how a job may start: on the first kind that has room, else where the fewest rules are stretched."""
        found = []
        for kind in self.kinds(job, leaf):
            found.append(self._tried(Need(job, leaf, kind), tenants))
            if found[-1].mode == _FIT:
                return found[-1]
        return max(found, key=lambda entry: (entry.mode, -entry.borrowing))

    def kinds(self, job: JobView, leaf: QuotaNode) -> Iterable[str]:
        """Return the kinds of GPU that a job is tried with, in order."""
        return leaf.queue.quotas or (ANY_KIND,)

    def _tried(self, need: Need, tenants: TenantsView) -> _Entry:
        node = need.node
        height, more_above = _group_that_fits(need)
        if need.fits():
            return _Entry(need, _FIT, height)
        if need.gpus > self._most_of(node, need.kind):
            return _Entry(need, _NO_FIT, 0, reason=_NEVER)
        rules = node.queue.preemption
        borrows = rules.borrow != "never" or (self._sharing and rules.reclaim != "never")
        may_preempt = need.gpus <= node.own(need.kind).gpus or more_above or borrows
        victims, above = self._victims(need, tenants) if may_preempt and self._is_hopeful(need) else ([], 0)
        if not victims:
            mode = _NO_VICTIMS if may_preempt else _NO_FIT
            return _Entry(need, mode, height, reason=borrowers_of(need, lacking_of(node.root.leaves(), need.kind)))
        within = any(victim.reason == WITHIN for victim in victims)
        return _Entry(need, _PREEMPT if within else _RECLAIM, above, victims)

    def _is_hopeful(self, need: Need) -> bool:
        return need.job.number in self._hopeful.get(need.kind, (need.job.number,))

    def _victims(self, need: Need, tenants: TenantsView) -> tuple[list[Victim], int]:
        """Return who gives way to a job, and how high the smallest group is then that has what it needs."""
        if self._search is not None:
            return self._search.victims(need, tenants)
        victims = fair_victims(need, tenants, self._fair)
        with _gone(victims, need.kind, tenants):
            return victims, _group_that_fits(need)[0]

    def _processed(self, entries: dict[str, _Entry], tenants: TenantsView) -> Iterator[Admission | NotAdmitted]:
        """Yield what comes of a cycle's entries, each reckoned with those before it."""
        reserved: list[tuple[QuotaNode, str, int]] = []
        gone, is_as_noted = set[int](), True
        for entry in self._in_turn(entries, tenants):
            need = entry.need
            if entry.may_start and not self._still(entry, gone, tenants, is_as_noted):
                continue  # its turn comes again in the next cycle
            if entry.may_start:
                if entry.victims:
                    gone.update(victim.job.number for victim in entry.victims)
                    self._preempting[need.node.name] = need.job.number
                self._told_of.pop(need.node, None)
                for number in (need.job.number, *(victim.job.number for victim in entry.victims)):
                    self._told.pop(number, None)
                yield Admission(need.job, need.kind, tuple(entry.victims))
                started = tenants.holding(need.job.number) is not None
                if started or (entry.victims and tenants.holding(entry.victims[0].job.number) is None):
                    self._has_changed, is_as_noted = True, False
                if not started:
                    self._refuse(need)
                elif self._history is not None:
                    self._history.admitted(need.node.name, need.job)
                continue
            if entry.mode == _NO_VICTIMS and need.node.queue.preemption.reclaim != "any":
                reserved.append(self._reserve(entry))
                is_as_noted = False
            yield from self._refusal(need, entry.reason)
        for node, kind, gpus in reserved:
            node.remove(kind, gpus)

    def _refuse(self, need: Need) -> None:
        self._refused[need.node.name].add(need.job.number)

    @staticmethod
    def _reserve(entry: _Entry) -> tuple[QuotaNode, str, int]:
        """Keep quota for a job that may preempt nobody, until the cycle ends, so that nobody else takes it."""
        need = entry.need
        own, used = need.node.own(need.kind), need.node.used[need.kind]
        most = need.gpus
        if entry.borrowing == 0:
            most = own.gpus - used
        elif own.borrowing_limit is not None:
            most = own.gpus + own.borrowing_limit - used
        gpus = max(0, min(need.gpus, most))
        need.node.add(need.kind, gpus)
        return need.node, need.kind, gpus

    @staticmethod
    def _still(entry: _Entry, gone: set[int], tenants: TenantsView, is_as_noted: bool) -> bool:
        """Return whether an entry may start as it was nominated, after those before it in the cycle."""
        if gone and gone.intersection(victim.job.number for victim in entry.victims):
            return False
        if is_as_noted:
            return True
        with _gone(entry.victims, entry.need.kind, tenants):
            return entry.need.fits()

    def _in_turn(self, entries: dict[str, _Entry], tenants: TenantsView) -> Iterator[_Entry]:
        """Yield the entries in the order in which they go; by fair shares that depends on who went before."""
        if not self._sharing:
            yield from sorted(entries.values(), key=lambda entry: (entry.borrowing, *_by_age(entry)))
            return
        while entries:
            yield entries.pop(self._most_fair(entries, tenants))

    def _most_fair(self, entries: dict[str, _Entry], tenants: TenantsView) -> str:
        """Return whose turn it is by fair shares: of the first entry's tree, the winner at each level."""
        root = tenants.quotas[next(iter(entries))].root
        shares: dict[tuple[str, str], tuple[bool, bool, float]] = {}
        for leaf in root.leaves():
            if leaf.name in entries:
                need = entries[leaf.name].need
                leaf.add(need.kind, need.gpus)
                for node in (leaf, *leaf.above()):
                    borrows = node.parent is not None and node.lacks(need.kind)
                    shares[node.name, leaf.name] = (borrows, *tenants.quotas.share(node))
                leaf.remove(need.kind, need.gpus)
        return self._winner(root, entries, shares)

    def _winner(
        self, group: QuotaNode, entries: dict[str, _Entry], shares: dict[tuple[str, str], tuple[bool, bool, float]]
    ) -> str:
        """Return the queue that goes first of those below a group, or an empty text."""
        if group.is_leaf:
            return group.name if group.name in entries else ""
        found = [(child, winner) for child in group.children if (winner := self._winner(child, entries, shares))]
        if not found:
            return ""
        return min(found, key=lambda pair: (shares[pair[0].name, pair[1]], _by_age(entries[pair[1]])))[1]


def _by_age(entry: _Entry) -> tuple[int, int, int]:
    job = entry.need.job
    return -job.priority, job.arrival_ns, job.number
