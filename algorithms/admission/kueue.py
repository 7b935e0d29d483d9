"""Kueue: quotas that queues lend to each other, and preemption by rules or by fair shares."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from algorithms.admission.hopeful_jobs import HopefulJobs
from algorithms.admission.kueue_classic import ClassicSearch, RoomBound
from algorithms.admission.kueue_fair import FairRules, fair_victims
from algorithms.admission.shares import UsageHistory
from algorithms.admission.victims import WITHIN, Need, QuotaArrays, borrowers_of, height_of, lacking_of, names_of
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import Admission, Heads, NotAdmitted, TenantsView, Victim
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.ranges import Checked, ranged

_NEVER = "quota: more than the queue may ever use"
_NO_ROOM = "no unit of its level would have room, whoever may be preempted for it"


@dataclass(frozen=True, kw_only=True)
class Kueue(Checked, who="kueue"):
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
    strategies: Literal["both", "final-share", "initial-share"] = "both"
    preempt_below_priority: bool = False
    usage_half_life_s: float = ranged(0.0, 0.0)

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


@dataclass(slots=True)
class _Turn:
    """The jobs of a queue in the order of their turns, with their numbers, and what that follows from."""

    heads: Heads
    preempting: int | None
    jobs: list[tuple[int, JobView]]
    told: str = ""
    """What all of them have been told last, if that is the same."""

    def left(self, refused: set[int]) -> list[tuple[int, JobView]]:
        """Return those that have not been refused."""
        return [item for item in self.jobs if item[0] not in refused] if refused else self.jobs


def _group_that_fits(need: Need) -> tuple[int, bool]:
    """Return how high the smallest group is that has what a job needs, and whether others lie above it."""
    node = need.node
    if not node.lacks(need.kind, need.gpus) or node.parent is None:
        return 0, node.parent is not None
    rest, group = need.gpus - node.free_here(need.kind), node
    for group in node.above():
        if not group.lacks(need.kind, rest):
            return height_of(group), group.parent is not None
        rest -= group.free_here(need.kind)
    return height_of(group), False


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
        self._bounds: dict[str, tuple[HopefulJobs, RoomBound]] = {}
        self._hopeful: dict[str, dict[int, QuotaNode]] = {}
        """By kind the first jobs, if not refused, that might start on it as things are, and their queues."""
        self._roomless: dict[str, dict[int, QuotaNode]] = {}
        """Those that only room keeps from it."""
        self._silent, self._with_hope = set[QuotaNode](), set[QuotaNode]()
        """Queues that reserve nothing for jobs that may preempt nobody; queues of the first jobs of the two kinds."""
        self._has_changed = True
        """Whether somebody may have started since that was found."""
        self._turns: dict[QuotaNode, _Turn] = {}
        self._kind, self._lacking = ANY_KIND, dict[QuotaNode, list[QuotaNode]]()
        """If there is one kind: which, and in each tree the first queues that used more than their quota then."""
        self._told: dict[int, str] = {}
        self._most: dict[tuple[QuotaNode, str], int] = {}

    def admit(self, tenants: TenantsView, cluster: ClusterView) -> Iterator[Admission | NotAdmitted]:
        """Yield who may start, cycle by cycle."""
        if self._freed != tenants.freed:
            self._refused.clear()
        if self._history is not None:
            self._history.update(tenants)
        self._has_changed = True
        while self._has_changed:
            if not (left := self._with_turns(tenants)):
                break
            self._note(tenants)
            passed = yield from self._cycles(left, tenants)
            for leaf, turns in passed.items():
                yield from self._refused_now(left[leaf][:turns], leaf)
        self._freed = tenants.freed

    def _cycles(
        self, left: dict[QuotaNode, list[tuple[int, JobView]]], tenants: TenantsView
    ) -> Generator[Admission | NotAdmitted, None, dict[QuotaNode, int | None]]:
        """Go through cycles until something changes; return how many jobs of queues were passed over, None for all.

        Passed over are those without hope of which others take no notice.
        """
        hopeful = self._hopeful[self._kind] if len(self._hopeful) == 1 else None
        silent = left.keys() & self._silent if hopeful is not None else ()
        ahead = dict[QuotaNode, list[tuple[int, JobView]]]()
        for leaf, jobs in left.items():
            if leaf not in silent:
                ahead[leaf] = [(cycle, job) for cycle, (_, job) in enumerate(jobs)][::-1]
            elif leaf in self._with_hope:
                turns = [(cycle, job) for cycle, (number, job) in enumerate(jobs) if hopeful and number in hopeful]
                if turns:
                    ahead[leaf] = turns[::-1]
        late, cycle = Counter[QuotaNode](), -1
        while ahead and not self._has_changed and not self._is_settled(hopeful):
            cycle = min(turns[-1][0] for turns in ahead.values())
            firsts = {leaf: turns[-1][1] for leaf, turns in ahead.items() if turns[-1][0] == cycle}
            yield from self._processed(self._nominations(firsts, tenants), tenants)
            for leaf, job in firsts.items():
                if job.number in self._refused[leaf.name]:
                    ahead[leaf].pop()
                    if not ahead[leaf]:
                        del ahead[leaf]
                else:  # its turn comes again
                    late[leaf] += 1
                    ahead[leaf] = [(turn + 1, each) for turn, each in ahead[leaf]]
        if self._has_changed:
            return {leaf: cycle + 1 - late[leaf] for leaf in left if leaf in silent}
        return {} if hopeful is None else dict.fromkeys(left)

    def _is_settled(self, hopeful: dict[int, QuotaNode] | None) -> bool:
        """Return whether all that might start have been refused, so that nothing changes any more."""
        return hopeful is not None and all(number in self._refused[leaf.name] for number, leaf in hopeful.items())

    def _with_turns(self, tenants: TenantsView) -> dict[QuotaNode, list[tuple[int, JobView]]]:
        """Return of each queue the jobs that have not been refused, in the order of their turns."""
        found = {}
        for leaf, heads in zip(tenants.quotas.leaves, tenants.pending.firsts(), strict=True):
            if heads.jobs:
                turn, preempting = self._turns.get(leaf), self._preempting.get(leaf.name)
                if self._history or turn is None or turn.heads is not heads or turn.preempting != preempting:
                    jobs = self._in_order(leaf, heads.jobs, tenants)
                    self._turns[leaf] = turn = _Turn(heads, preempting, [(job.number, job) for job in jobs])
                if left := turn.left(self._refused[leaf.name]):
                    found[leaf] = left
        return found

    def _note(self, tenants: TenantsView) -> None:
        """Note how things are now, for the search for victims, and who might start."""
        self._has_changed = False
        if self._sharing:
            return
        if self._arrays is None:
            self._arrays = QuotaArrays(tenants.quotas)
            self._silent = {leaf for leaf in tenants.quotas.leaves if leaf.queue.preemption.reclaim == "any"}
            self._search = ClassicSearch(self._arrays)
        self._arrays.note(tenants)
        if self._history is None:
            for kind in tenants.quotas.kinds or (ANY_KIND,):
                if kind not in self._bounds:
                    self._bounds[kind] = HopefulJobs(self._arrays, kind), RoomBound(self._arrays, kind)
                hopeful, without = self._bounds[kind]
                found, refused = hopeful.among(tenants), self._refused
                found = {number: leaf for number, leaf in found.items() if number not in refused[leaf.name]}
                self._roomless[kind] = roomless = without.among(tenants, found)
                self._hopeful[kind] = {number: leaf for number, leaf in found.items() if number not in roomless}
            self._kind = next(iter(self._hopeful))
            self._lacking = {root: lacking_of(root.leaves(), self._kind) for root in tenants.quotas.roots}
            self._with_hope = {*self._hopeful[self._kind].values(), *self._roomless[self._kind].values()}

    def cycle(self, tenants: TenantsView) -> dict[str, _Entry]:
        """Return the first job of each queue, and how it may start."""
        left = self._with_turns(tenants)
        self._note(tenants)
        return self._nominations({leaf: jobs[0][1] for leaf, jobs in left.items()}, tenants)

    def _nominations(self, firsts: dict[QuotaNode, JobView], tenants: TenantsView) -> dict[str, _Entry]:
        return {leaf.name: self._nominated(job, leaf, tenants) for leaf, job in firsts.items()}

    def _refused_now(self, jobs: Sequence[tuple[int, JobView]], leaf: QuotaNode) -> Iterator[NotAdmitted]:
        """Refuse those of some jobs that have no hope; the others have been tried."""
        lacking, hopeful, roomless = self._lacking[leaf.root], self._hopeful[self._kind], self._roomless[self._kind]
        others, most, refused = names_of(lacking, leaf), self._most_of(leaf, self._kind), self._refused[leaf.name]
        turn, without_hope = self._turns[leaf], leaf not in self._with_hope
        if others and turn.told == others and without_hope:
            refused.update(number for number, _ in jobs)
            return
        told_all = without_hope and len(jobs) == len(turn.jobs)
        for number, job in jobs:
            if number in hopeful:
                continue
            reason = _NO_ROOM if number in roomless else others
            if reason and self._told.get(number) == reason:
                refused.add(number)
            else:
                need = Need(job, leaf, self._kind)
                reason = _NEVER if need.gpus > most else reason or borrowers_of(need, lacking)
                told_all = told_all and reason == others
                yield from self._refusal(need, reason)
        turn.told = others if told_all else turn.told

    def _most_of(self, leaf: QuotaNode, kind: str) -> int:
        """Return how many GPUs a queue may ever use."""
        if (most := self._most.get((leaf, kind))) is None:
            most = self._most[leaf, kind] = leaf.most(kind)
        return most

    def _refusal(self, need: Need, reason: str) -> Iterator[NotAdmitted]:
        """Refuse a job until there is more room; say so if the reason is new."""
        self._refuse(need)
        if self._told.get(need.job.number) != reason:
            self._tell(need, reason)
            yield NotAdmitted(need.job, reason)

    def _tell(self, need: Need, reason: str) -> None:
        self._told[need.job.number] = reason
        if (turn := self._turns.get(need.node)) is not None:
            turn.told = ""

    def _in_order(self, leaf: QuotaNode, heads: list[JobView], tenants: TenantsView) -> list[JobView]:
        """Return whose turn it is in a queue, one after the other: the first job, of a best-effort queue others."""
        if (history := self._history) is not None:
            heads = sorted(tenants.pending.jobs(leaf.name), key=lambda job: history.used(leaf.name, job.user))
        if leaf.queue.order == "strict":
            heads = heads[:1]
        preempting = self._preempting.get(leaf.name)
        return sorted(heads, key=lambda job: job.number != preempting)

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
        fits = need.fits()
        if fits and self._has_room(need.job, tenants):
            return _Entry(need, _FIT, height)
        if need.gpus > self._most_of(node, need.kind):
            return _Entry(need, _NO_FIT, 0, reason=_NEVER)
        rules = node.queue.preemption
        borrows = rules.borrow != "never" or (self._sharing and rules.reclaim != "never")
        may_preempt = need.gpus <= node.own(need.kind).gpus or more_above or borrows or fits
        victims, above = self._victims(need, tenants) if may_preempt and self._is_hopeful(need) else ([], -1)
        if not victims:
            mode = _NO_VICTIMS if may_preempt else _NO_FIT
            has_no_room = fits or above >= 0 or need.job.number in self._roomless.get(need.kind, ())
            reason = _NO_ROOM if has_no_room else borrowers_of(need, lacking_of(node.root.leaves(), need.kind))
            return _Entry(need, mode, height, reason=reason)
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
            return victims, _group_that_fits(need)[0] if victims else -1

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
                self._tell(need, "")
                for victim in entry.victims:
                    self._told.pop(victim.job.number, None)
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

    def _has_room(self, job: JobView, tenants: TenantsView, victims: Sequence[Victim] = ()) -> bool:
        """Return whether a job's level has room once victims have left."""
        return tenants.room is None or tenants.room.suffices(job, [victim.job for victim in victims])

    def _still(self, entry: _Entry, gone: set[int], tenants: TenantsView, is_as_noted: bool) -> bool:
        """Return whether an entry may start as it was nominated, after those before it in the cycle."""
        if gone and gone.intersection(victim.job.number for victim in entry.victims):
            return False
        with _gone(entry.victims, entry.need.kind, tenants):
            return is_as_noted or (entry.need.fits() and self._has_room(entry.need.job, tenants, entry.victims))

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
