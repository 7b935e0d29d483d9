"""The twin's comparison: what it calls the same order and the same wait, and that its table follows from its files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

run, compare, predictions, scenarios, stream = scripts_of(
    "slurm_twin", "run", "compare", "predictions", "scenarios", "stream"
)


def test_pairs_in_opposite_order_are_counted_unless_their_starts_are_close() -> None:
    real, simulated = pd.Series([0.0, 10.0, 20.0]), pd.Series([0.0, 20.0, 10.0])
    assert compare.same_order(real, simulated, 0.0) == pytest.approx(2 / 3)
    assert compare.same_order(real, simulated, 10.0) == 1.0
    assert compare.same_order(real, real, 0.0) == 1.0


def named(name: str):
    [scenario] = [each for each in scenarios.SCENARIOS if each.name == name]
    return scenario


@pytest.mark.long
def test_a_run_that_is_its_own_prediction_differs_by_nothing() -> None:
    workload, scenario = stream.stream(20, 0, stream.SIZES), named("fifo-backfill")
    [simulated] = predictions.predictions(workload, scenario, predictions.USUAL)
    real = simulated.assign(decided_s=simulated["start_s"] - 0.5, load=0.0)
    real["seen_end_s"] = np.ceil((real["end_s"] + 0.1).round(6)) + 0.2
    row = compare.comparison(workload, scenario, real, predictions.USUAL)
    assert (row["difference_%"], row["same_order_strict_%"], row["run_start_s"]) == (0.0, 100.0, 0.5)
    later = real.assign(start_s=real["start_s"] + 1.0)
    assert compare.comparison(workload, scenario, later, predictions.USUAL)["difference_%"] < 0


def test_what_slurm_took_is_counted_from_the_tick_of_the_agents_look() -> None:
    real = pd.DataFrame({"decided_s": [3.1, 4.2], "start_s": [3.5, 4.9], "end_s": [5.5, 7.25]})
    real["seen_end_s"] = [6.1, 8.1]  # ends wait for half a second on average, the rest is Slurm's
    took = predictions.taken(real, named("srsf-lwf"))
    assert took.starts_s.tolist() == pytest.approx([0.5, 0.9])
    assert took.end_s == pytest.approx((0.5 + 0.75) / 2 - 0.5)
    seldom = predictions.taken(real.assign(decided_s=[5.4, 5.5], start_s=[6.0, 6.2]), named("srsf-lwf-between"))
    assert seldom.starts_s.tolist() == pytest.approx([0.7, 0.9])
    assert seldom.end_s == predictions.USUAL.end_s


@pytest.mark.long
def test_jobs_hold_their_gpus_for_what_slurm_takes_and_the_draws_differ() -> None:
    workload, scenario = stream.stream(60, 0, stream.SIZES), named("srsf-lwf")
    simulated = predictions.predicted(workload, scenario, np.full(60, 2.0), 0.3).set_index("job_id")
    run_s = pd.Series({job.job_id: job.service_ns / 1e9 / job.num_gpus for job in workload})
    assert (simulated["end_s"] - simulated["start_s"]).to_numpy() == pytest.approx(
        (run_s - predictions.SPARED_S)[simulated.index].to_numpy()
    )
    runs = predictions.predictions(workload, scenario, predictions.Taken(np.array([0.2, 1.5]), 0.1))
    assert len(runs) == predictions.DRAWS
    assert len({tuple(run["start_s"]) for run in runs}) > 1


def test_runs_of_the_same_jobs_are_compared_with_one_another() -> None:
    real = pd.DataFrame({"job_id": ["a", "b", "c"], "arrival_s": 0.0, "start_s": [2.0, 10.0, 30.0]})
    again = real.assign(start_s=[2.0, 40.0, 30.0])
    found = compare.repeated(real, again)
    assert found == {"again_difference_%": 71.43, "again_same_order_%": 66.67}


def test_jobs_are_up_to_32_gpus_and_have_limits_of_whole_minutes() -> None:
    jobs = list(stream.stream(500, 0, stream.SIZES))
    assert {job.num_gpus for job in jobs} == set(stream.SIZES)
    limits_s = np.array([job.time_limit_s for job in jobs])
    assert (limits_s % 60 == 0).all()
    assert all(job.service_ns / 1e9 / job.num_gpus <= job.time_limit_s for job in jobs)


def test_jobs_that_come_and_end_between_looks_do_so_in_the_simulation() -> None:
    scenario = named("srsf-lwf-between")
    workload, every_s = scenario.jobs(30, 0), scenarios.SELDOM_S
    assert {round(job.arrival_s / every_s % 1, 3) for job in workload} == {0.5}
    start_s, end_s = 0.5, predictions.USUAL.end_s
    simulated = predictions.predicted(workload, scenario, np.full(30, start_s), end_s)
    ticks, ends = (simulated["start_s"] - start_s) / every_s, (simulated["end_s"] + end_s) / every_s
    assert ticks.to_numpy() == pytest.approx(ticks.round().to_numpy(), abs=1e-6)
    assert (ends % 1).to_numpy() == pytest.approx(stream.ENDS, abs=0.02)  # run times are in steps of an iteration


@pytest.mark.long
def test_a_row_of_the_table_follows_from_its_measured_run() -> None:
    folder, name = EXPERIMENTS / "slurm_twin" / "expected", "fifo-backfill-between"
    [stored] = pd.read_csv(folder / "comparison.csv").query("scenario == @name and seed == 0").to_dict("records")
    scenario, real = named(name), pd.read_csv(folder / f"{name}-500-0.csv")
    row = compare.comparison(scenario.jobs(500, 0), scenario, real, run.calibrated(folder, scenario))
    assert row == {column: stored[column] for column in row}


@pytest.mark.slow
def test_the_table_follows_from_the_measured_runs() -> None:
    folder = EXPERIMENTS / "slurm_twin" / "expected"
    pd.testing.assert_frame_equal(run.compared(folder), pd.read_csv(folder / "comparison.csv"))


def test_calibrations_have_jobs_of_other_seeds_than_what_they_predict() -> None:
    folder = EXPERIMENTS / "slurm_twin" / "expected"
    seeds = [{path.stem.rsplit("-", 1)[1] for path in at.glob("*-*-*.csv")} for at in (folder, folder / "calibration")]
    assert all(seeds)
    assert not seeds[0] & seeds[1]
