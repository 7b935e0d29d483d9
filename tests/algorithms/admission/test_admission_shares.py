"""Volcano's, KAI's and Slurm's admission: shares worked by hand."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from algorithms.admission import kai
from algorithms.admission.kai import Kai
from algorithms.admission.shares import UsageHistory
from algorithms.admission.slurm_multifactor import SlurmMultifactor
from algorithms.admission.victims import QuotaArrays
from algorithms.admission.volcano import Volcano
from ddlsched import Cluster, DataParallelIteration, Job, Preemption, Queue, Quota, Tenants, Workload, simulate
from ddlsched.errors import InputError
from ddlsched.policies.quota_tree import QuotaNode, QuotaTree
from ddlsched.policies.tenants_view import Admission, TenantsView
from ddlsched.policies.views import ClusterView
from ddlsched.results.explanation import reservations
from ddlsched.testing.admission_conformance import Case, Submission, play

pytestmark = pytest.mark.long


def tenants(*queues: Queue, spare: int = 0) -> Tenants:
    return Tenants(queues=(Queue(name="all", quotas={"any": Quota(gpus=spare)}), *queues))


def queue(name: str, gpus: int = 0, weight: float = 1.0, limit: int | None = None, **rules: Any) -> Queue:
    quota = Quota(gpus=gpus, borrowing_limit=limit)
    return Queue(name=name, parent="all", quotas={"any": quota}, weight=weight, preemption=Preemption(**rules))


def used(case: Tenants, jobs: list[tuple[Any, ...]], policy: Any) -> dict[str, int]:
    """Return how many GPUs each queue has in the end."""
    faults, running = play(Case(case, tuple(Submission(*job) for job in jobs)), policy)
    assert not faults
    counts: Counter[str] = Counter()
    for number in running:
        counts[jobs[number][0]] += jobs[number][1]
    return dict(counts)


MANY = [("a", 1)] * 9 + [("b", 1)] * 9


def test_proportion_divides_by_weight_what_is_asked_for() -> None:
    queues = tenants(queue("a"), queue("b", weight=3.0), spare=8)
    assert used(queues, MANY, Volcano()) == {"a": 2, "b": 6}
    assert used(queues, [("a", 1)] * 9 + [("b", 1)] * 3, Volcano()) == {"a": 5, "b": 3}
    limited = tenants(queue("a"), queue("b", weight=3.0, limit=4), spare=8)
    assert used(limited, MANY, Volcano()) == {"a": 4, "b": 4}


def test_capacity_gives_what_is_deserved_and_lends_the_rest() -> None:
    queues = tenants(queue("a", 2), queue("b", 6))
    policy = Volcano(plugin="capacity")
    assert used(queues, [("a", 1)] * 9, policy) == {"a": 8}
    assert used(queues, [("a", 1)] * 9 + [("b", 3)], policy) == {"a": 5, "b": 3}
    assert used(queues, MANY, policy) == {"a": 2, "b": 6}


def test_of_equal_queues_the_job_of_low_priority_gives_way() -> None:
    queues = tenants(queue("a"), queue("b"), queue("c"), spare=6)
    jobs = (*[Submission("a", 1, 5)] * 3, *[Submission("b", 1, 1)] * 3, Submission("c", 1, 9))
    assert 5 not in play(Case(queues, jobs), Volcano())[1]
    assert 2 not in play(Case(queues, (*jobs[3:6], *jobs[:3], jobs[6])), Volcano())[1]


def test_drf_evens_out_shares() -> None:
    assert used(tenants(queue("a"), queue("b"), spare=8), MANY, Volcano(plugin="drf")) == {"a": 4, "b": 4}


def test_kai_gives_quotas_first_and_the_rest_by_weight() -> None:
    """Of 8 GPUs both have 2; of the 4 left, a quarter goes to a."""
    queues = tenants(queue("a", 2), queue("b", 2, weight=3.0), spare=4)
    assert used(queues, MANY, Kai()) == {"a": 3, "b": 5}
    assert used(queues, [("a", 1)] * 9, Kai()) == {"a": 8}
    limited = tenants(queue("a", 2, limit=1), queue("b", 2), spare=4)
    assert used(limited, [("a", 1)] * 9, Kai()) == {"a": 3}
    assert used(tenants(queue("a"), queue("b"), spare=3), MANY, Kai()) == {"a": 2, "b": 1}  # nothing is left over


def test_kai_keeps_jobs_that_may_not_be_preempted_within_the_quota() -> None:
    queues = tenants(queue("a", 2), queue("b", 2), spare=4)
    assert used(queues, [("a", 1, 100)] * 9, Kai()) == {"a": 2}
    assert used(queues, [("a", 1, 100)] * 2 + [("b", 1)] * 9, Kai()) == {"a": 2, "b": 6}
    mixed = [*[("a", 1, 100)] * 3, ("a", 1)]  # the third waits, and the last, which may be preempted, does not
    assert used(queues, mixed, Kai()) == {"a": 3}


def test_kai_lets_nobody_who_may_not_be_preempted_beyond_the_quota_of_a_group() -> None:
    group = Queue(name="group", parent="all", quotas={"any": Quota(gpus=1)})
    below = Queue(name="a", parent="group", quotas={"any": Quota(gpus=3)})
    queues = tenants(group, below, queue("b", 4))
    assert used(queues, [("a", 1, 100)] * 4, Kai()) == {"a": 1}


def test_who_started_last_gives_way_first_of_equals() -> None:
    case = Case(tenants(queue("a", 1), queue("b", 2)), tuple(Submission(*job) for job in [("a", 1)] * 3 + [("b", 1)]))
    assert play(case, Kai())[1] == [0, 1, 3]


def job(job_id: str, queue: str, gpus: int, arrival_s: float, seconds: float, **more: Any) -> Job:
    step = DataParallelIteration(forward_s=1.0, backward_s=0.0, message_bytes=0)
    given = {"iterations": int(seconds), "iteration": step, "gpu_memory_mb": 1.0, "queue": queue} | more
    return Job(job_id=job_id, arrival_s=arrival_s, num_gpus=gpus, **given)


FOUR = Cluster(num_servers=1, gpus_per_server=4, exclusive=True)


def starts(queues: Tenants, jobs: list[Job], policy: Any) -> dict[str, float]:
    result = simulate(Workload.of(jobs), FOUR, queues=queues, admission=policy)
    return dict(zip(result.jobs["job_id"], result.jobs["start_s"], strict=True))


def test_kai_lets_those_who_used_less_of_late_go_first() -> None:
    """Who has had the cluster all day gets less of what is over the quotas, if usage counts."""
    queues = tenants(queue("a"), queue("b"))
    jobs = [job("a0", "a", 4, 0, 1000)]
    jobs += [job(f"{name}{n}", name, 1, 999, 100) for name in ("a", "b") for n in range(1, 5)]
    names = ["a1", "a2", "a3", "a4"]
    at_once = starts(queues, jobs, Kai())
    assert sum(at_once[name] == 999 for name in names) == 2
    late = starts(queues, jobs, Kai(usage_weight=10.0, usage_half_life_s=1000.0))
    assert sum(late[name] == 999 for name in names) == 0


def test_what_is_used_counts_until_a_job_ends_whenever_that_is_asked() -> None:
    """Nobody is asked when a0 ends; what it had used counts as if someone were, less by half every 1,000 s."""
    queues, told = tenants(queue("a"), queue("b")), list[tuple[float, float]]()

    class Told:
        def __init__(self) -> None:
            self.history = UsageHistory(1000.0)

        def admit(self, view: TenantsView, _: ClusterView) -> Iterator[Admission]:
            self.history.update(view)
            told.append((view.now_s, self.history.of_queue("a")))
            yield from [Admission(each) for name in "ab" for each in view.pending.jobs(name)]

    jobs = [job("a0", "a", 4, 0, 1000), job("b0", "b", 4, 2000, 10), job("a1", "a", 2, 3000, 10)]
    starts(queues, jobs, Told())
    assert told == [(0.0, 0.0), (2000.0, pytest.approx(4 * 0.5 * 0.5)), (3000.0, pytest.approx(4 * 0.5 * 0.25))]
    gone = [jobs[0], *(job(f"{name}{n}", name, 1, 1001, 100) for name in ("a", "b") for n in range(1, 5))]
    late = starts(queues, gone, Kai(usage_weight=10.0, usage_half_life_s=1000.0))
    assert [late[f"a{n}"] for n in range(1, 5)] == [1101] * 4


def test_slurm_orders_by_fair_share_then_age_and_by_qos() -> None:
    queues = tenants(queue("a", 4), queue("b", 4))
    jobs = [job("a1", "a", 4, 0, 100), job("a2", "a", 4, 1, 10), job("b1", "b", 4, 2, 10)]
    assert starts(queues, jobs, SlurmMultifactor(calc_period_s=50.0)) == {"a1": 0, "b1": 100, "a2": 110}
    of_nothing_yet = SlurmMultifactor(calc_period_s=51.0)  # what is counted at 51 s counts from 102 s on
    assert starts(queues, jobs, of_nothing_yet) == {"a1": 0, "a2": 100, "b1": 110}
    fifo = SlurmMultifactor(fair_share_weight=0.0)
    assert starts(queues, jobs, fifo) == {"a1": 0, "a2": 100, "b1": 110}
    urgent = [*jobs, job("a3", "a", 4, 3, 10, priority=9)]
    assert starts(queues, urgent, fifo)["a3"] == 100


def test_slurm_counts_usage_as_a_part_of_all_and_qos_as_a_part_of_the_highest() -> None:
    """Of all usage a has all, twice its share: a factor of 1 / 4, while it has used next to nothing of a week."""
    queues = tenants(queue("a", 4), queue("b", 4))
    jobs = [job("a1", "a", 4, 0, 100), job("a2", "a", 4, 1, 10, priority=1), job("b1", "b", 4, 2, 10)]
    for weight, highest, first in ((2600, 0, "a2"), (2700, 0, "b1"), (2600, 2, "b1")):
        policy = SlurmMultifactor(fair_share_weight=float(weight), highest_qos=highest, calc_period_s=1.0)
        assert starts(queues, jobs, policy)[first] == 100


def test_slurm_preempts_by_qos_where_it_may() -> None:
    preempting = tenants(queue("a", 4), queue("b", 4, reclaim="lower-priority"))
    jobs = [job("a1", "a", 4, 0, 100), job("b1", "b", 2, 5, 10, priority=1)]
    assert starts(preempting, jobs, SlurmMultifactor())["b1"] == 5
    assert starts(tenants(queue("a", 4), queue("b", 4)), jobs, SlurmMultifactor())["b1"] == 100


def test_slurm_starts_who_may_preempt_first_whatever_priorities_are() -> None:
    jobs = [job("b0", "b", 4, 0, 100, priority=2), job("a1", "a", 4, 1, 10), job("b1", "b", 4, 90, 10, priority=1)]
    for rule, a1_s, b1_s in (("lower-priority", 110, 100), ("never", 100, 110)):
        queues = tenants(queue("a", 4), queue("b", 4, reclaim=rule))
        told = starts(queues, jobs, SlurmMultifactor(qos_weight=0.0, calc_period_s=1.0))
        assert (told["a1"], told["b1"]) == (a1_s, b1_s)


@pytest.mark.parametrize(("b1_s", "requeue_s", "again_s"), [(10, 121.0, 126), (10, 0.0, 15), (195, 121.0, 210)])
def test_slurm_requeues_who_gave_way_as_if_it_came_two_minutes_later(b1_s: int, requeue_s: float, again_s: int) -> None:
    """Job a1 gives way at 5 s, in its fifth iteration; in the last case b1 leaves at 200 s, and c1 is older then."""
    queues = tenants(queue("a", 4), queue("b", 4, reclaim="lower-priority"), queue("c"))
    jobs = [job("a1", "a", 4, 0, 100), job("b1", "b", 4, 5, b1_s, priority=1)]
    jobs += [job("c1", "c", 4, 100, 10)] if b1_s > 100 else []
    policy = SlurmMultifactor(fair_share_weight=0.0, calc_period_s=10.0, requeue_s=requeue_s)
    cluster = Cluster(num_servers=1, exclusive=True)
    done = simulate(Workload.of(jobs), cluster, queues=queues, admission=policy).jobs.set_index("job_id")
    assert done["finish_s"]["a1"] == again_s + 96


@pytest.mark.parametrize(
    ("gpus_per_server", "low", "gpus", "level", "gone"),
    [
        (2, [1, 2], 2, "server", [0, 1]),  # only the second makes room on one server, of which the first is not
        (1, [1, 3], 3, None, [0, 1]),  # tried again with the second first, which is enough
        (1, [1, 1, 2], 2, None, [1, 1, 0]),  # the smallest first
    ],
)
def test_slurm_preempts_who_is_where_the_placement_puts_a_job(
    gpus_per_server: int, low: list[int], gpus: int, level: str | None, gone: list[int]
) -> None:
    """A server of two has one job that nobody may preempt."""
    queues = tenants(queue("a", 4), queue("b", 4, reclaim="lower-priority"))
    jobs = [job("b0", "b", 1, 0, 100, priority=1)] if level else []
    jobs += [job(f"a{n}", "a", count, 1, 100) for n, count in enumerate(low)]
    jobs += [job("b1", "b", gpus, 5, 10, priority=1, required_levels=level)]
    cluster = Cluster(num_servers=4 // gpus_per_server, gpus_per_server=gpus_per_server, exclusive=True)
    result = simulate(Workload.of(jobs), cluster, queues=queues, admission=SlurmMultifactor(), placement="levels")
    told = result.jobs.set_index("job_id")
    assert told["start_s"]["b1"] == 5
    assert [told["restarts"][f"a{n}"] for n in range(len(low))] == gone


def test_slurm_backfills_what_ends_in_time() -> None:
    limits = [("a1", 2, 100), ("a2", 4, 10), ("b1", 2, 50), ("b2", 1, 200)]
    jobs = [job(name, name[0], gpus, n, s, time_limit_s=float(s)) for n, (name, gpus, s) in enumerate(limits)]
    queues = tenants(queue("a", 4), queue("b", 4))
    fifo = SlurmMultifactor(fair_share_weight=0.0, qos_weight=0.0)
    planned = SlurmMultifactor(fair_share_weight=0.0, qos_weight=0.0, backfill="easy-backfill")
    assert starts(queues, jobs, fifo)["b1"] == 110
    assert starts(queues, jobs, planned) == {"a1": 0, "b1": 2, "a2": 100, "b2": 110}


@pytest.mark.parametrize("planner", ["slurm-backfill", "easy-backfill", "conservative-backfill"])
def test_who_is_beyond_a_limit_once_others_start_keeps_no_gpus_from_those_behind(planner: str) -> None:
    queues = tenants(queue("a", 2, limit=0), queue("b", 4))
    asks = [("a1", 2, 100), ("a2", 2, 100), ("b1", 2, 10)]
    jobs = [job(name, name[0], gpus, 0, seconds, time_limit_s=float(seconds)) for name, gpus, seconds in asks]
    assert starts(queues, jobs, SlurmMultifactor(backfill=planner)) == {"a1": 0, "a2": 100, "b1": 0}


@pytest.mark.parametrize(("planner", "begins_s"), [("slurm-backfill", 5), ("easy-backfill", 100)])
def test_only_slurms_own_backfilling_preempts(planner: str, begins_s: float) -> None:
    """The job that gave way comes back two minutes later, when b1 has ended; b2, of the same QOS, waits for a1."""
    queues = tenants(queue("a", 4), queue("b", 4, reclaim="lower-priority"))
    jobs = [job("a1", "a", 4, 0, 100, time_limit_s=100.0), job("b1", "b", 2, 5, 10, priority=1, time_limit_s=10.0)]
    jobs.append(job("b2", "b", 2, 6, 10, time_limit_s=10.0))
    cluster = Cluster(num_servers=1, gpus_per_server=4, exclusive=True)
    policy = SlurmMultifactor(backfill=planner)
    told = simulate(Workload.of(jobs), cluster, queues=queues, admission=policy).jobs.set_index("job_id")
    assert told["start_s"]["b1"] == begins_s
    assert told["restarts"].to_dict() == {"a1": planner == "slurm-backfill", "b1": 0, "b2": 0}


def test_what_the_planner_reserves_is_told() -> None:
    jobs = [job("a1", "a", 3, 0, 100, time_limit_s=100.0), job("b1", "b", 4, 1, 10, time_limit_s=10.0)]
    cluster = Cluster(num_servers=1, gpus_per_server=4, exclusive=True)
    given = {"admission": SlurmMultifactor(backfill="slurm-backfill"), "queues": tenants(queue("a", 4), queue("b", 4))}
    result = simulate(Workload.of(jobs), cluster, timeline=True, **given)
    assert reservations(result, "b1").to_numpy().tolist() == [[1, 100]]
    assert reservations(result, "a1").empty


@pytest.mark.parametrize("name", ["slurm-multifactor:backfill=easy-backfill", "hived"])
def test_a_placement_that_would_not_be_asked_is_refused(name: str) -> None:
    given = {"admission": name, "queues": tenants(queue("a", 4)), "placement": "first-fit"}
    told = f"admission '{name}' does not ask placement 'first-fit'; expected one of the two"
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        simulate(Workload.of([job("a1", "a", 3, 0, 1)]), Cluster(num_servers=1), **given)


def test_without_a_planner_the_placement_is_asked() -> None:
    given = {"admission": "slurm-multifactor", "queues": tenants(queue("a", 4)), "placement": "first-fit"}
    result = simulate(Workload.of([job("a1", "a", 3, 0, 1)]), Cluster(num_servers=1), **given)
    assert result.gpus_of("a1") == (0, 1, 2)


def test_a_limit_of_gpus_holds() -> None:
    queues = tenants(queue("a", 2, limit=0), queue("b", 2))
    jobs = [job(f"a{n}", "a", 1, 0, 10) for n in range(3)]
    for policy in (SlurmMultifactor(), Kai(), Volcano(), Volcano(plugin="capacity")):
        assert sorted(starts(queues, jobs, policy).values()) == [0, 0, 10]


@pytest.mark.parametrize("policy", [Kai(), Volcano()])
def test_kinds_are_refused(policy: Any) -> None:
    queues = Tenants(queues=(Queue(name="a", quotas={"a100": Quota(gpus=4)}),))
    with pytest.raises(InputError, match="expected quotas of 'any', and one root queue"):
        starts(queues, [job("a1", "a", 1, 0, 1)], policy)


def test_kai_lets_no_group_take_more_than_its_share_from_a_poorer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2 more of 4 it would have 1.5 times its share; the other, without the one that would go, 1.25 times."""
    mine, other = (SimpleNamespace(name=name, used=used, quota=4) for name, used in (("mine", 4), ("other", 6)))
    monkeypatch.setattr(kai, "below_common", lambda *_: (mine, other))
    monkeypatch.setattr(kai, "used_below", lambda node: node.used)
    monkeypatch.setattr(kai, "_quota", lambda node: node.quota)
    run = kai._KaiRun(Kai())
    run.shares = {"mine": 4.0, "other": 4.0}
    holding: Any = SimpleNamespace(job=SimpleNamespace(priority=0), num_gpus=1)
    wanted: list[Any] = [SimpleNamespace(node=None, gpus=gpus) for gpus in (2, 0)]
    assert [run.gives_way(holding, SimpleNamespace(), need) for need in wanted] == [False, True]  # type: ignore[arg-type]
    run.shares["other"] = 8.0  # within its share, but not its quota, it gives way to who stays within its own
    assert [run.gives_way(holding, SimpleNamespace(), need) for need in wanted] == [False, True]  # type: ignore[arg-type]


def test_kai_gives_a_last_gpu_that_two_queues_share_to_the_first() -> None:
    leaves: list[Any] = [
        SimpleNamespace(name=name, children=[], queue=SimpleNamespace(weight=1.0), leaves=list) for name in "ab"
    ]
    run = kai._KaiRun(Kai())
    run.shares = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kai, "requested_below", lambda *_: 3)
        patch.setattr(kai, "_limit", lambda _: 3)
        patch.setattr(kai, "_quota", lambda _: 0)
        run._divide(leaves, 3.0, 3, SimpleNamespace())  # type: ignore[arg-type]
    assert run.shares == {"a": 2.0, "b": 1.0}


@pytest.mark.parametrize("name", ["max_age_s", "half_life_s", "calc_period_s"])
def test_priorities_of_slurm_have_no_time_of_0_to_divide_by(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0.0"):
        SlurmMultifactor(**{name: 0.0})


@pytest.mark.parametrize(("own", "below", "quota"), [(None, None, 0), (None, 3, 3), (5, 3, 5), (5, None, 5)])
def test_the_quota_of_a_group_of_kai_is_its_own_or_that_of_its_queues(
    own: int | None, below: int | None, quota: int
) -> None:
    group, leaf = (
        QuotaNode(Queue(name=name, quotas={} if gpus is None else {"any": Quota(gpus=gpus)}))
        for name, gpus in (("group", own), ("queue", below))
    )
    group.children.append(leaf)
    group.sum_up()
    assert kai._quota(group) == quota


def test_a_tree_of_queues_knows_its_heights_and_ends_with_its_run() -> None:
    parents = {"root": None, "team": "root", "a": "team", "b": "root"}
    tree = QuotaTree(Tenants(queues=tuple(Queue(name=name, parent=above) for name, above in parents.items())))
    root = tree["root"]
    before, heights, after = sys.getrefcount(root), QuotaArrays(tree).heights.tolist(), sys.getrefcount(root)
    assert heights == [2, 1, 0, 0, 0]
    assert before == after
