"""How far a run is, told while it runs."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import run
from jobs_by_hand import Fixed, data_parallel_job

import ddlsched
from ddlsched.comparisons.sweeps.run import under_way
from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.engine import run_progress
from ddlsched.engine.driver import Simulation
from ddlsched.engine.field_values import ROUNDS_BETWEEN_SIGNALS, Question
from ddlsched.engine.run_progress import RunProgress, duration_text, long_run_remark


def test_after_so_many_rounds_python_hears_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    advance, questions = Simulation._advance, list[int]()

    def counted(driver: Simulation) -> int:
        if not questions:
            driver._state.run.rounds = ROUNDS_BETWEEN_SIGNALS - 3
        questions.append(advance(driver))
        return questions[-1]

    monkeypatch.setattr(Simulation, "_advance", counted)
    ddlsched.simulate(ddlsched.Workload.of([data_parallel_job("a", iterations=9, backward_s=1.0)]), timeline=True)
    assert questions.count(Question.HEAR_SIGNALS) == 1


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "_PAUSE_S", 0.0)


@pytest.mark.usefixtures("told_at_once")
def test_a_watcher_is_told_how_far_a_run_is() -> None:
    told: list[RunProgress] = []
    workload = ddlsched.microsoft_160(seed=1, scale=0.002)
    ddlsched.simulate(workload, watch=told.append)
    for name in ("now_s", "jobs_done", "share"):
        values = [getattr(progress, name) for progress in told]
        assert values == sorted(values)
        assert values[0] < values[-1]
    assert 0 <= told[0].share < 0.2
    assert 0.2 < told[-1].share <= 1
    assert told[-1].jobs == 160
    assert told[-1].left_s < math.inf


@pytest.mark.usefixtures("told_at_once")
def test_a_watcher_is_told_what_was_counted_and_what_goes_on() -> None:
    told: list[RunProgress] = []
    pair = [data_parallel_job(name, gpus=2, message_bytes=1e9, iterations=100) for name in "ab"]
    third = data_parallel_job("c", forward_s=1.0, iterations=100, arrival_s=1.0)
    result = ddlsched.simulate(
        ddlsched.Workload.of([*pair, third]),
        ddlsched.Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=1.0),
        placement=Fixed(gpus={"a": [0, 2], "b": [1, 3], "c": [0]}),
        communication="bounded-overlap:limit=1",
        watch=told.append,
    )
    at_1_s = next(progress for progress in told if progress.now_s == 1.0)  # a message takes 0.856 s
    assert (at_1_s.running_jobs, at_1_s.sharing_jobs, at_1_s.queued_jobs) == (2, 2, 1)
    assert (at_1_s.active_transfers, at_1_s.waiting_transfers) == (1, 1)
    assert (at_1_s.skipped_iterations, at_1_s.contended_iterations, at_1_s.jumped_iterations) == (0, 1, 0)
    last = told[-1]
    assert (last.running_jobs, last.sharing_jobs, last.queued_jobs) == (2, 0, 0)  # the first to end made room
    assert last.contended_iterations == result.contended_iterations


@pytest.mark.usefixtures("told_at_once")
def test_what_a_job_skips_over_counts_as_done() -> None:
    told: list[RunProgress] = []
    alone = data_parallel_job("a", forward_s=1.0, iterations=1000)
    late = data_parallel_job("b", forward_s=1.0, iterations=1000, arrival_s=500.0)
    ddlsched.simulate(ddlsched.Workload.of([alone, late]), watch=told.append)
    assert sorted({progress.now_s for progress in told}) == [0.0, 500.0]
    assert told[-1].share == pytest.approx(0.25, abs=1 / 1000)


@pytest.mark.usefixtures("told_at_once")
def test_what_a_failure_undoes_is_not_done() -> None:
    told: list[RunProgress] = []
    outage = ddlsched.Outage(server=0, from_s=7.5, to_s=8.0)
    ddlsched.simulate(
        ddlsched.Workload.of([data_parallel_job("a", forward_s=1.0, iterations=10)]),
        ddlsched.Cluster(num_servers=1),
        disturbances=ddlsched.Disturbances(outages=(outage,), checkpoint_iterations=5),
        watch=told.append,
    )
    assert told[-1].share == 0.5
    assert told[-1].now_s == 8.0


def test_the_number_of_task_ends_is_known_beforehand() -> None:
    workload = ddlsched.microsoft_160(seed=1, scale=0.002)
    spread = ddlsched.Cluster(num_servers=64, gpus_per_server=1)
    assert workload.task_ends == ddlsched.simulate(workload, spread).summary()["events"]


def test_the_rest_is_told_as_people_say_it() -> None:
    progress = RunProgress(86400.0, 120, 500, 0.31, 2.1e6, 180.0)
    assert progress.text() == "31 %, 120 of 500 jobs done, 86,400 s simulated, 2.1 M events/s, 3 min left"
    assert "left" not in progress._replace(left_s=math.nan).text()
    assert [duration_text(seconds) for seconds in (3.2, 600.0, 9000.0)] == ["3 s", "10 min", "2.5 h"]


@pytest.mark.long
@pytest.mark.usefixtures("told_at_once")
def test_runs_of_a_sweep_say_how_far_they_are_while_they_go_on(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class FirstFit:
        def place(self, job, cluster):
            seen.append(under_way(tmp_path / "progress"))
            gpus = cluster.eligible_gpus(job)
            return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None

    (tmp_path / "progress").mkdir()
    labels = {"policy": "mine", "workload": "small"}
    one = Run(labels=labels, workload="microsoft-160:scale=0.002", seed=3, options={"placement": FirstFit()})
    done = sweep([one], tmp_path / "runs", processes=1, progress=tmp_path / "progress")
    assert not done.failures
    assert seen[-1][0].startswith("mine, small, seed 3: ")
    assert "of 160 jobs done" in seen[-1][0]
    assert under_way(tmp_path / "progress") == []


def test_a_half_written_progress_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('["mine, seed 1", 1.0')
    assert under_way(tmp_path) == []


@pytest.mark.long
@pytest.mark.usefixtures("in_a_new_folder")
def test_a_long_run_is_announced_with_what_makes_it_shorter() -> None:
    iteration = ddlsched.DataParallelIteration(forward_s=0.001, backward_s=0.001, message_bytes=1.0)
    job = ddlsched.Job(job_id="a", arrival_s=0.0, num_gpus=1, iterations=10**9, iteration=iteration, gpu_memory_mb=1.0)
    ddlsched.write_workload(ddlsched.Workload.of([job]), "long.csv")
    for arguments in (("simulate", "long.csv"), ("compare", "long.csv", "--scheduler", "srsf-1", "--processes", 1)):
        said = run(*arguments)
        assert said.exit_code == 0
        assert "2.0 billion task ends a run, up to 7 min of one core" in said.stderr
        assert "--scale 0.1" in said.stderr
    assert long_run_remark(10**8) is None


@pytest.mark.parametrize(("left", "share"), [(0, 1.0), (1, 0.0)])
def test_of_one_iteration_all_or_nothing_is_done(left: int, share: float) -> None:
    columns = {"iterations": 1, "iterations_left": left, "state": 0}
    columns |= dict.fromkeys(("dormant", "dormant_since_ns", "period_ns"), 0)
    jobs = SimpleNamespace(**{name: np.array([value]) for name, value in columns.items()})
    told: Any = SimpleNamespace(_state=SimpleNamespace(jobs=jobs, now_ns=0), _ends=np.array([True]))
    assert run_progress.ProgressTeller._share(told) == share
