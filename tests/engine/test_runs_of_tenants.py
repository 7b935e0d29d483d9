"""Runs with tenants: preemption by an admission policy, what it costs, and answers that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ddlsched import Cluster, DataParallelIteration, Disturbances, Job, Preemption, Queue, Quota, Tenants, Workload
from ddlsched import simulate as run
from ddlsched.cluster.disturbances import Outage
from ddlsched.errors import InputError, InvalidDecisionError, PluginError, SimulationError
from ddlsched.policies.tenants_view import Admission, NotAdmitted, TenantsView, Victim
from ddlsched.policies.views import ClusterView
from topologies.leaf_spine import LeafSpine

STEP = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=0)
CLUSTER = Cluster(num_servers=2, gpus_per_server=4, exclusive=True)


def tenants(**rules: Any) -> Tenants:
    return Tenants(
        queues=(
            Queue(name="all"),
            Queue(name="a", parent="all", quotas={"any": Quota(gpus=4)}, preemption=Preemption(**rules)),
            Queue(name="b", parent="all", quotas={"any": Quota(gpus=4)}),
        )
    )


def job(job_id: str, queue: str | None, gpus: int, arrival_s: float, **more: Any) -> Job:
    given = {"iterations": 100, "iteration": STEP, "gpu_memory_mb": 1.0, "queue": queue} | more
    return Job(job_id=job_id, arrival_s=arrival_s, num_gpus=gpus, **given)


JOBS = Workload.of([job("b1", "b", 4, 0), job("b2", "b", 4, 1), job("a1", "a", 4, 4.4)])


def test_a_job_that_is_preempted_goes_on_later_and_loses_the_iteration_under_way() -> None:
    """At 4.4 s b2 has ended 11 iterations of 0.3 s; the 12th is lost, and it takes 2 s to start again at 30 s."""
    result = run(JOBS, CLUSTER, queues=tenants(reclaim="any"), disturbances=Disturbances(restart_s=2.0, state_mb=0.0))
    jobs = result.jobs.set_index("job_id")
    assert jobs["finish_s"].tolist() == pytest.approx([30.0, 30.0 + 2.0 + 0.3 * 89, 4.4 + 30.0])
    assert jobs["restarts"].tolist() == [0, 1, 0]
    assert [stay.ended_by for stay in result.finished.stays if stay.ended_by] == [
        "preempted for job a1: reclaimed quota that it had borrowed"
    ]


@pytest.mark.long
@pytest.mark.parametrize("placement", ["levels", "kueue-topology"])
def test_who_finds_no_rack_holds_nobody_back_that_needs_none(placement: str) -> None:
    racks = replace(CLUSTER, topology=LeafSpine(servers_per_leaf=1))
    whole = {"required_levels": "rack"}
    jobs = [job("b1", "b", 3, 0), job("b2", "b", 3, 0, **whole), job("a1", "a", 2, 1, **whole), job("a2", "a", 2, 2)]
    result = run(Workload.of(jobs), racks, queues=tenants(), placement=placement).jobs
    assert result["start_s"].tolist() == [0.0, 0.0, 30.0, 2.0]


RACK = {"required_levels": "rack", "priority": 1}
FOR_ROOM = {
    "of two servers of b's jobs one is emptied: b4 stays, though it started last": (
        {"reclaim": "any"},
        [("b1", "b", 2, 0), ("b2", "b", 3, 1), ("b3", "b", 1, 2), ("b4", "b", 2, 3), ("a1", "a", 4, 4)],
        [0, 1, 1, 0, 0],
    ),
    "its quota would do, but GPUs are free on two servers": (
        {"within_queue": "lower-priority"},
        [("a0", "a", 1, 0), ("b1", "b", 2, 1), ("b2", "b", 3, 2), ("a1", "a", 2, 4)],
        [1, 0, 0, 0],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("level", "restarts"), [(None, [0, 0, 0]), ("rack", [1, 0, 0])])
def test_who_prefers_a_level_has_others_stop_where_quotas_are_more_than_the_cluster(
    level: str | None, restarts: list[int]
) -> None:
    """Its queue has two GPUs left, the cluster none; quotas alone decide for a job that names no level."""
    one = replace(CLUSTER, num_servers=1, topology=LeafSpine(servers_per_leaf=1))
    jobs = [job("a0", "a", 2, 0), job("b1", "b", 2, 1), job("a1", "a", 2, 2, priority=1, preferred_levels=level)]
    result = run(Workload.of(jobs), one, queues=tenants(within_queue="lower-priority"), placement="kueue-topology")
    assert result.jobs["restarts"].tolist() == restarts


@pytest.mark.long
@pytest.mark.parametrize("case", FOR_ROOM)
def test_victims_leave_room_in_the_level_that_a_job_requires(case: str) -> None:
    rules, told, restarts = FOR_ROOM[case]
    racks = replace(CLUSTER, topology=LeafSpine(servers_per_leaf=1))
    jobs = [job(*each, **(RACK if each[0] == "a1" else {})) for each in told]
    policies = {"placement": "kueue-topology", "admission": "kueue"}
    result = run(Workload.of(jobs), racks, queues=tenants(**rules), **policies).jobs
    assert result["restarts"].tolist() == restarts
    assert result["start_s"].tolist()[-1] == 4.0


@pytest.mark.parametrize(("recovery", "again_s"), [("wait", 20.0), ("wait:patience_s=4", 14.0)])
def test_a_job_that_waits_for_its_server_keeps_its_quota(recovery: str, again_s: float) -> None:
    """From 10 to 20 s b1 has no server; a2, which could run on the third one, has no quota until a1 gives its."""
    jobs = Workload.of([job("b1", "b", 4, 0), job("a1", "a", 4, 0), job("a2", "a", 4, 12)])
    disturbances = Disturbances(outages=(Outage(server=0, from_s=10, to_s=20),), recovery=recovery)
    result = run(jobs, replace(CLUSTER, num_servers=3), queues=tenants(), disturbances=disturbances).jobs
    assert result["start_s"].tolist() == [0.0, 0.0, 30.0]
    assert result["finish_s"].tolist() == pytest.approx([again_s + 67 * 0.3, 30.0, 60.0])


def test_who_gives_way_at_a_level_is_where_a_spare_has_taken_its_job() -> None:
    """The job low goes on in the first rack when the third server fails; there another server is free."""
    alone = Queue(name="q", quotas={"any": Quota(gpus=4)}, preemption=Preemption(within_queue="lower-priority"))
    racks = Cluster(num_servers=4, gpus_per_server=1, topology=LeafSpine(servers_per_leaf=2), exclusive=True)
    asks = {"first": (0, 50, 0, None), "low": (1, 500, 0, None), "high": (2, 500, 5, None), "rack": (20, 10, 3, "rack")}
    jobs = [
        job(name, "q", 1 + (level is not None), at_s, iterations=iterations, priority=priority, required_levels=level)
        for name, (at_s, iterations, priority, level) in asks.items()
    ]
    failed = Disturbances(outages=(Outage(server=2, from_s=10.0),), recovery="spares:count=1")
    told = {"queues": Tenants(queues=(alone,)), "admission": "kueue", "placement": "kueue-topology"}
    result = run(Workload.of(jobs), racks, disturbances=failed, **told)
    assert [stay.gpus for stay in result.finished.stays if stay.job == 1][:2] == [(2,), (1,)]
    assert result.jobs["start_s"].tolist() == [0.0, 1.0, 2.0, 20.0]


@dataclass(frozen=True, kw_only=True)
class OnOneServer:
    """A job goes on one server; one of a GPU moves there from the second server at 5 s."""

    def place(self, job: Any, cluster: ClusterView) -> list[int] | None:
        servers = ([gpu for gpu in cluster.eligible_gpus(job) if gpu // 2 == server] for server in range(2))
        return next((gpus[: job.num_gpus] for gpus in servers if len(gpus) >= job.num_gpus), None)

    def wake_s(self, now_s: float) -> float | None:
        return 5.0 if now_s < 5 else None

    def moves(self, running: Any, cluster: ClusterView) -> list[tuple[Any, list[int]]]:
        return [(each, [1]) for each in running if each.gpus == (2,) and cluster.now_s >= 5]


def test_who_found_no_place_is_asked_about_again_when_others_move() -> None:
    small = Cluster(num_servers=2, gpus_per_server=2, exclusive=True)
    asks = {"a1": (2, 0, 10), "b1": (1, 0, 100), "a2": (1, 3.5, 100), "b2": (2, 4, 10)}
    jobs = [job(name, name[0], gpus, at_s, iterations=many) for name, (gpus, at_s, many) in asks.items()]
    result = run(
        Workload.of(jobs), small, queues=tenants(), placement=OnOneServer(), disturbances=Disturbances(state_mb=0.0)
    )
    assert result.jobs["start_s"].tolist() == [0.0, 0.0, 3.5, pytest.approx(5.1)]


def test_without_the_right_to_reclaim_it_waits_and_says_for_whom() -> None:
    result = run(JOBS, CLUSTER, queues=tenants())
    assert result.jobs["start_s"].tolist() == [0.0, 1.0, 30.0]
    assert [each.reason for each in result.finished.refused] == ["quota: b borrowed it"]


def test_what_is_guaranteed_and_lent_may_be_more_than_the_cluster_has() -> None:
    """The quota would do, and no place is found: nobody is stopped, and the job starts when there is one."""
    result = run(JOBS, replace(CLUSTER, num_servers=1), queues=tenants(reclaim="never"))
    assert result.jobs["start_s"].tolist() == [0.0, 30.0, 60.0]
    assert {each.reason for each in result.finished.refused} == {
        "the placement found no place, though the quota would do"
    }


def test_quotas_are_by_kind_of_gpu() -> None:
    from ddlsched import Server

    kinds = {"fast": Quota(gpus=2), "slow": Quota(gpus=4)}
    queues = Tenants(queues=(Queue(name="a", quotas=kinds),))
    cluster = Cluster(servers=(Server(gpu_kind="slow"), Server(gpu_kind="fast")), exclusive=True)
    result = run(Workload.of([job(str(n), "a", 2, n) for n in range(3)]), cluster, queues=queues)
    assert [result.finished.gpus[n] for n in range(3)] == [(4, 5), (0, 1), (2, 3)]


def test_quota_is_kept_whatever_fails(tmp_path: Any) -> None:
    """Servers that leave and come back: nobody uses more than its quota at any time, and every job ends."""
    rng = np.random.default_rng(3)
    jobs = [
        job(str(n), str(rng.choice(["a", "b"])), int(rng.integers(1, 5)), float(n), priority=int(rng.integers(3)))
        for n in range(24)
    ]
    rules = {"within_queue": "lower-priority", "reclaim": "any", "borrow": "lower-priority"}
    broken = Disturbances(server_mtbf_s=40.0, server_repair_s=5.0, restart_s=1.0)
    result = run(Workload.of(jobs), CLUSTER, queues=tenants(**rules), disturbances=broken, seed=4)
    assert (result.jobs["state"] == "finished").all()
    assert any("preempted" in stay.ended_by for stay in result.finished.stays)
    changes = sorted({time for stay in result.finished.stays for time in (stay.from_ns, stay.to_ns)})
    for time_ns in changes:
        used = sum(len(stay.gpus) for stay in result.finished.stays if stay.from_ns <= time_ns < stay.to_ns)
        assert used <= 8


@pytest.mark.parametrize(("queue", "parts"), [(None, ["has no queue", "a, b"]), ("bb", ["'bb'"]), ("all", ["'all'"])])
def test_a_job_of_no_queue_is_refused(queue: str | None, parts: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        run(Workload.of([job("x", queue, 1, 0)]), CLUSTER, queues=tenants())
    for part in ["row 1", "job 'x'", *parts]:
        assert part in str(refused.value)


def test_admission_without_queues_is_refused() -> None:
    with pytest.raises(InputError, match="expected queues as well"):
        run(JOBS, CLUSTER, admission="kueue")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers what it is told to at 4.4 s, and before lets everybody start."""

    what: str

    def admit(self, view: TenantsView, cluster: ClusterView) -> Iterator[Any]:
        waiting = [job for leaf in view.tenants.leaves for job in view.pending.jobs(leaf)]
        if view.now_s < 4:
            yield from (Admission(job) for job in waiting)
            return
        (mine,) = waiting
        running = view.running("b")[0].job
        yield {
            "text": "start a1",
            "running": Admission(running),
            "kind": Admission(mine, "h100"),
            "victim twice": Admission(mine, victims=(Victim(running, ""), Victim(running, ""))),
            "victim waits": Admission(mine, victims=(Victim(mine, ""),)),
            "taken": Admission(mine, gpus=(0, 1, 2, 3)),
            "refused runs": NotAdmitted(running, ""),
        }[self.what]


@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("text", "admit answered 'start a1'; expected Admission"),
        ("running", "a job that does not wait"),
        ("refused runs", "a job that does not wait"),
        ("kind", "the kind 'h100'; expected one of any"),
        ("victim twice", "expected jobs that ran when the round began, each once"),
        ("victim waits", "expected jobs that ran when the round began, each once"),
        ("taken", "answered GPU 0, which has a job"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(what: str, part: str) -> None:
    with pytest.raises(InvalidDecisionError) as refused:
        run(JOBS, CLUSTER, queues=tenants(), admission=Answers(what=what))
    assert part in str(refused.value)
    assert "4.4 s" in str(refused.value)


def test_a_policy_that_raises_is_named() -> None:
    with pytest.raises(PluginError, match=r"raised KeyError at 4\.4 s, 1 jobs that wait: 'nothing'"):
        run(JOBS, CLUSTER, queues=tenants(), admission=Answers(what="nothing"))


@dataclass(frozen=True, kw_only=True)
class Nowhere:
    """Places nobody where it could be: the GPUs that it answers do not exist."""

    def place(self, job: Any, cluster: ClusterView) -> list[int]:
        return list(range(100, 100 + job.num_gpus))


def test_a_placement_that_admission_asks_is_blamed_for_its_own_answer() -> None:
    with pytest.raises(InvalidDecisionError, match=r"^placement .*Nowhere.* at 0\.0 s, job 'b1': "):
        run(JOBS, CLUSTER, queues=tenants(), admission="slurm-multifactor", placement=Nowhere())


def test_a_queue_that_would_borrow_more_than_it_may_is_refused() -> None:
    limited = Tenants(queues=(Queue(name="r"), Queue(name="b", parent="r", quotas={"any": Quota(borrowing_limit=6)})))
    jobs = Workload.of([job("b1", "b", 4, 0), job("b2", "b", 4, 1)])
    with pytest.raises(InvalidDecisionError, match="queue 'b' would use 8 GPUs; expected at most 0 and 6 borrowed"):
        run(jobs, CLUSTER, queues=limited, admission=Answers(what="text"))


def test_a_placement_of_whole_rounds_is_refused_beside_queues() -> None:
    with pytest.raises(
        InputError, match=r"expected one that is asked about a job beside queues, .*slurm-multifactor:backfill"
    ):
        run(JOBS, CLUSTER, queues=tenants(), placement="slurm-backfill")


@pytest.mark.parametrize("order", ["stopping-tiresias", "stopping-srtf", "make-room"])
def test_an_order_that_stops_jobs_is_refused_beside_queues(order: str) -> None:
    """It stopped jobs every minute for one that its queue let never start, which took 8 times as long or more."""
    with pytest.raises(InputError, match=r"order .* stops running jobs, .* admission Volcano.* says who stops"):
        run(JOBS, CLUSTER, queues=tenants(), admission="volcano", order=order, placement="whole-servers")


def test_queues_that_wait_for_each_other_are_told_with_why() -> None:
    """By `proportion` each queue deserves half of what both ask for, and each job needs all."""
    halves = [job(name, name[0], 8, 0) for name in ("a1", "b1")]
    with pytest.raises(SimulationError, match=r"at 0.0 s .* admission Volcano.* a1 \(share: a has its share\), b1 \("):
        run(Workload.of(halves), CLUSTER, queues=tenants(), admission="volcano")


def test_only_jobs_of_queues_that_may_preempt_go_first_by_qos_under_slurm() -> None:
    """a's and b's job wait for all GPUs, b's for longer; only a rule by which a preempts lets its job go first."""
    waiting = [job("first", "a", 8, 0), job("a2", "a", 8, 1, priority=5), job("b2", "b", 8, 0.5)]
    starts = [
        run(Workload.of(waiting), CLUSTER, queues=tenants(**rules), admission="slurm-multifactor:qos_weight=0").jobs[
            "start_s"
        ]
        for rules in ({}, {"borrow": "lower-priority"}, {"within_queue": "lower-priority"})
    ]
    assert [bool(start[1] < start[2]) for start in starts] == [False, False, True]
