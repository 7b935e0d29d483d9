"""Draws: the same jobs with lengths that differ by a hair."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ddlsched
from ddlsched.errors import InputError
from ddlsched.results.metrics import STATED, ensemble_of, sampling_class
from ddlsched.simulation import drawn
from ddlsched.workload.job import Workload
from ddlsched.workload.workload_files import write_workload
from tests.jobs_by_hand import data_parallel_job, elastic_job

LENGTHS = [1, 2, 900, 5_000, 100_000]
JOBS = Workload.of(
    [data_parallel_job(f"{n}", iterations=iterations, backward_s=0.001) for n, iterations in enumerate(LENGTHS)]
)


@pytest.mark.long
def test_a_draw_changes_each_length_by_a_hair_at_most_and_nothing_else() -> None:
    changes = np.array([[job.iterations for job in drawn(JOBS, draw)] for draw in range(1, 400)]) - LENGTHS
    assert changes.min(axis=0).tolist() == [0, -1, -1, -5, -100]
    assert changes.max(axis=0).tolist() == [0, 1, 1, 5, 100]
    assert np.abs(changes.mean(axis=0)).max() < 10
    again = drawn(drawn(JOBS, 0), 3)
    assert again == drawn(JOBS, 3) != JOBS
    assert [job.job_id for job in again] == [job.job_id for job in JOBS]
    assert {drawn(Workload.of([elastic_job(samples=5_000)]), draw)[0].samples for draw in range(60)} == {
        *range(4_995, 5_006)
    }


@pytest.mark.parametrize(
    ("held_s", "grouped", "place"),
    [
        *((0.0, 0, 0), (0.05, 0, 0), (0.2, 0, 1), (50.0, 0, 1), (51.0, 0, 2)),
        *((51.0, 1, 2), (0.05, 2, 3), (0.2, 2, 4), (51.0, 2, 4)),
    ],
)
def test_the_class_of_a_sampled_run_is_by_how_long_transfers_are_held_back_and_whether_most_jobs_have_groups(
    held_s: float, grouped: int, place: int
) -> None:
    assert sampling_class(_sampled(held_s, 100.0, grouped)) == list(STATED)[place]


def test_a_sampled_run_without_communication_held_nothing_back() -> None:
    assert sampling_class(_sampled(0.0, 0.0, 0)) == next(iter(STATED))


def _sampled(held_s: float, sent_s: float, grouped: int) -> Any:
    jobs = pd.DataFrame({"network_wait_s": [held_s / 2] * 2, "communication_s": [sent_s / 2] * 2})
    state = SimpleNamespace(jobs=SimpleNamespace(grouped=np.array([grouped > 1, grouped > 0])))
    return SimpleNamespace(jobs=jobs, finished=SimpleNamespace(state=state))


def test_what_is_no_draw_is_refused() -> None:
    with pytest.raises(InputError, match="draw is -1; expected a whole number >= 0"):
        ddlsched.simulate(JOBS, draw=-1)


@pytest.mark.long
def test_an_ensemble_tells_the_mean_and_how_far_one_run_and_one_job_deviate() -> None:
    results = [ddlsched.simulate(JOBS, ddlsched.Cluster(exclusive=True), draw=draw) for draw in range(5)]
    found = ensemble_of(results)
    jct_s = np.array([result.jobs["jct_s"] for result in results])
    assert found.average_jct_s.mean == pytest.approx(jct_s.mean())
    assert found.average_jct_s.low < jct_s.mean() < found.average_jct_s.high
    assert found.run_deviation == pytest.approx(jct_s.mean(axis=1).std(ddof=1) / jct_s.mean())
    assert found.job_deviation == pytest.approx(np.median(jct_s.std(axis=0, ddof=1) / jct_s.mean(axis=0)))


def test_no_interval_of_times_begins_below_zero() -> None:
    def of_one_job(jct_s: float) -> Any:
        jobs = pd.DataFrame({"jct_s": [jct_s], "counted": [True]})
        return SimpleNamespace(summary=lambda: {"average_jct_s": jct_s}, jobs=jobs)

    found = ensemble_of([of_one_job(10.0), of_one_job(30.0)]).average_jct_s
    assert (found.mean, found.low) == (20.0, 0.0)
    assert found.high == pytest.approx(20.0 + 12.706205 * 10.0)


@pytest.mark.slow
def test_a_comparison_has_draws_where_it_has_no_seeds_and_says_so(tmp_path: Path) -> None:
    write_workload(JOBS, tmp_path / "trace.csv")
    comparison = ddlsched.compare(
        [tmp_path / "trace.csv", "microsoft-160:scale=0.001"],
        ["srsf-1", "srsf-2"],
        seeds=2,
        draws=3,
        folder=tmp_path / "out",
        processes=1,
    )
    runs = comparison.runs.groupby(["workload", "policy"])["seed"].apply(list).to_dict()
    assert {workload: seeds for (workload, _), seeds in runs.items()} == {
        "trace": [1, 2, 3],
        "microsoft-160:scale=0.001": [1, 2],
    }
    table = comparison.table().set_index(["workload", "policy", "metric"])
    assert table.loc[("trace", "srsf-1", "average_jct_s"), "seeds"] == 3
    assert table.loc[("trace", "srsf-1", "average_jct_s"), ["low", "high"]].notna().all()
    assert any(note.startswith("trace: 3 draws of the jobs' lengths") for note in comparison.notes())
    few = (3, "draws"), (2, "seeds")
    assert comparison.notes()[:2] == [f"{n} {what}: no verdict is given with fewer than 6." for n, what in few]


@pytest.mark.slow
def test_of_draws_alone_few_seeds_are_not_told(tmp_path: Path) -> None:
    write_workload(JOBS, tmp_path / "trace.csv")
    policies = ["srsf-1", "srsf-2"]
    comparison = ddlsched.compare(
        tmp_path / "trace.csv", policies, seeds=1, draws=6, folder=tmp_path / "out", processes=1
    )
    assert not any("no verdict" in note for note in comparison.notes())
