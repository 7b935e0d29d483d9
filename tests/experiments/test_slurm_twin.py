"""The twin's comparison: what it calls the same order and the same wait, and that its table follows from its files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

run, compare, scenarios, stream = scripts_of("slurm_twin", "run", "compare", "scenarios", "stream")


def test_pairs_in_opposite_order_are_counted_unless_their_starts_are_close() -> None:
    real, simulated = pd.Series([0.0, 10.0, 20.0]), pd.Series([0.0, 20.0, 10.0])
    assert compare.same_order(real, simulated, 0.0) == pytest.approx(2 / 3)
    assert compare.same_order(real, simulated, 10.0) == 1.0
    assert compare.same_order(real, real, 0.0) == 1.0


def test_a_run_that_is_its_own_prediction_differs_by_nothing() -> None:
    workload, [first, *_] = stream.stream(20, 0, stream.SIZES), scenarios.SCENARIOS
    simulated = scenarios.predicted(workload, first)
    real = simulated.assign(decided_s=simulated["start_s"] - 0.5, seen_end_s=simulated["end_s"] + 0.6, load=0.0)
    row = compare.comparison(workload, first, real)
    assert (row["difference_%"], row["same_order_strict_%"]) == (0.0, 100.0)
    assert (row["run_start_s"], row["run_end_s"]) == (0.5, 0.1)
    later = real.assign(start_s=real["start_s"] + 1.0)
    assert compare.comparison(workload, first, later)["difference_%"] < 0


def test_jobs_are_up_to_32_gpus_and_have_limits_of_whole_minutes() -> None:
    jobs = list(stream.stream(500, 0, stream.SIZES))
    assert {job.num_gpus for job in jobs} == set(stream.SIZES)
    limits_s = np.array([job.time_limit_s for job in jobs])
    assert (limits_s % 60 == 0).all()
    assert all(job.service_ns / 1e9 / job.num_gpus <= job.time_limit_s for job in jobs)


def test_the_simulation_agrees_with_itself_as_far_as_times_do_not_vary(monkeypatch) -> None:
    monkeypatch.setattr(compare, "_FLOOR_RUNS", 1)
    [scenario] = [each for each in scenarios.SCENARIOS if each.name == "fifo-backfill-between"]
    workload = scenario.jobs(40, 0)
    assert compare.floor(workload, scenario, 0.02) == 1.0 > compare.floor(workload, scenario, 3.0)


def test_jobs_that_come_and_end_between_looks_do_so_in_the_simulation() -> None:
    [scenario] = [each for each in scenarios.SCENARIOS if each.name == "srsf-lwf-between"]
    workload = scenario.jobs(30, 0)
    assert {job.arrival_s % 5 for job in workload} == {2.5}
    simulated = scenarios.predicted(workload, scenario)
    decided_s, free_s = simulated["start_s"] - scenarios.START_S, simulated["end_s"] + scenarios.END_S
    assert (decided_s.round(6) % 5 == 0).all()
    assert (free_s.round(6) % 5 == 3.25).all()


def test_the_table_follows_from_the_measured_runs() -> None:
    folder = EXPERIMENTS / "slurm_twin" / "expected"
    stored = pd.read_csv(folder / "comparison.csv")
    pd.testing.assert_frame_equal(run.compared(folder), stored.drop(columns="floor_%"))


@pytest.mark.slow
def test_the_floors_follow_from_the_measured_runs() -> None:
    stored = pd.read_csv(EXPERIMENTS / "slurm_twin" / "expected" / "comparison.csv")
    pd.testing.assert_frame_equal(run.with_floors(stored.drop(columns="floor_%")), stored)
