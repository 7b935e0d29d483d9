"""The map of when scheduling the network pays: its points, how they are chosen, what counts as earning."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

import ddlsched
from ddlsched.errors import InputError
from ddlsched.workload.workload_specs import workload_of

FOLDER = EXPERIMENTS / "map"
EXPECTED = FOLDER / "expected"
answers, doors, picture, points, run = scripts_of("map", "answers", "doors", "picture", "points", "run")
POINT = points.Point(
    gbps=10.0, load="0.8", oversubscription=4.0, jobs_per_gpu=1, interference=0.0, sizes="powers of two"
)


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(EXPECTED / f"{name}.csv", dtype={"load": str}).fillna({"trace": ""})


# ---- Points


@pytest.mark.parametrize("jobs_per_gpu", [1, 2, 4])
def test_as_many_jobs_share_a_gpu_as_a_point_says(jobs_per_gpu):
    point = replace(POINT, jobs_per_gpu=jobs_per_gpu, load=points.BURST)
    jobs = points.jobs_of(seed=1, load=point.load, per_byte_s=point.per_byte_s, jobs_per_gpu=jobs_per_gpu)
    small = ddlsched.Workload.of([replace(job, arrival_s=0.0, iterations=1) for job in jobs])
    options = point.options() | doors.PLAIN | {"placement": "lwf:kappa=1"}
    assert ddlsched.simulate(small, seed=1, **options).most_jobs_on_a_gpu == jobs_per_gpu


def test_one_job_a_gpu_has_no_interference():
    with pytest.raises(InputError, match="with one job a GPU; expected 0"):
        replace(POINT, interference=0.3)


def test_twice_the_message_on_twice_the_bandwidth_is_the_same_run():
    """So the ratio of communication to compute is no axis beside the bandwidth: there is no latency."""
    jobs = points.jobs_of(seed=3, load="0.8", per_byte_s=POINT.per_byte_s, jobs_per_gpu=1)
    jobs = ddlsched.Workload.of(jobs.jobs[:40])
    larger = [
        replace(job, iteration=replace(job.iteration, message_bytes=2 * job.iteration.message_bytes)) for job in jobs
    ]
    times = [
        ddlsched.simulate(workload, seed=3, **point.options(), **doors.PLAIN).jobs["finish_s"].tolist()
        for workload, point in ((jobs, POINT), (ddlsched.Workload.of(larger), replace(POINT, gbps=20.0)))
    ]
    assert times[0] == times[1]


def test_any_sizes_are_above_half_of_the_power_of_two():
    alike, drawn = (
        points.jobs_of(seed=2, load="0.8", per_byte_s=1e-9, jobs_per_gpu=1, sizes=sizes) for sizes in points.SIZES
    )
    sizes = np.array([(job.num_gpus, other.num_gpus) for job, other in zip(alike, drawn, strict=True)])
    assert (sizes[:, 1] <= sizes[:, 0]).all()
    assert (2 * sizes[:, 1] > sizes[:, 0]).all()
    assert {1, 2, 4, 8, 16, 32} >= set(sizes[:, 0])
    assert set(sizes[:, 1]) - {1, 2, 4, 8, 16, 32}


def test_the_text_of_a_point_makes_its_jobs():
    made = workload_of(POINT.workload({}), 4)
    assert made == points.jobs_of(seed=4, load="0.8", per_byte_s=POINT.per_byte_s, jobs_per_gpu=1)


# ---- Answers


def runs_at(factors: dict[str, float], seeds: int = 6) -> pd.DataFrame:
    """Return runs of all policies, whose JCT is that of first-fit x a factor a policy, the same in every seed."""
    names = [doors.SCATTERED, *doors.PLACEMENTS, *(trial.name for trial in doors.TRIALS)]
    rows = []
    for seed in range(seeds):
        for name in names:
            jct_s = (100.0 + seed) * factors.get(name, 1.0)
            rows.append({"policy": name, "seed": seed, "average_jct_s": jct_s, "p95_jct_s": 2 * jct_s})
    return pd.DataFrame(rows)


def rows_at(factors: dict[str, float]) -> pd.DataFrame:
    runs = runs_at(factors)
    return pd.DataFrame(answers.rows_of(POINT, answers.best_placement(runs), runs))


def test_a_door_earns_by_more_than_5_percent_on_top_of_the_best_placement():
    best = {"HiveD": 0.5, "LWF-1": 0.8}
    base = dict.fromkeys([trial.name for trial in doors.TRIALS if not trial.scattered], 0.5)
    assert answers.earning(rows_at(best | base)) == {"placement"}
    assert answers.earning(rows_at(best | base | {"least congested": 0.5 * 0.96})) == {"placement"}
    assert answers.earning(rows_at(best | base | {"least congested": 0.5 * 0.94})) == {"placement", "paths"}


def test_what_a_door_takes_off_is_that_of_its_best_policy_that_counts():
    best = {"HiveD": 0.5, "LWF-1": 0.8, "least congested": 0.47, "Crux's paths": 0.48}
    base = dict.fromkeys([trial.name for trial in doors.TRIALS if not trial.scattered], 0.5)
    changes = answers.best_changes(rows_at(base | best | {"least congested, on first-fit": 0.1}))
    assert changes["placement"] == pytest.approx(-0.5)
    assert changes["paths"] == pytest.approx(0.47 / 0.5 - 1)
    assert changes["sending"] == pytest.approx(0.0)


def test_neither_stops_without_their_price_nor_what_is_tried_on_first_fit_nor_a_bundle_earns():
    free = {"SRTF that stops at no cost": 0.1, "least congested, on first-fit": 0.1, "Block-SRTF": 0.1}
    assert answers.earning(rows_at({"HiveD": 0.99} | free)) == frozenset()


def test_stopping_is_held_against_the_same_order_without():
    both = {"HiveD": 0.9, "SRTF": 0.5, "SRTF that stops": 0.5, "Tiresias that stops": 0.9}
    assert "preemption" not in answers.earning(rows_at(both))
    assert "preemption" in answers.earning(rows_at(both | {"SRTF that stops": 0.4}))


def test_a_policy_of_which_a_run_failed_has_no_change():
    runs = runs_at({"SRTF": 0.1})
    rows = pd.DataFrame(answers.rows_of(POINT, "HiveD", runs[~((runs["policy"] == "SRTF") & (runs["seed"] == 2))]))
    failed = rows[(rows["policy"] == "SRTF") | (rows["against"] == "SRTF")]
    assert failed["change"].isna().all()
    assert rows.loc[rows["policy"] == "SRTF", "seeds"].tolist() == [5]
    assert "order" not in answers.earning(rows)


# ---- What is committed


def test_committed_answers_are_those_of_the_committed_map():
    pd.testing.assert_frame_equal(answers.answers(table("map")), table("answers"), check_dtype=False)


def test_every_committed_point_has_every_policy():
    counted = table("map").groupby(list(points.Point.__dataclass_fields__)).size()
    assert counted.unique().tolist() == [len(doors.PLACEMENTS) + len(doors.TRIALS)]
    assert len(counted) <= 300


def test_the_headline_says_what_hived_alone_takes_and_where_blocks_are_better():
    document = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = table("map")
    mix = rows[(rows["trace"] == "") & (rows["door"] == "placement")]
    hived, best = mix[mix["policy"] == "HiveD"], mix[mix["policy"] == mix["best_placement"]]
    takes = [f"{-100 * one['change'].max():.0f} to {-100 * one['change'].min():.0f} % off" for one in (hived, best)]
    assert f"HiveD takes {takes[0]} first-fit's average JCT at the {len(hived)} points" in document
    assert f"**the best of the three placements** takes {takes[1]}" in document
    assert f"at {(hived['high'] < -0.05).sum()} of them more than 5 %" in document
    assert f"better at {(best['policy'] == 'blocks').sum()} of the {len(best)}" in document
    for row in hived[hived["high"] > -0.05].itertuples():
        assert f"{-100 * row.change:.1f} [{-100 * row.high:.1f}, {-100 * row.low:.1f}] %" in document
    free = rows[(rows["policy"] == "SRTF that stops at no cost") & (rows["low"] > 0.05)]
    assert set(free["load"]) == {points.BURST}
    num_points = len(rows.groupby(list(points.Point.__dataclass_fields__)))
    said = f"worse than SRTF without stops by more than 5 % for certain at {len(free)} of {num_points} points"
    assert said in document


def test_a_table_is_drawn_without_a_run(tmp_path):
    command = [sys.executable, FOLDER / "run.py", "--draw", EXPECTED / "map.csv", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "charts" / "map.png").stat().st_size > 20_000


def test_only_some_of_the_points_which_are_those_of_the_committed_table():
    committed = run.points_in(EXPECTED / "map.csv")
    assert len(committed) == len(table("answers"))
    some = run.only(committed, ["load=0.8", "load=0.5", "gbps=100", "jobs_per_gpu=1", "sizes=powers of two"])
    assert {(point.gbps, point.load) for point in some} == {(100.0, "0.8"), (100.0, "0.5")}


@pytest.mark.slow
def test_the_quick_form_runs_and_resumes(tmp_path):
    command = [sys.executable, FOLDER / "run.py", "--seeds", "1", "--only", "gbps=400", "--out", tmp_path]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert outputs[0] == outputs[1]
