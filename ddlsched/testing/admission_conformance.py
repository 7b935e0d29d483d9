"""Conformance of admission policies: what holds of each, whatever it prefers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND, Preemption, Queue, Quota, Tenants
from ddlsched.policies.quota_tree import QuotaTree
from ddlsched.policies.tenants_view import Admission, HeldQuota, PendingJobs, RunningJobs, TenantsView
from ddlsched.testing.conformance_runs import Conformance, begun
from ddlsched.testing.handmade import cluster_view, job_view

_MOST_ROUNDS = 60
_MEMORY_BYTES = 2**35


class Submission(NamedTuple):
    """A job that comes: its queue, how many GPUs it needs, its priority."""

    queue: str
    num_gpus: int
    priority: int = 0


@dataclass(frozen=True)
class Case:
    """Queues, and the jobs that come, one after the other."""

    tenants: Tenants
    jobs: tuple[Submission, ...]

    def __str__(self) -> str:
        queues = [f"  {queue}" for queue in self.tenants.queues]
        return "\n".join(["queues:", *queues, "jobs, as they come:", *(f"  {job}" for job in self.jobs)])


@dataclass
class _Play:
    """A case under way."""

    case: Case
    policy: Any
    at_once: bool
    running: dict[int, HeldQuota] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    preemptions: int = 0

    def __post_init__(self) -> None:
        tenants = self.case.tenants
        self.quotas, self.pending = QuotaTree(tenants), PendingJobs(tenants.leaves)
        self.by_queue = {queue: RunningJobs() for queue in tenants.leaves}
        self.asked = begun(self.policy, Cluster())
        self.clock_ns = self.freed = 0
        gpus = sum(quota.gpus for queue in tenants.queues for quota in queue.quotas.values())
        self.cluster = cluster_view(num_servers=max(gpus, 1), gpus_per_server=1, exclusive=True)
        self.gpus: dict[int, list[int]] = {}

    def submit(self, number: int, job: Submission) -> None:
        told: dict[str, Any] = {"queue": job.queue, "priority": job.priority}
        self.pending.add(job_view(number=number, num_gpus=job.num_gpus, arrival_s=float(number), **told))

    def settle(self) -> None:
        """Ask until nothing changes, or who runs is as it was before."""
        seen: set[tuple[int, ...]] = set()
        preempted = self.preemptions
        while (running := tuple(self.running)) not in seen and len(seen) < _MOST_ROUNDS:
            seen.add(running)
            before = self.freed, tuple(self.running)
            self._round()
            if before == (self.freed, tuple(self.running)):
                return
            self.freed += 1  # who has just started may be preempted now
        if self.preemptions > preempted:
            self.faults.append("loop: jobs preempt each other without end")

    def _round(self) -> None:
        state = self.quotas, self.pending, self.running, self.by_queue
        self.clock_ns += 1
        view = TenantsView(self.case.tenants, *state, self.clock_ns, self.freed)
        before = set(self.running)
        stopped: list[HeldQuota] = []
        for answer in self.asked.admit(view, self.cluster):
            if isinstance(answer, Admission):
                if not before.issuperset(victim.job.number for victim in answer.victims):
                    self.faults.append("victims: a job that did not run when the round began")
                    return
                stopped += self._carry_out(answer)
        for holding in stopped:
            self.pending.add(holding.job)

    def _carry_out(self, answer: Admission) -> list[HeldQuota]:
        stopped = [self._stop(victim.job.number) for victim in answer.victims]
        if answer.victims and not self.at_once:
            return stopped
        self._check_need(answer, stopped)
        self._start(answer)
        self._check_limits(answer)
        return stopped

    def _stop(self, number: int) -> HeldQuota:
        holding = self.running.pop(number)
        self.cluster._gpus.free_bytes[self.gpus.pop(number)] = _MEMORY_BYTES
        del self.by_queue[holding.queue][number]
        self.quotas[holding.queue].remove(holding.kind, holding.num_gpus)
        self.freed += 1
        self.preemptions += 1
        return holding

    def _start(self, answer: Admission) -> None:
        queue, free = str(answer.job.queue), self.cluster.eligible(answer.job).tolist()
        self.gpus[answer.job.number] = gpus = list(answer.gpus or free[: answer.job.num_gpus])
        if answer.gpus is not None and not (len(gpus) == answer.job.num_gpus and set(gpus).issubset(free)):
            self.faults.append("GPUs: too few, or some that others have")
        self.cluster._gpus.free_bytes[gpus] = -1
        self.pending.remove(answer.job)
        holding = HeldQuota.of(answer.job, answer.kind, self.clock_ns)
        self.running[answer.job.number] = self.by_queue[queue][answer.job.number] = holding
        self.quotas[queue].add(answer.kind, answer.job.num_gpus)

    def _check_need(self, answer: Admission, stopped: list[HeldQuota]) -> None:
        """Note a victim beside whom the job would have fitted."""
        node = self.quotas[str(answer.job.queue)]
        for holding in stopped:
            self.quotas[holding.queue].add(holding.kind, holding.num_gpus)
            if answer.job.num_gpus <= node.available(answer.kind):
                self.faults.append("needless: a victim beside whom the job would have fitted")
            self.quotas[holding.queue].remove(holding.kind, holding.num_gpus)

    def _check_limits(self, answer: Admission) -> None:
        node = self.quotas[str(answer.job.queue)]
        for above in (node, *node.above()):
            if above.above_limit(answer.kind):
                self.faults.append(f"limit: {above.name} has borrowed more than it may")
        root = node.root
        if root.used[answer.kind] > root.quota.get(answer.kind, 0):
            self.faults.append("lending: more is used than is guaranteed and lent")

    def check_guarantees(self) -> None:
        """Who waits for what its queue is guaranteed, though it may reclaim it from anybody, starves."""
        for leaf in self.quotas.leaves:
            rules = leaf.queue.preemption
            for job in self.pending.heads(leaf.name):
                if rules.reclaim == "any" and leaf.parent is not None and not leaf.lacks(ANY_KIND, job.num_gpus):
                    self.faults.append(f"starvation: {leaf.name} does not get what it is guaranteed")


def play(case: Case, policy: Any, *, at_once: bool = True) -> tuple[list[str], list[int]]:
    """Play a case; return what was wrong, and who runs in the end.

    Parameters
    ----------
    case, policy
        What is played, and who decides.
    at_once
        Whether the job for which others give way starts at once, as in runs; otherwise the next round decides who takes
        the room, as in a cluster whose pods take time to end.
    """
    game = _Play(case, policy, at_once)
    for number, job in enumerate(case.jobs):
        game.submit(number, job)
        game.settle()
        if game.faults:
            return game.faults, list(game.running)
    game.check_guarantees()
    return game.faults, list(game.running)


def random_case(rng: np.random.Generator, *, groups: bool = True) -> Case:
    """Draw a case of two to four queues, perhaps one of them in a group below the root, and three to seven jobs."""
    names = "abcd"[: int(rng.integers(2, 5))]
    inner = groups and rng.random() < 0.3
    queues = [Queue(name="root"), *([_random_queue(rng, "inner", "root")] if inner else [])]
    queues += [_random_queue(rng, name, "inner" if inner and name == "a" else "root") for name in names]
    jobs = [
        Submission(str(rng.choice(list(names))), int(rng.integers(1, 5)), int(rng.integers(0, 3)))
        for _ in range(int(rng.integers(3, 8)))
    ]
    return Case(Tenants(queues=tuple(queues)), tuple(jobs))


def _random_queue(rng: np.random.Generator, name: str, parent: str) -> Queue:
    gpus = int(rng.integers(0, 5))
    borrowing = None if rng.random() < 0.6 else int(rng.integers(0, 4))
    lending = None if rng.random() < 0.6 else int(rng.integers(0, gpus + 1))
    rules = Preemption(
        within_queue=str(rng.choice(["never", "lower-priority"])),  # type: ignore[arg-type]
        reclaim=str(rng.choice(["never", "lower-priority", "any"])),  # type: ignore[arg-type]
        borrow=str(rng.choice(["never", "lower-priority"])),  # type: ignore[arg-type]
    )
    quota = Quota(gpus=gpus, borrowing_limit=borrowing, lending_limit=lending)
    weight = float(rng.choice([0.5, 1.0, 2.0]))
    return Queue(name=name, parent=parent, quotas={ANY_KIND: quota}, weight=weight, preemption=rules)


def find_fault(
    policy: Any, what: str = "", *, seed: int = 0, cases: int = 200, at_once: bool = True, groups: bool = True
) -> tuple[str, Case] | None:
    """Play random cases until something is wrong; return that and the smallest case found in which it is.

    ``what`` is how the fault begins that is looked for: loop, starvation, limit, lending, needless; by default any.
    """
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        case = random_case(rng, groups=groups)
        if fault := _fault(case, policy, what, at_once):
            kind = fault.partition(":")[0]
            return fault, shrunk(case, functools.partial(_fault, policy=policy, what=kind, at_once=at_once))
    return None


def _fault(case: Case, policy: Any, what: str, at_once: bool) -> str:
    faults, _ = play(case, policy, at_once=at_once)
    return next((fault for fault in faults if fault.startswith(what)), "")


def shrunk(case: Case, still: Callable[[Case], object]) -> Case:
    """Return a case that is as small as small steps make it, and of which ``still`` is true."""
    while (smaller := next((each for each in _smaller(case) if still(each)), None)) is not None:
        case = smaller
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases that are a step smaller: a job, a queue, a GPU, a priority or a rule less."""
    jobs, queues = case.jobs, case.tenants.queues
    for place in range(len(jobs)):
        yield Case(case.tenants, jobs[:place] + jobs[place + 1 :])
    needed = {job.queue for job in jobs} | {queue.parent for queue in queues}
    for queue in queues:
        if queue.name not in needed:
            yield Case(Tenants(queues=tuple(other for other in queues if other is not queue)), jobs)
    for place, job in enumerate(jobs):
        for less in (job._replace(num_gpus=job.num_gpus - 1), job._replace(priority=job.priority - 1)):
            if less.num_gpus > 0 and less.priority >= 0:
                yield Case(case.tenants, (*jobs[:place], less, *jobs[place + 1 :]))
    for place, queue in enumerate(queues):
        for simpler in _simpler(queue):
            yield Case(Tenants(queues=(*queues[:place], simpler, *queues[place + 1 :])), jobs)


def _simpler(queue: Queue) -> Iterator[Queue]:
    if queue.weight != 1:
        yield replace(queue, weight=1.0)
    changed: dict[str, Any] = {}
    for name in ("within_queue", "reclaim", "borrow"):
        if getattr(queue.preemption, name) != "never":
            yield replace(queue, preemption=replace(queue.preemption, **changed | {name: "never"}))
    if (quota := queue.quotas.get(ANY_KIND)) is not None:
        for name in ("borrowing_limit", "lending_limit"):
            if getattr(quota, name) is not None:
                yield replace(queue, quotas={ANY_KIND: replace(quota, **changed | {name: None})})
        if quota.gpus:
            less = min(quota.gpus - 1, quota.lending_limit or quota.gpus)
            yield replace(queue, quotas={ANY_KIND: replace(quota, gpus=less)})


_CASES = 60


class AdmissionConformance(Conformance):
    """Checks of an admission policy; give the class a ``make()``."""

    @pytest.mark.parametrize("seed", range(3))
    def test_keeps_limits(self, seed: int) -> None:
        """No queue borrows more than it may, nothing is used that nobody lends, and victims ran before."""
        rng = np.random.default_rng(seed)
        for _ in range(_CASES // 3):
            case = random_case(rng)
            faults, _ = play(case, self.make())
            broken = [fault for fault in faults if fault.startswith(("limit", "lending", "victims", "GPUs"))]
            assert not broken, f"{broken} in\n{case}"

    def test_decides_alike_each_time(self) -> None:
        """The same jobs, the same answers."""
        rng = np.random.default_rng(9)
        for _ in range(10):
            case = random_case(rng)
            assert play(case, self.make()) == play(case, self.make())
