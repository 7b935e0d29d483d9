"""Iterations that are skipped over: nothing that a run reports depends on it."""

from __future__ import annotations

import pandas as pd
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from strategies import Setting, examples, settings
from test_engine import run_engine

import ddlsched
from ddlsched.dag import DataParallelIteration
from ddlsched.jobs import Job, Workload
from ddlsched.results.result import Result
from ddlsched.views import ClusterView, JobView


def assert_equal_tables(result: Result, expected: Result) -> None:
    for table in ("jobs", "gpus", "links", "samples", "placements"):
        pd.testing.assert_frame_equal(getattr(result, table), getattr(expected, table), obj=table, rtol=1e-12)
    assert result.summary()["events"] == expected.summary()["events"]


@given(settings())
@hypothesis_settings(max_examples=examples(150))
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
