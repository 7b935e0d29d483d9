"""GPUs in the same state that are simulated as one: nothing that a run reports depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from runs_of_settings import run_engine
from strategies import Setting, settings
from tiers import examples

import ddlsched
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.interference import UniformInterference
from ddlsched.engine.driver import Simulation
from ddlsched.engine.outcome import Window
from ddlsched.results.result import Result
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

TABLES = ("jobs", "gpus", "links", "samples", "placements")
FOUR_GPUS = ddlsched.Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=10)
POLICIES: dict[str, Any] = {"placement": "first-fit", "order": "srsf", "communication": "bounded-overlap:limit=1"}


configure = Simulation._configure


def configure_without_groups(simulation: Simulation, window: Window | None) -> None:
    configure(simulation, window)
    simulation._state.run.grouping = False


@contextmanager
def without_groups() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "_configure", configure_without_groups)
        yield


def assert_same(result: Result, expected: Result) -> None:
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(result, table), getattr(expected, table), obj=table, check_exact=True)
    assert result.summary()["events"] == expected.summary()["events"]
    assert result.contended_iterations == expected.contended_iterations


def job(name: str, *, gpus: int, **different: Any) -> Job:
    """Return a job of 1,000 iterations, 30 ms of compute each, that arrives at once."""
    given = {"arrival_s": 0.0, "forward_s": 0.01, "message_bytes": 1e6, "iterations": 1000} | different
    iteration = DataParallelIteration(
        forward_s=given["forward_s"], backward_s=0.02, message_bytes=given["message_bytes"]
    )
    return Job(
        job_id=name,
        arrival_s=given["arrival_s"],
        num_gpus=gpus,
        iterations=int(given["iterations"]),
        iteration=iteration,
        gpu_memory_mb=1,
    )


def group_sizes(workload: Workload, **options: Any) -> tuple[Result, list[list[int]]]:
    """Run a workload; return also the sizes of the groups that there are whenever a job is placed."""
    seen: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        place = Simulation._place

        def look(self: Simulation) -> None:
            gpus = self._state.arrays.gpus
            seen.append([int(g.group_size) for number, g in enumerate(gpus) if g.leader == number])
            place(self)

        patch.setattr(Simulation, "_place", look)
        return ddlsched.simulate(workload, FOUR_GPUS, **(POLICIES | options)), seen


def test_gpus_with_the_same_jobs_are_one_group_after_an_iteration() -> None:
    jobs = [job("a", gpus=4), job("b", gpus=4, forward_s=0.013), job("late", gpus=1, arrival_s=3.0)]
    _, seen = group_sizes(Workload.of(jobs))
    assert seen[-1] == [4]


def test_a_job_that_joins_one_of_them_leaves_the_others_a_group() -> None:
    jobs = [job("a", gpus=4), job("b", gpus=4, forward_s=0.013)]
    jobs += [job("guest", gpus=1, arrival_s=2.0), job("late", gpus=1, arrival_s=2.5)]
    _, seen = group_sizes(Workload.of(jobs), order="fifo")
    assert seen[-2:] == [[4], [1, 3]]


def test_when_it_has_left_they_come_together_once_all_have_waited_for_the_network() -> None:
    jobs = [job("a", gpus=4, message_bytes=2e8), job("b", gpus=4, message_bytes=2e8, forward_s=0.013)]
    jobs += [job("guest", gpus=1, arrival_s=2.0, iterations=20), job("late", gpus=1, arrival_s=15.0)]
    _, seen = group_sizes(Workload.of(jobs))
    assert seen[-1] == [4]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "fifo"},
        {"order": "themis"},
        {"communication": "preemptive:by=time"},
        {"interference": UniformInterference(share=0.3)},
        {"warmup_s": 1.0},
        {"until_s": 4.321},
        {"disturbances": Disturbances(outages=(Outage(server=0, from_s=2.2, to_s=2.9),), restart_s=0.1)},
    ],
    ids=str,
)
def test_tables_are_the_same_without_groups(options: dict[str, Any]) -> None:
    jobs = [job("a", gpus=4), job("b", gpus=4, forward_s=0.013), job("c", gpus=3, forward_s=0.0, arrival_s=0.5)]
    jobs += [job(f"guest-{n}", gpus=1, arrival_s=0.7 * n, iterations=40) for n in range(5)]
    result = ddlsched.simulate(Workload.of(jobs), FOUR_GPUS, **(POLICIES | options))
    with without_groups():
        assert_same(result, ddlsched.simulate(Workload.of(jobs), FOUR_GPUS, **(POLICIES | options)))


def test_a_recorded_run_simulates_every_gpu() -> None:
    _, seen = group_sizes(
        Workload.of([job("a", gpus=4), job("b", gpus=4), job("late", gpus=1, arrival_s=3.0)]), timeline=True
    )
    assert seen[-1] == [1, 1, 1, 1]


@pytest.mark.long
def test_all_of_the_64_gpu_workload_is_the_same_without_groups() -> None:
    workload = ddlsched.microsoft_160(seed=2, scale=0.02)
    for scheduler in ("srsf-1", "ada-srsf", "block-srtf"):
        result = ddlsched.simulate(workload, scheduler=scheduler)
        with without_groups():
            assert_same(result, ddlsched.simulate(workload, scheduler=scheduler))


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(20, by_default=6))
def test_every_table_is_as_without_groups(setting: Setting) -> None:
    result = run_engine(setting)
    with without_groups():
        assert_same(result, run_engine(setting))
