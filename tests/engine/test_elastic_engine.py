"""Elastic jobs in the engine: against the reference simulator, to the nanosecond, and cases worked out by hand."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from jobs_by_hand import Fixed, data_parallel_job, elastic_job
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import ElasticSetting, elastic_settings
from tiers import examples

import ddlsched
from ddlsched.cluster.capacity import CapacityTrace, Presence
from ddlsched.engine import build, driver
from ddlsched.engine.field_values import JobState
from ddlsched.engine.rescaling import ElasticJobs
from ddlsched.policies.doors import DROP, Allocation
from ddlsched.policies.elastic_views import ElasticJobView
from ddlsched.results.result import PHASES, Result
from ddlsched.results.slices import compute_slices
from ddlsched.testing import python_form
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob
from ddlsched.workload.job import Workload


@pytest.mark.long
@given(elastic_settings())
@hypothesis_settings(max_examples=examples(35, by_default=15))
def test_agrees_with_the_reference(setting: ElasticSetting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))


@pytest.mark.long
@given(elastic_settings())
@hypothesis_settings(max_examples=examples(12, by_default=4))
def test_agrees_with_the_reference_when_every_policy_is_called_in_python(setting: ElasticSetting) -> None:
    assert_agrees(run_engine(setting, python=True), run_reference(setting))


@pytest.mark.long
@given(elastic_settings())
@hypothesis_settings(max_examples=examples(10, by_default=4))
def test_agrees_with_the_reference_when_every_array_has_to_grow(setting: ElasticSetting) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_FIRST_RESIDENTS", 1)
        patch.setattr(build, "_FIRST_ENTRIES", 1)
        patch.setattr(driver, "_SLICES", 8)
        assert_agrees(run_engine(setting, timeline=True), run_reference(setting))


@pytest.mark.long
@given(elastic_settings())
@hypothesis_settings(max_examples=examples(12, by_default=4))
def test_what_must_hold_of_every_run(setting: ElasticSetting) -> None:
    """A job's time is all told; its samples are trained; a GPU has one elastic job and no other, and is there."""
    result = run_engine(setting, timeline=True)
    for row, job in zip(result.jobs.itertuples(), setting.workload, strict=True):
        if row.state == "finished":
            assert sum(getattr(row, phase) for phase in PHASES) == pytest.approx(row.jct_s, abs=1e-9)
            iterations = np.sum(result.finished.state.jobs.iterations[result.number_of(job.job_id)])
            assert not isinstance(job, ElasticJob) or iterations >= job.samples / job.largest_batch(job.max_gpus)
    elastic = {n for n, job in enumerate(setting.workload) if isinstance(job, ElasticJob)}
    stays = result.finished.stays
    for stay in stays:
        for other in stays:
            meet = stay is not other and max(stay.from_ns, other.from_ns) < min(stay.to_ns, other.to_ns)
            if meet and elastic & {stay.job, other.job}:
                assert not set(stay.gpus) & set(other.gpus)
        for server, gone_ns, back_ns in result.finished.outages:
            if gone_ns < stay.to_ns and back_ns > stay.from_ns:
                assert server not in result.cluster.server_of_gpu[list(stay.gpus)]
    slices = compute_slices(result)
    assert slices["end_ns"].sum() - slices["start_ns"].sum() == result.finished.busy_ns.sum()


# ---- cases worked out by hand


@dataclasses.dataclass(frozen=True, kw_only=True)
class At:
    """From each time on, these allocations, by job."""

    times_s: tuple[float, ...]
    answers: tuple[dict[str, Allocation], ...]

    def allocate(self, jobs, capacity, now_s):
        there = {view.job_id for view in jobs}
        answer = {}
        for time_s, given_then in zip(self.times_s, self.answers, strict=True):
            answer = given_then if now_s >= time_s else answer
        return {job_id: given_now for job_id, given_now in answer.items() if job_id in there}

    def wake_s(self, now_s):
        return min((time_s for time_s in self.times_s if time_s > now_s), default=None)


def run_by_hand(*jobs, at, servers=4, gpus_per_server=1, **options) -> Result:
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=gpus_per_server)
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        cluster,
        allocation=At(times_s=tuple(at), answers=tuple(at.values())),
        communication="bounded-overlap:limit=1",
        contention=ddlsched.Linear(latency_s=0.0, per_byte_s=1e-9),
        **options,
    )


def test_a_job_that_waits_for_its_first_gpus_is_sampled_as_queued() -> None:
    samples = run_by_hand(elastic_job(), at={0: {}, 2.0: {"a": Allocation(1)}}).samples
    assert samples["queued_jobs"].tolist() == (samples["time_s"] < 2.0).tolist()
    assert samples["queued_jobs"].any()


def test_a_resize_costs_the_iteration_under_way_and_the_rescale_time() -> None:
    # Iterations of 10 samples take 0.1 s: 10 of them by 1.05 s, half an iteration lost. From then 2 s of rescaling,
    # then 20 samples each 0.1 s: the other 900 take 45 iterations, 4.5 s.
    cost = ConstantRescaleCost(up_s=2.0)
    run = run_by_hand(elastic_job(), at={0: {"a": Allocation(1)}, 1.05: {"a": Allocation(2)}}, rescale_cost=cost)
    row = run.jobs.iloc[0]
    assert row.jct_s == pytest.approx(1.05 + 2.0 + 4.5, abs=1e-9)
    assert (row.restart_s, row.restarts, row.state) == (2.0, 1, "finished")
    assert row.lost_s == pytest.approx(0.05, abs=1e-9)
    assert row.compute_s == pytest.approx(1.05 + 4.5, abs=1e-9)
    (first, _), (second, cost_s) = [(change, ns / 1e9) for _, change, ns in run.finished.rescales]
    assert (first.is_first, first.to_gpus, second.from_gpus, second.to_gpus, cost_s) == (True, 1, 1, 2, 2.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnsRound:
    """By number before 0.3 s, the other way round afterwards."""

    def key(self, job, now_s):
        return job.number if now_s < 0.3 else -job.number


@pytest.mark.long
@pytest.mark.parametrize("make", [TurnsRound, lambda: python_form(TurnsRound())])
def test_transfers_that_an_elastic_job_lets_go_ahead_go_in_the_order_of_now(make) -> None:
    # From 0.05 s on e sends for 1 s; a and b, ready at 0.11 s and 0.12 s, wait for its links. At 0.5 s e is stopped: by
    # now b goes first, 0.1 s, then a. (When b became ready, a went before it.)
    sends = [
        data_parallel_job(id_, 2, backward_s=backward_s, message_bytes=1e8)
        for id_, backward_s in (("a", 0.11), ("b", 0.12))
    ]
    elastic = elastic_job("e", samples=10, min_gpus=2, max_gpus=2, gpu_batch=10, message_bytes=1e9)
    at = {0: {"e": Allocation(2, 10, (0, 3))}, 0.5: {}, 2: {"e": Allocation(2, 10, (0, 3))}}
    placement = Fixed(gpus={"a": [1, 4], "b": [2, 5]})
    run = run_by_hand(elastic, *sends, at=at, servers=2, gpus_per_server=3, placement=placement, order=make())
    finish_s = run.jobs.set_index("job_id")["finish_s"]
    assert (finish_s["b"], finish_s["a"]) == pytest.approx((0.6, 0.7), abs=1e-9)


def test_the_batch_changes_the_iteration_but_not_the_samples() -> None:
    # 10 samples in 0.1 s until 1 s; then batches of 7: the other 900 take 129 iterations of 0.07 s, the last a part.
    run = run_by_hand(elastic_job(), at={0: {"a": Allocation(1, 10)}, 1.0: {"a": Allocation(1, 7)}})
    assert run.jobs["finish_s"].tolist() == pytest.approx([1.0 + 129 * 0.07], abs=1e-9)
    assert run.finished.state.jobs[0].iterations == 10 + 129


def test_a_stopped_job_goes_on_from_where_it_was() -> None:
    cost = ConstantRescaleCost(start_s=0.5, resume_s=0.25)
    at = {0: {"a": Allocation(1)}, 1.5: {}, 3: {"a": Allocation(1)}}
    row = run_by_hand(elastic_job(), at=at, rescale_cost=cost).jobs.iloc[0]
    # 0.5 s to start, 10 iterations, stopped from 1.5 to 3 s, 0.25 s to resume, the other 90.
    assert (row.finish_s, row.queueing_s, row.restart_s) == pytest.approx((3.25 + 9.0, 1.5, 0.75), abs=1e-9)


@pytest.mark.parametrize(
    ("commit", "warned", "safe"),
    # At 1.05 s 10 iterations have ended. With a commit every 4, 8 of them are safe, unless there is a warning.
    [(1, False, 10), (4, False, 8), (4, True, 10)],
)
def test_a_lost_server_costs_what_was_not_committed(commit: int, warned: bool, safe: int) -> None:
    capacity = CapacityTrace(
        (Presence(server=0, leave_s=1.05, warned=warned), Presence(server=1), Presence(server=2, join_s=9.0))
    )
    run = run_by_hand(
        elastic_job(max_gpus=2, min_gpus=1),
        at={0: {"a": Allocation(2)}, 1.05: {"a": Allocation(1)}},
        capacity=capacity,
        servers=3,
        disturbances=ddlsched.Disturbances(checkpoint_iterations=commit),
        rescale_cost=ConstantRescaleCost(down_s=1.0),
    )
    # 20 samples each 0.1 s on two GPUs, then 10 each 0.1 s.
    left = 1000 - 20 * safe
    assert run.jobs["finish_s"].tolist() == pytest.approx([1.05 + 1.0 + left / 100], abs=1e-9)
    change = run.finished.rescales[1][1]
    assert (change.lost_gpus, change.from_gpus, change.to_gpus, change.lost_samples) == (1, 2, 1, 20 * (10 - safe))
    assert run.gpus_of("a") == (1,)
    assert run.jobs["lost_s"].tolist() == pytest.approx([0.05 + 0.1 * (10 - safe)], abs=1e-9)


def test_elastic_jobs_on_several_servers_contend() -> None:
    # On two servers each iteration is 0.1 s of compute and 0.1 s of an all-reduce; with limit=1 and a shared server
    # they would alternate, but elastic jobs have their GPUs, here their servers, for themselves.
    jobs = [elastic_job(name, message_bytes=1e8, samples=200, max_gpus=2) for name in "ab"]
    at = {0: {"a": Allocation(2), "b": Allocation(2)}}
    assert run_by_hand(*jobs, at=at).jobs["finish_s"].tolist() == pytest.approx([2.0, 2.0])
    # On two servers of two GPUs, a job on one GPU of each: now they share both network cards.
    at = {0: {"a": Allocation(2, gpus=(0, 2)), "b": Allocation(2, gpus=(1, 3))}}
    shared = run_by_hand(*jobs, at=at, servers=2, gpus_per_server=2)
    assert shared.jobs["finish_s"].tolist() == pytest.approx([2.0, 2.1])
    assert shared.jobs["network_wait_s"].tolist() == pytest.approx([0.0, 0.1])


def test_a_job_keeps_its_gpus_and_grows_nearby() -> None:
    at = {0: {"a": Allocation(2), "b": Allocation(1)}, 1: {"a": Allocation(3), "b": Allocation(1)}}
    run = run_by_hand(elastic_job("a"), elastic_job("b"), at=at, servers=3, gpus_per_server=3)
    stays = [stay.gpus for stay in run.finished.stays]
    assert stays == [(0, 1), (2,), (0, 1, 3)]


def test_rigid_jobs_get_what_elastic_ones_leave() -> None:
    iteration = ddlsched.DataParallelIteration(forward_s=1.0, backward_s=0.0, message_bytes=0.0)
    rigid = ddlsched.Job(job_id="r", arrival_s=0.0, num_gpus=2, iterations=1, iteration=iteration, gpu_memory_mb=0.0)
    at = {0: {"a": Allocation(3)}, 2: {"a": Allocation(2)}}
    run = run_by_hand(elastic_job("a"), rigid, at=at, placement="first-fit")
    assert run.jobs["start_s"].tolist() == [0.0, 2.0]
    assert run.gpus_of("r") == (2, 3)


def test_dropped_jobs_are_told_apart() -> None:
    @dataclasses.dataclass(frozen=True)
    class DropsB:
        def allocate(self, jobs, capacity, now_s):
            return {view.job_id: DROP if view.job_id == "b" else Allocation(1) for view in jobs}

    jobs = ddlsched.Workload.of([elastic_job("a"), elastic_job("b", arrival_s=3.0)])
    run = ddlsched.simulate(jobs, ddlsched.Cluster(num_servers=4, gpus_per_server=1), allocation=DropsB())
    assert run.jobs["state"].tolist() == ["finished", "dropped"]
    assert np.isnan(run.jobs["jct_s"].iloc[1])


def test_item_27_a_view_says_by_default_what_a_job_is_like_that_never_had_a_gpu() -> None:
    seen: list[ElasticJobView] = []

    class Looks:
        def allocate(self, jobs, capacity, now_s):
            seen.extend(jobs)
            return {view.job_id: Allocation(1) for view in jobs}

    jobs = ddlsched.Workload.of([elastic_job("a"), elastic_job("b", arrival_s=1.0)])
    ddlsched.simulate(jobs, ddlsched.Cluster(num_servers=2, gpus_per_server=1), allocation=Looks())
    for job in jobs:
        first = next(view for view in seen if view.job_id == job.job_id)
        assert first == ElasticJobView(job=first.job, number=first.number, samples_left=job.samples)


# ---- what is refused


def answering(answer):
    @dataclasses.dataclass(frozen=True)
    class Answers:
        def allocate(self, jobs, capacity, now_s):
            return answer

    return Answers()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"at 0.0 s, 1 elastic jobs: allocate answered None; expected a mapping"),
        ({"x": Allocation(1)}, r"job 'x'; expected elastic jobs that it was given"),
        ({"a": 2}, r"job 'a': is given 2; expected an Allocation, or DROP"),
        ({"a": Allocation(0)}, r"job 'a': is given 0 GPUs; expected 1 to 4"),
        ({"a": Allocation(5)}, r"job 'a': is given 5 GPUs; expected 1 to 4"),
        ({"a": Allocation(2, 21)}, r"job 'a': is given a batch of 21 on 2 GPUs; expected 2 to 20"),
        ({"a": Allocation(3)}, r"allocate answered 3 GPUs in all; expected at most the 2 that there are"),
        ({"a": Allocation(2, gpus=(0, 0))}, r"job 'a': is given the GPUs \(0, 0\); expected 2 different ones"),
        ({"a": Allocation(1, gpus=iter((0,)))}, r"is given the GPUs <tuple_iterator .*; expected 1 different ones"),
        ({"a": Allocation(1, gpus=0)}, r"is given the GPUs 0; expected 1 different ones"),
        ({"a": Allocation(2, gpus=(0, 7))}, r"job 'a': is given GPU 7; expected free ones, each once"),
    ],
)
def test_impossible_answers_are_refused(answer, message) -> None:
    workload, cluster = ddlsched.Workload.of([elastic_job()]), ddlsched.Cluster(num_servers=2, gpus_per_server=1)
    with pytest.raises(ddlsched.InvalidDecisionError, match=message):
        ddlsched.simulate(workload, cluster, allocation=answering(answer))


def test_an_allocation_policy_may_take_jobs_out_of_its_list() -> None:
    @dataclasses.dataclass(frozen=True)
    class TakesOut:
        def allocate(self, jobs, capacity, now_s):
            return {jobs.pop().job_id: Allocation(1) for _ in range(len(jobs))}

    result = ddlsched.simulate(ddlsched.Workload.of([elastic_job()]), allocation=TakesOut())
    assert result.jobs["finish_s"].notna().all()


def test_a_policy_that_waits_for_ever_is_an_error() -> None:
    with pytest.raises(ddlsched.SimulationError, match=r"allocation .*Answers\(\) keeps waiting with jobs a"):
        ddlsched.simulate(ddlsched.Workload.of([elastic_job()]), allocation=answering({}))


def test_what_is_missing_or_too_much_is_refused() -> None:
    elastic, rigid = ddlsched.Workload.of([elastic_job()]), ddlsched.microsoft_160(seed=1, scale=0.01)
    with pytest.raises(ddlsched.InputError, match="elastic jobs but no allocation="):
        ddlsched.simulate(elastic)
    with pytest.raises(ddlsched.InputError, match="an allocation policy but no elastic jobs"):
        ddlsched.simulate(rigid, allocation="elastic-scaling")
    outages = ddlsched.Disturbances(outages=(ddlsched.Outage(server=0, from_s=0, to_s=1),))
    with pytest.raises(ddlsched.InputError, match="a capacity trace and failures of servers"):
        ddlsched.simulate(rigid, capacity=CapacityTrace.of([(0, 0, 9)]), disturbances=outages)
    too_large = ddlsched.Workload.of([elastic_job(min_gpus=40, max_gpus=50)])
    with pytest.raises(ddlsched.InputError, match="needs 40 GPUs, so it can never fit; expected at most the cluster's"):
        ddlsched.simulate(too_large, ddlsched.Cluster(num_servers=4, gpus_per_server=1), allocation=answering({}))


@pytest.mark.parametrize("cost", [lambda change: -1.0, lambda change: None, lambda change: float("nan")])
def test_a_cost_that_is_no_time_is_refused(cost) -> None:
    workload = ddlsched.Workload.of([elastic_job()])
    with pytest.raises(ddlsched.PluginError, match=r"rescale cost .* job 'a': answered .*; expected seconds from 0"):
        ddlsched.simulate(workload, allocation=answering({"a": Allocation(1)}), rescale_cost=cost)


def test_item_27_a_job_is_gone_from_the_instant_in_which_it_finished() -> None:
    workload = Workload.of([elastic_job(), dataclasses.replace(elastic_job(), job_id="b")])
    columns: Any = SimpleNamespace(state=np.array([JobState.RUNNING, JobState.RUNNING]))
    jobs = ElasticJobs(workload, columns)
    jobs.take_in(0, JobState.FINISHED, 2)
    columns.state[0] = JobState.FINISHED
    jobs.take_in(1, JobState.FINISHED, 1)
    assert [*jobs.there] == [1]
