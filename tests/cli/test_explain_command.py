"""``ddlsched explain`` on files of ``simulate --run-out`` and of comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from command_line import run
from tiers import tried

import ddlsched
from ddlsched.comparisons.sweeps.stored_runs import repeat
from ddlsched.engine.outcome import Window
from ddlsched.simulation import warm_up


@pytest.fixture(autouse=True)
def _files(in_a_new_folder: None) -> None:
    warm_up()
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), "jobs.csv")
    Path("outages.csv").write_text("server,from_s,to_s\n3,0.5,1.5\n")


def stored(*flags: str) -> pd.DataFrame:
    done = run("simulate", "jobs.csv", "--run-out", "run.parquet", *flags)
    assert done.exit_code == 0, done.stderr
    return pd.read_parquet("run.parquet").set_index("job_id")


FLAGS = ["--jitter-cv", "0.2", "--outages", "outages.csv", "--restart-s", "0.1", "--seed", "7"]
FLAGS += ["--contention", "10gbe:latency_s=1e-4"]


@pytest.mark.long
@pytest.mark.parametrize("flags", tried([[], FLAGS, ["--until-s", "1.5"]], lambda place: place > 0))
def test_the_phases_and_blockers_are_those_of_the_stored_run(flags: list[str]) -> None:
    jobs = stored(*flags)
    for job_id in (jobs["network_wait_s"].idxmax(), jobs["gpu_wait_s"].idxmax(), jobs["restart_s"].idxmax()):
        found = json.loads(run("explain", "run.parquet", job_id, "--json").stdout)
        assert (found["job_id"], found["state"]) == (job_id, jobs.loc[job_id, "state"])
        for phase, seconds in found["phases_s"].items():
            assert seconds == pytest.approx(jobs.loc[job_id, f"{phase}_s"], abs=1e-9)
            blamed = sum(row["seconds"] for row in found["blockers"] if row["phase"] == phase)
            waits = phase in ("queueing", "gpu_wait", "network_wait")
            assert blamed == pytest.approx(seconds if waits else 0.0, abs=1e-6)


@pytest.mark.long
def test_a_reader_is_told_who_held_what() -> None:
    jobs = stored()
    job_id = jobs["network_wait_s"].idxmax()
    text = run("explain", "run.parquet", job_id).stdout
    assert text.startswith(f"job {job_id}, {jobs.loc[job_id, 'gpus']} GPUs on ")
    assert f"For the network: {jobs.loc[job_id, 'network_wait_s']:.3f} s" in text
    assert "(link servers " in text
    assert "Stopped by failures" not in text
    assert len(text.splitlines()) < 30


@pytest.mark.long
def test_a_reader_is_told_what_failures_cost() -> None:
    jobs = stored(*FLAGS)
    job_id = jobs["lost_s"].idxmax()
    restarts = jobs.loc[job_id, "restarts"]
    times = "1 time" if restarts == 1 else f"{restarts} times"
    expected = f"Stopped by failures {times}: {jobs.loc[job_id, 'lost_s']:.3f} s on its GPUs were for nothing"
    assert expected in run("explain", "run.parquet", job_id).stdout


@pytest.mark.long
def test_a_run_of_a_comparison_is_explained() -> None:
    comparison = ddlsched.compare("jobs.csv", ["srsf-1"], seeds=1, folder="out", processes=1)
    file = Path("out") / comparison.runs.loc[0, "file"]
    assert run("explain", file, "5").stdout.startswith("job 5, ")


@pytest.mark.long
def test_a_run_holds_its_workload() -> None:
    stored()
    before = run("explain", "run.parquet", "5").stdout
    ddlsched.write_workload(ddlsched.microsoft_160(seed=2, scale=0.002), "jobs.csv")
    assert run("explain", "run.parquet", "5").stdout == before
    Path("jobs.csv").unlink()
    assert run("explain", "run.parquet", "5").stdout == before


@pytest.mark.long
def test_a_run_whose_policy_has_changed_is_refused() -> None:
    mine = "class Mine:\n    def key(self, job, now_s):\n        return {}job.arrival_s\n"
    Path("mine.py").write_text(mine.format(""))
    stored("--order", "mine.py:Mine", "--exclusive")
    Path("mine.py").write_text(mine.format("-"))
    done = run("explain", "run.parquet", "5")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "the same inputs now have another outcome" in done.stderr


@pytest.mark.long
def test_a_run_of_an_instance_is_refused() -> None:
    from algorithms.ordering.fifo import FirstInFirstOut

    policy = {"name": "mine", "order": FirstInFirstOut()}
    comparison = ddlsched.compare("jobs.csv", [policy], seeds=1, folder="out", processes=1)
    with pytest.raises(ddlsched.InputError, match=r"order was an instance of .*FirstInFirstOut; expected one given by"):
        repeat(Path("out") / comparison.runs.loc[0, "file"], timeline=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (("run.parquet", "job-5"), "no job is named 'job-5'"),
        (("jobs.csv", "5"), "is a .csv file; expected a run's file"),
        (("none.parquet", "5"), "none.parquet"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, str], fault: str) -> None:
    stored()
    done = run("explain", *args)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert fault in done.stderr


@pytest.mark.long
def test_only_what_touches_the_job_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = stored()
    job_id = jobs["network_wait_s"].idxmax()
    windows: list[object] = []
    monkeypatch.setattr(
        "ddlsched.comparisons.sweeps.stored_runs.repeat",
        lambda path, *, timeline, watch: windows.append(timeline) or repeat(path, timeline=timeline, watch=watch),
    )
    assert run("explain", "run.parquet", job_id).exit_code == 0
    assert windows == [Window(jobs.loc[job_id, "start_s"], jobs.loc[job_id, "finish_s"], job_id)]


@pytest.mark.long
def test_all_that_is_told_of_a_job_is_in_its_json() -> None:
    job_id = stored()["network_wait_s"].idxmax()
    found = json.loads(run("explain", "run.parquet", job_id, "--json").stdout)
    parts = ("phases_s", "blockers", "reservations", "transfers", "failures", "stays")
    assert [*found] == ["job_id", "state", *parts]
    assert found["transfers"]
