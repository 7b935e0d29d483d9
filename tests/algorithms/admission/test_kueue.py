"""Kueue's admission: cases worked by hand, and those of its documentation and issues."""

from __future__ import annotations

from typing import Any

import pytest

from algorithms.admission.kueue import Kueue, KueueRun
from ddlsched import (
    Cluster,
    DataParallelIteration,
    Job,
    Preemption,
    Queue,
    Quota,
    Tenants,
    Workload,
    simulate,
)
from ddlsched.testing.admission_conformance import Case, Submission, find_fault, play

pytestmark = pytest.mark.long


def queue(name: str, gpus: int, *, parent: str | None = "all", weight: float = 1.0, **more: Any) -> Queue:
    quota = {limit: more.pop(limit) for limit in ("borrowing_limit", "lending_limit") if limit in more}
    order = more.pop("order", "best-effort")
    return Queue(
        name=name,
        parent=parent,
        quotas={"any": Quota(gpus=gpus, **quota)},
        weight=weight,
        order=order,
        preemption=Preemption(**more),
    )


def played(*queues: Queue, jobs: list[tuple[Any, ...]], policy: Kueue | None = None, at_once: bool = True) -> set[int]:
    """Return which jobs run in the end, of queues below a group of no quota."""
    case = Case(Tenants(queues=(Queue(name="all"), *queues)), tuple(Submission(*job) for job in jobs))
    faults, running = play(case, policy or Kueue(), at_once=at_once)
    assert not faults
    return set(running)


def test_a_queue_borrows_what_others_leave_up_to_its_limit() -> None:
    jobs = [("a", 4), ("a", 1), ("a", 1)]
    assert played(queue("a", 4), queue("b", 2), jobs=jobs) == {0, 1, 2}
    assert played(queue("a", 4, borrowing_limit=1), queue("b", 2), jobs=jobs) == {0, 1}
    assert played(queue("a", 4), queue("b", 2, lending_limit=0), jobs=jobs) == {0}


def test_what_is_guaranteed_is_reclaimed_from_the_one_that_came_last_of_low_priority() -> None:
    jobs = [("a", 2), ("a", 2), ("a", 2, 1), ("b", 2)]
    assert played(queue("a", 2), queue("b", 4, reclaim="any"), jobs=jobs) == {0, 2, 3}
    assert played(queue("a", 2), queue("b", 4, reclaim="lower-priority"), jobs=jobs) == {0, 1, 2}
    assert played(queue("a", 2), queue("b", 4), jobs=jobs) == {0, 1, 2}


def test_who_is_within_its_quota_never_gives_way_to_another_queue() -> None:
    rules = {"reclaim": "any", "borrow": "lower-priority"}
    jobs = [("a", 4), ("b", 4), ("b", 2, 9)]
    assert played(queue("a", 4), queue("b", 4, **rules), jobs=jobs) == {0, 1}


def test_within_a_queue_higher_priority_goes_first() -> None:
    jobs = [("a", 2), ("a", 2, 1), ("a", 3, 2)]
    assert played(queue("a", 4, within_queue="lower-priority"), jobs=jobs) == {2}
    assert played(queue("a", 4), jobs=jobs) == {0, 1}
    fewer = [("a", 1), ("a", 2, 1), ("a", 1, 1), ("a", 1, 2)]  # one of one GPU suffices
    assert played(queue("a", 4, within_queue="lower-priority"), jobs=fewer) == {1, 2, 3}


def test_a_borrowing_queue_preempts_lower_priorities_where_it_may() -> None:
    jobs = [("a", 3), ("b", 3), ("b", 2, 5)]
    assert played(queue("a", 1), queue("b", 5, reclaim="any"), jobs=jobs) == {1, 2}
    jobs = [("a", 3), ("b", 1), ("b", 2, 5)]
    borrowing = queue("b", 1, reclaim="any", borrow="lower-priority")
    assert played(queue("a", 1), queue("c", 2), borrowing, jobs=jobs) == {1, 2}
    assert played(queue("a", 1), queue("c", 2), queue("b", 1, reclaim="any"), jobs=jobs) == {0, 1}
    below = queue("b", 1, reclaim="any", borrow="lower-priority", borrow_max_priority=-1)
    assert played(queue("a", 1), queue("c", 2), below, jobs=jobs) == {0, 1}


def test_a_strict_queue_waits_for_its_first_job() -> None:
    jobs = [("a", 3), ("a", 4), ("a", 1)]
    assert played(queue("a", 4), jobs=jobs) == {0, 2}
    assert played(queue("a", 4, order="strict"), jobs=jobs) == {0}


def test_a_group_reclaims_for_its_queues() -> None:
    """The group has 4, which its queue without any of its own may reclaim from outside."""
    inner = queue("inner", 4)
    own = queue("a", 0, parent="inner", reclaim="any")
    jobs = [("b", 2), ("b", 2), ("a", 2)]
    assert played(inner, own, queue("b", 0), jobs=jobs) == {0, 2}


def test_fair_sharing_evens_out_what_is_borrowed() -> None:
    fair = Kueue(fair_sharing=True)
    jobs = [("a", 1)] * 6 + [("b", 1)] * 6
    pool = queue("pool", 6)
    rules = {"reclaim": "any"}
    running = played(queue("a", 0, **rules), queue("b", 0, **rules), pool, jobs=jobs, policy=fair)
    assert sum(number < 6 for number in running) == 3
    assert len(running) == 6
    heavy = played(queue("a", 0, **rules), queue("b", 0, weight=2.0, **rules), pool, jobs=jobs, policy=fair)
    assert sum(number < 6 for number in heavy) == 2


def _issue_3779(below: bool) -> list[str]:
    """Play Kueue's issue 3779: two queues guaranteed 150m each, one nothing; jobs of 250m, 50m and 50m more."""
    rules = Preemption(within_queue="lower-priority", reclaim="any", borrow="lower-priority", borrow_max_priority=100)
    queues = [
        Queue(name="all"),
        *(Queue(name=n, parent="all", quotas={"any": Quota(gpus=3)}, preemption=rules) for n in ("ga", "gb")),
        queue("best-effort", 0),
    ]
    jobs = Submission("ga", 5, 200), Submission("best-effort", 1, 50), Submission("ga", 1, 200)
    policy = Kueue(fair_sharing=True, preempt_below_priority=below)
    return play(Case(Tenants(queues=tuple(queues)), jobs), policy, at_once=False)[0]


def test_the_loop_of_issue_3779_is_there_with_the_old_rule_only() -> None:
    assert _issue_3779(below=True) == ["loop: jobs preempt each other without end"]
    assert _issue_3779(below=False) == []


def test_the_loop_of_issue_3779_is_found_and_shrunk() -> None:
    """Victims that come back before the job for which they went: two queues and two jobs show it."""
    policy = Kueue(fair_sharing=True, preempt_below_priority=True)
    fault, case = find_fault(policy, "loop", at_once=False, groups=False) or ("", None)
    assert fault.startswith("loop")
    assert case is not None
    assert len(case.jobs) == 2
    assert {rule.borrow for rule in (queue.preemption for queue in case.tenants.queues)} == {"never", "lower-priority"}


def test_nobody_gives_way_without_need() -> None:
    assert find_fault(Kueue(), "needless", seed=2, cases=60) is None


@pytest.mark.parametrize("policy", [Kueue(), Kueue(fair_sharing=True, strategies="final-share")])
def test_nobody_starves_of_what_is_guaranteed(policy: Kueue) -> None:
    assert find_fault(policy, "starvation", seed=1, cases=60) is None


def test_a_kind_is_taken_where_borrowed_quota_comes_back_before_one_where_the_own_queue_gives_way() -> None:
    kinds = {"x": Quota(gpus=1), "y": Quota(gpus=1)}
    rules = Preemption(within_queue="lower-priority", reclaim="any")
    queues = (
        Queue(name="all"),
        Queue(name="a", parent="all", quotas=kinds, preemption=rules),
        Queue(name="b", parent="all", quotas=dict.fromkeys(kinds, Quota())),
    )
    case = Case(Tenants(queues=queues), (Submission("a", 1), Submission("b", 1), Submission("a", 1, 5)))
    assert play(case, Kueue())[1] == [0, 2]


def test_a_kind_with_room_is_taken_before_one_where_borrowed_quota_would_have_to_come_back() -> None:
    kinds = {"x": Quota(gpus=1), "y": Quota(gpus=1)}
    queues = (
        Queue(name="all"),
        Queue(name="a", parent="all", quotas=kinds, preemption=Preemption(reclaim="any")),
        Queue(name="b", parent="all", quotas={"x": Quota()}),
    )
    case = Case(Tenants(queues=queues), (Submission("b", 1), Submission("a", 1)))
    assert play(case, Kueue())[1] == [0, 1]


def test_the_job_whose_quota_is_nearest_goes_first_whatever_its_priority() -> None:
    """A group's own 4 GPUs are nearer to its queue than to one that hangs at the root, above all groups."""
    group = Queue(name="group", parent="all", quotas={"any": Quota(gpus=4)})
    tenants = Tenants(queues=(Queue(name="all"), group, queue("near", 0, parent="group"), queue("far", 0)))
    step = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=0)
    told = {"num_gpus": 4, "iterations": 10, "iteration": step, "gpu_memory_mb": 1.0, "arrival_s": 0.0}
    jobs = [Job(job_id="far", queue="far", priority=3, **told), Job(job_id="near", queue="near", **told)]
    result = simulate(Workload.of(jobs), Cluster(num_servers=1, exclusive=True), queues=tenants, admission="kueue")
    assert result.jobs.set_index("job_id")["start_s"].to_dict() == {"far": 3.0, "near": 0.0}


def test_a_job_whose_room_another_takes_in_its_cycle_preempts_at_once() -> None:
    """Each of b's and c's jobs would have room on the second server; b's goes first, and a has borrowed one GPU."""
    told = {"iterations": 10, "gpu_memory_mb": 1.0, "required_levels": "server"}
    told["iteration"] = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=0)
    asks = {"a": (4, 0.0), "b": (3, 1.0), "c": (2, 1.0)}
    jobs = [Job(job_id=name, queue=name, num_gpus=n, arrival_s=s, **told) for name, (n, s) in asks.items()]
    queues = (Queue(name="all"), queue("a", 3), queue("b", 4, reclaim="any"), queue("c", 4, reclaim="any"))
    cluster = Cluster(num_servers=2, exclusive=True)
    given = {"admission": "kueue", "placement": "kueue-topology"}
    done = simulate(Workload.of(jobs), cluster, queues=Tenants(queues=queues), **given).jobs.set_index("job_id")
    assert done["start_s"].to_dict() == {"a": 0.0, "b": 1.0, "c": 1.0}
    assert done["restarts"]["a"] == 1


@pytest.mark.parametrize("fair_sharing", [False, True])
def test_who_has_quota_but_no_room_at_its_level_preempts(fair_sharing: bool) -> None:
    """Three of eight GPUs are free, on no server three: who started last gives way."""
    told = {"iterations": 100, "gpu_memory_mb": 1.0, "required_levels": "server"}
    told["iteration"] = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=0)
    asks = {"a1": (3, 0.0), "a2": (2, 0.5), "b": (3, 1.0)}
    jobs = [Job(job_id=name, queue=name[0], num_gpus=n, arrival_s=s, **told) for name, (n, s) in asks.items()]
    queues = (Queue(name="all"), queue("a", 2), queue("b", 6, reclaim="any"))
    given = {"admission": Kueue(fair_sharing=fair_sharing), "placement": "kueue-topology"}
    cluster = Cluster(num_servers=2, exclusive=True)
    done = simulate(Workload.of(jobs), cluster, queues=Tenants(queues=queues), **given).jobs.set_index("job_id")
    assert done["start_s"].to_dict() == {"a1": 0.0, "a2": 0.5, "b": 1.0}
    assert done["restarts"].to_dict() == {"a1": 0, "a2": 1, "b": 0}


def test_who_borrows_in_its_group_takes_back_from_farther_queues_before_its_own_give_way() -> None:
    """Queue a of 4 GPUs has 1 and asks for 4, in a group of 3 more; b, of 1, uses 5."""
    mine = queue("a", 4, parent="inner", within_queue="lower-priority", reclaim="lower-priority")
    jobs = [("b", 3, 1), ("a", 1, 1), ("b", 2, 1), ("c", 1, 1), ("a", 4, 2)]
    assert played(queue("inner", 3), mine, queue("b", 1), queue("c", 2), jobs=jobs) == {0, 1, 3, 4}


def test_who_is_passed_over_is_refused_at_its_turn_though_a_first_job_was_put_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When job 1 starts again, job 0 of queue a has been put off by a cycle: job 2 is refused after it."""
    refused, refuse = [], KueueRun._refuse
    monkeypatch.setattr(KueueRun, "_refuse", lambda run, need: refused.append(need.job.number) or refuse(run, need))
    mine = queue("a", 0, within_queue="lower-priority", reclaim="any")
    middle = queue("b", 3, within_queue="lower-or-newer", reclaim="lower-priority", borrow="lower-priority")
    last = queue("c", 2, within_queue="lower-or-newer", reclaim="any", lending_limit=2)
    jobs = [("a", 2, 1), ("b", 2, 1), ("a", 3, 1), ("b", 4, 2), ("b", 1, 2), ("c", 2, 2)]
    assert played(mine, middle, last, jobs=jobs) == {1, 4, 5}
    assert [number for number in refused if number in (0, 2)] == [2, 0, 2, 0, 2, 0, 2]


def test_what_is_noted_is_noted_once() -> None:
    run = KueueRun(Kueue(fair_sharing=True))
    run._note(None)  # type: ignore[arg-type]
    assert run._has_changed is False
