"""Iterations and periods that are skipped over: nothing that a run reports depends on it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from itertools import product
from typing import cast

import pandas as pd
import pytest
import tiers
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs_by_hand import Fixed
from policies_of_users import SmallMessages
from runs_of_settings import assert_agrees, run_engine, run_reference
from strategies import COMMUNICATIONS, ORDERS, Setting, settings
from tiers import examples, tried

import ddlsched
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.interference import UniformInterference
from ddlsched.engine import build, driver
from ddlsched.network.contention import Linear, ten_gigabit_ethernet
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.results.result import Result
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload
from topologies.star import Star


def assert_equal_tables(result: Result, expected: Result) -> None:
    for table in ("jobs", "gpus", "links", "samples", "placements"):
        pd.testing.assert_frame_equal(getattr(result, table), getattr(expected, table), obj=table, rtol=1e-12)
    assert result.summary()["events"] == expected.summary()["events"]
    counts = [run.finished.state.run[0].contended_iterations for run in (result, expected)]
    assert counts[0] == counts[1]


def stretched(setting: Setting, factor: int) -> Setting:
    """Return a run with so many times the iterations, and as much more time between whatever comes from outside."""
    jobs = [
        dataclasses.replace(job, iterations=job.iterations * factor, arrival_s=job.arrival_s * factor)
        for job in setting.workload
    ]
    outages = tuple(
        dataclasses.replace(outage, from_s=outage.from_s * factor, to_s=outage.to_s * factor)
        for outage in setting.disturbances.outages
        if isinstance(outage, Outage)
    )
    return dataclasses.replace(
        setting,
        workload=ddlsched.Workload(tuple(jobs)),
        disturbances=dataclasses.replace(setting.disturbances, outages=outages),
        until_s=setting.until_s and setting.until_s * factor,
    )


@pytest.fixture(scope="module", autouse=True)
def few_samples() -> Iterator[None]:
    """Let samples of the whole cluster's state, which end a jump, be rare from the beginning."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_FIRST_SAMPLE_NS", 16_000_000_000)
        yield


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(15, by_default=4))
def test_every_table_is_as_without_skipping(setting: Setting) -> None:
    assert_equal_tables(run_engine(setting), run_engine(setting, timeline=True))


def long_jobs(*sizes: int) -> Workload:
    iteration = DataParallelIteration(forward_s=0.01, backward_s=0.02, message_bytes=1e6)
    return Workload.of(
        [
            Job(
                job_id=str(n),
                arrival_s=5.0 * n,
                num_gpus=gpus,
                iterations=1000,
                iteration=iteration,
                gpu_memory_mb=1,
            )
            for n, gpus in enumerate(sizes)
        ]
    )


def simulated(workload: Workload, **options: object) -> Result:
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=2, gpu_memory_mb=1)
    return ddlsched.simulate(workload, cluster, scheduler="srsf-1", placement="first-fit", **options)


def test_jobs_that_meet_nobody_cost_a_few_rounds() -> None:
    result = simulated(long_jobs(1, 1, 4))
    assert result.skipped_iterations == 3 * 999
    assert result.contended_iterations == 0
    assert result.finished.state.run[0].rounds < 30
    assert_equal_tables(result, simulated(long_jobs(1, 1, 4), timeline=True))


def test_two_rings_on_one_server_are_contended_while_both_are_there() -> None:
    result = simulated(long_jobs(3, 3))
    expected = simulated(long_jobs(3, 3), timeline=True)
    assert_equal_tables(result, expected)
    assert 0 < result.skipped_iterations < 2000
    assert result.skipped_iterations + result.contended_iterations <= 2000
    assert result.contended_iterations == expected.contended_iterations


def test_what_ends_at_one_instant_ends_before_the_next_task_begins() -> None:
    # All take 10 ms. At 10 ms "first" and "a" end: "after-a" goes before "other", since its number is smaller, so that
    # "b" and "other" overlap and an iteration takes 30 ms.
    dag = IterationDag(
        (
            ComputeTask(name="after-a", duration_ns=10_000_000, after=("a",)),
            AllReduceTask(name="a", message_bytes=1e7),
            ComputeTask(name="first", duration_ns=10_000_000),
            ComputeTask(name="other", duration_ns=10_000_000),
            AllReduceTask(name="b", message_bytes=1e7, after=("after-a",)),
        )
    )
    job = Job(job_id="j", arrival_s=0, num_gpus=4, iterations=100, iteration=dag, gpu_memory_mb=1)
    contention = Linear(latency_s=0.0, per_byte_s=1e-9, penalty_per_byte_s=0.0)
    result = simulated(Workload.of([job]), contention=contention)
    assert result.skipped_iterations == 99
    assert result.jobs.loc[0, "finish_s"] == 3.0
    assert_equal_tables(result, simulated(Workload.of([job]), contention=contention, timeline=True))


def test_only_the_recorded_window_is_simulated_one_by_one() -> None:
    workload = long_jobs(1, 4)
    window, whole = simulated(workload, timeline=(20.0, 21.0)), simulated(workload, timeline=True)
    assert window.skipped_iterations > 1500
    kept = [s.tolist() for s in whole.finished.slices if s.end_ns > 20e9 and s.start_ns < 21e9]
    assert sorted(s.tolist() for s in window.finished.slices) == sorted(kept)


def test_policies_see_a_dormant_job_as_it_is() -> None:
    seen: list[tuple[int, ...]] = []

    class Curious:
        def place(self, job: JobView, cluster: ClusterView) -> list[int]:
            jobs = [resident for gpu in range(cluster.num_gpus) for resident in cluster.residents(gpu)]
            seen.append(tuple(r.iterations_left for r in jobs) + tuple(cluster.loads_ns()))
            return cluster.eligible_gpus(job)[: job.num_gpus]

    workload = long_jobs(1, 3, 1)
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=2, gpu_memory_mb=1)
    ddlsched.simulate(workload, cluster, scheduler="srsf-1", placement=Curious())
    skipping, seen = seen, []
    ddlsched.simulate(workload, cluster, scheduler="srsf-1", placement=Curious(), timeline=True)
    assert skipping == seen
    assert skipping[1][0] == 1000 - 166  # 5 s of 30 ms each


@pytest.mark.long
def test_a_task_that_began_earlier_among_other_jobs_is_no_earlier_state_of_the_same_task() -> None:
    # When "lone" runs a task that began beside more jobs, all else is as a period later. Its GPU was busy for longer.
    least = 1e-6  # takes the latency and no more
    twice = DataParallelIteration(forward_s=0.0, backward_s=0.0123456785, message_bytes=least)
    network = IterationDag(
        (
            *(AllReduceTask(name=f"t{n}", message_bytes=least) for n in range(3)),
            AllReduceTask(name="t", message_bytes=123456789.125),
        )
    )
    nothing = DataParallelIteration(forward_s=0.0, backward_s=0.0, message_bytes=least)
    compute = IterationDag(
        (AllReduceTask(name="t0", message_bytes=least), ComputeTask(name="t1", duration_ns=30_000_000))
    )
    lone = DataParallelIteration(forward_s=0.02, backward_s=0.01, message_bytes=least)
    kinds = ((2, 5, twice), (4, 5, network), (4, 25, nothing), (2, 25, compute), (1, 50, lone))
    jobs = [
        Job(job_id=str(n), arrival_s=0.0, num_gpus=gpus, iterations=iterations, iteration=iteration, gpu_memory_mb=0.0)
        for n, (gpus, iterations, iteration) in enumerate(kinds)
    ]
    options = {
        "placement": "list-scheduling",
        "order": "srsf",
        "communication": SmallMessages(),
        "contention": Linear(latency_s=0.000669, per_byte_s=8.56e-10, penalty_per_byte_s=2.35e-10),
        "interference": UniformInterference(share=0.3),
    }
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=1000.0)
    result = ddlsched.simulate(Workload.of(jobs), cluster, **options)
    assert result.finished.state.run[0].jumps > 0
    assert_equal_tables(result, ddlsched.simulate(Workload.of(jobs), cluster, timeline=True, **options))


@pytest.mark.long
@given(st.builds(stretched, settings(), st.sampled_from((5, 25, 60))))
@hypothesis_settings(max_examples=examples(25, by_default=4))
def test_every_table_of_a_long_run_is_as_without_skipping(setting: Setting) -> None:
    assert_equal_tables(run_engine(setting), run_engine(setting, timeline=True))


@pytest.mark.long
@given(st.builds(stretched, settings(), st.just(8)))
@hypothesis_settings(max_examples=examples(10, by_default=4))
def test_a_long_run_agrees_with_the_reference(setting: Setting) -> None:
    assert_agrees(run_engine(setting), run_reference(setting))


SENDS = (AllReduceTask(name="r", message_bytes=100e6),)
SENDS_THEN_COMPUTES = (
    AllReduceTask(name="r", message_bytes=20e6),
    ComputeTask(name="c", duration_ns=12_345_678, after=("r",)),
)
COMPUTES_THEN_SENDS = (
    ComputeTask(name="c", duration_ns=30_000_000),
    AllReduceTask(name="r", message_bytes=5e6, after=("c",)),
)
BOTH_AT_ONCE = (ComputeTask(name="c", duration_ns=30_000_000), AllReduceTask(name="r", message_bytes=10e6))


@st.composite
def rivals(draw: st.DrawFn) -> Setting:
    """Return a few jobs that meet for long enough to recur, and whose order changes in the meantime."""
    tasks = st.sampled_from((SENDS, SENDS_THEN_COMPUTES, COMPUTES_THEN_SENDS, BOTH_AT_ONCE))
    jobs = [
        Job(
            job_id=str(number),
            arrival_s=draw(st.sampled_from((0.0, 0.1, 1.0))),
            num_gpus=draw(st.integers(2, 3)),
            iterations=draw(st.integers(5, 40)),
            iteration=IterationDag(draw(tasks)),
            gpu_memory_mb=1.0,
        )
        for number in range(draw(st.integers(2, 3)))
    ]
    return dataclasses.replace(
        draw(settings(disturbed=False)),
        workload=Workload.of(jobs),
        cluster=ddlsched.Cluster(num_servers=4, gpus_per_server=draw(st.integers(1, 2)), gpu_memory_mb=1000.0),
    )


PAIRS = list(product(ORDERS, COMMUNICATIONS))
LENGTHS = list(product((6, 9), (5, 7, 12, 20)))


def by_default(pair: tuple[str, str]) -> bool:
    """Say of a quarter of the pairs, which has each order and each communication policy, that all runs try it."""
    return sum(divmod(PAIRS.index(pair), len(COMMUNICATIONS))) % 4 == 0


@pytest.mark.long
@given(rivals())
@hypothesis_settings(max_examples=examples(2, by_default=1))
def test_jumps_end_where_the_order_of_jobs_changes(setting: Setting) -> None:
    for order, communication in PAIRS if tiers.thorough else filter(by_default, PAIRS):
        ordered = dataclasses.replace(setting, order=order, communication=communication)
        assert_equal_tables(run_engine(ordered), run_engine(ordered, timeline=True))


@pytest.mark.long
@pytest.mark.parametrize(("order", "communication"), tried(PAIRS, lambda place: by_default(PAIRS[place])))
def test_a_jump_ends_before_two_jobs_change_places(order: str, communication: str) -> None:
    # One that mostly sends and one that mostly computes, whose keys fall at different speeds and cross sooner or later.
    sends = IterationDag((AllReduceTask(name="r", message_bytes=123e6),))
    computes = IterationDag(SENDS_THEN_COMPUTES)
    lengths = LENGTHS if tiers.thorough else LENGTHS[COMMUNICATIONS.index(communication) % 4 :: 4]
    for first, second in lengths:
        jobs = [
            Job(job_id=id_, arrival_s=at_s, num_gpus=3, iterations=iterations, iteration=iteration, gpu_memory_mb=0.0)
            for id_, at_s, iterations, iteration in (("a", 0.1, first, sends), ("b", 0.333, second, computes))
        ]
        setting = dataclasses.replace(contending(2, 0.0, order, communication), workload=Workload.of(jobs))
        setting = dataclasses.replace(setting, placement="first-fit")
        assert_equal_tables(run_engine(setting), run_engine(setting, timeline=True))


class OneAServer:
    """A worker on the first eligible GPU of each server."""

    def place(self, job: ddlsched.JobView, cluster: ddlsched.ClusterView) -> list[int]:
        first = {cluster.server_of(gpu): gpu for gpu in reversed(cluster.eligible_gpus(job))}
        return [first[server] for server in sorted(first)]


def contending(num_jobs: int, gpu_memory_mb: float, order: str, communication: str) -> Setting:
    """Return long jobs of the 64-GPU experiment's models, whose rings all use the same network cards."""
    models = list(dict.fromkeys(job.iteration for job in ddlsched.microsoft_160(seed=1)))
    jobs = [
        ddlsched.Job(
            job_id=str(n),
            arrival_s=0.1 * n,
            num_gpus=2,
            iterations=400 + 70 * n,
            iteration=models[n % len(models)],
            gpu_memory_mb=gpu_memory_mb,
        )
        for n in range(num_jobs)
    ]
    return Setting(
        workload=ddlsched.Workload.of(jobs),
        cluster=ddlsched.Cluster(num_servers=2, gpus_per_server=num_jobs, gpu_memory_mb=1000.0),
        topology=Star(),
        contention=ten_gigabit_ethernet(),
        placement=cast(str, OneAServer()),
        order=order,
        communication=communication,
        load_per_byte_s=None,
        disturbances=Disturbances(),
        until_s=None,
        seed=0,
    )


CONTENDING = [
    ("bounded-overlap:limit=1", 3),
    ("bounded-overlap:limit=2", 5),
    ("adadual", 3),
    ("preemptive:by=bytes", 3),
    ("preemptive:by=service", 3),
]


@pytest.mark.long
@pytest.mark.parametrize("shared_gpus", [False, True])
@pytest.mark.parametrize(
    ("order", "communication", "num_jobs"),
    tried(((order, *each) for order in ("srsf", "srtf", "fifo") for each in CONTENDING), lambda place: place % 2 == 0),
)
def test_iterations_of_contending_jobs_are_jumped_over(
    order: str, communication: str, num_jobs: int, shared_gpus: bool
) -> None:
    setting = contending(num_jobs, 100.0 if shared_gpus else 1000.0, order, communication)
    if shared_gpus:
        setting = dataclasses.replace(setting, interference=UniformInterference(share=0.25))
    result = run_engine(setting)
    assert_equal_tables(result, run_engine(setting, timeline=True))
    run = result.finished.state.run[0]
    assert run.jumped_iterations > run.contended_iterations / 10


@pytest.mark.long
@pytest.mark.parametrize(
    "communication",
    tried(["bounded-overlap:limit=1", "bounded-overlap:limit=2", "adadual"], lambda place: place != 1),
)
def test_a_run_that_jumps_agrees_with_the_reference(communication: str) -> None:
    setting = contending(5, 100.0, "srsf", communication)
    one_gpu_a_server = ddlsched.Cluster(num_servers=2, gpus_per_server=1, gpu_memory_mb=1000.0)
    setting = dataclasses.replace(setting, cluster=one_gpu_a_server, placement="first-fit")
    result = run_engine(setting)
    assert result.finished.state.run[0].jumped_iterations > 0
    assert_agrees(result, run_reference(setting))


@pytest.mark.parametrize("seed", range(6))
def test_runs_that_jump_and_refuse_agree_with_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    setting = contending(rng.randint(3, 5), 100.0, "srsf", ("bounded-overlap:limit=1", "adadual")[seed % 2])
    jobs = [
        dataclasses.replace(
            job, num_gpus=rng.randint(2, 3), iterations=rng.randint(40, 90), arrival_s=rng.choice((0.0, 0.1, 0.333))
        )
        for job in setting.workload
    ]
    cluster = ddlsched.Cluster(num_servers=3, gpus_per_server=len(jobs) // 2, gpu_memory_mb=1000.0)
    setting = dataclasses.replace(setting, workload=Workload.of(jobs), cluster=cluster, placement="first-fit")
    result = run_engine(setting)
    assert result.finished.state.run[0].jumped_iterations > 0
    assert (result.jobs["network_wait_s"] > 0).any()  # only what is refused waits
    assert_agrees(result, run_reference(setting))


def test_when_jumps_begin_changes_nothing_but_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = contending(5, 1000.0, "srsf", "bounded-overlap:limit=1")
    results = []
    for rounds in (0, 5_000, 1 << 40):
        monkeypatch.setattr(driver, "ROUNDS_BEFORE_JUMPS", rounds)
        results.append(run_engine(setting))
    at_once, later, never = [int(result.finished.state.run[0].jumped_iterations) for result in results]
    assert at_once > later > never == 0
    for result in results[1:]:
        assert_equal_tables(result, results[0])


def test_samples_before_the_end_of_a_warm_up_are_as_without_skipping(monkeypatch) -> None:
    monkeypatch.setattr(build, "_FIRST_SAMPLE_NS", 1_000_000)
    workload = long_jobs(4)  # which does not compute while it communicates
    skipping, whole = (simulated(workload, warmup_s=12.0, **more) for more in ({}, {"timeline": True}))
    assert skipping.skipped_iterations > 500
    pd.testing.assert_frame_equal(skipping.samples, whole.samples, rtol=1e-12)
    assert skipping.samples["busy_gpus"].between(0.0, 4.0).all()


def test_of_a_run_that_ends_within_the_warm_up_no_gpu_counts_as_busy() -> None:
    result = simulated(long_jobs(1, 1), warmup_s=1000.0)
    assert result.gpus["busy_s"].sum() == 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waits(Fixed):
    """Places each job on given GPUs once they have room."""

    def place(self, job: JobView, cluster: ClusterView) -> list[int] | None:
        gpus = self.gpus[job.job_id]
        return gpus if set(gpus) <= set(cluster.eligible_gpus(job)) else None


def test_a_component_jumps_no_farther_than_the_first_end_of_a_slow_job_outside() -> None:
    """390,000 iterations of 40 us on slow GPUs end at 15.6 s sharp, before any sample, and make room on another's."""

    def computes(name: str, iterations: int, slow_ns: int, memory_mb: float) -> Job:
        sends = AllReduceTask(name="r", message_bytes=100.0)  # for less long than it computes
        dag = IterationDag((ComputeTask(name="c", duration_ns=slow_ns // 2), sends))
        return Job(
            job_id=name, arrival_s=0.0, num_gpus=2, iterations=iterations, iteration=dag, gpu_memory_mb=memory_mb
        )

    jobs = [
        computes("ends", 390_000, 40_000, 1000.0),
        computes("waits", 1, 10_000_000, 600.0),
        computes("meets it", 500_000, 40_000, 1.0),
        *(computes(name, 20_000_000, 1_000, 1.0) for name in ("jumps", "and its neighbour")),
    ]
    places = {"waits": [0, 6], "ends": [0, 2], "meets it": [3, 4], "jumps": [6, 8], "and its neighbour": [9, 10]}
    result = ddlsched.simulate(
        Workload.of(jobs),
        ddlsched.Cluster(num_servers=6, gpus_per_server=2, gpu_memory_mb=1000.0),
        placement=Waits(gpus=places),
        order="fifo",
        communication="bounded-overlap:limit=9",
        contention=Linear(latency_s=0.0, per_byte_s=1e-9, penalty_per_byte_s=0.0),
        disturbances=Disturbances(straggler_share=1.0, straggler_slowdown=2.0),
    )
    assert result.finished.state.run[0].jumps > 1
    assert result.finished.state.run[0].rounds < 10**5  # nor does any wait for jobs that sleep
    assert result.jobs["finish_s"].tolist() == [15.6, 15.61, 20.0, 20.01, 20.0]


class WhereItWas(Fixed):
    """Places each job on given GPUs, once they are there."""

    def place(self, job: JobView, cluster: ClusterView) -> list[int] | None:
        gpus = self.gpus[job.job_id]
        return gpus if set(gpus) <= set(cluster.eligible_gpus(job)) else None


def test_while_a_job_starts_again_none_that_it_meets_is_compared_with_what_it_was() -> None:
    outage = Outage(server=2, from_s=6.0, to_s=6.1)
    jobs = ddlsched.simulate(
        long_jobs(2, 2),
        ddlsched.Cluster(num_servers=3, gpus_per_server=2, gpu_memory_mb=1),
        order="fifo",
        placement=WhereItWas(gpus={"0": [0, 2], "1": [3, 4]}),
        communication="bounded-overlap:limit=9",
        disturbances=Disturbances(outages=(outage,), restart_s=2.0),
        until_s=7.5,
    ).finished.state.jobs
    assert jobs.restarting.tolist() == [0, 1]
    assert jobs.anchor.any()
    assert not jobs.window.any()
