from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from command_line import refused, run

from ddlsched.real.state_folder import Ownership

JOBS = "job_id,program,steps,max_nodes\na,count,12,2\nb,count,5,1\n"
IDLE = "node,idle_from_s,idle_to_s\n0,0,600\n1,30,600\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "idle.csv").write_text(IDLE)
    return tmp_path


def live(folder: Path, *more: object):
    return run(
        "live", folder / "jobs.csv", "--state", folder / "state", "--trace", folder / "idle.csv", "--hold-s", 0.1, *more
    )


@pytest.mark.long
def test_jobs_run_to_their_end_and_a_second_time_there_is_nothing_to_do(files) -> None:
    done = live(files, "--speed", 60, "--json", "--chart", files / "timeline")
    assert done.exit_code == 0, done.stderr
    assert "2 finished, 0 failed, 0 queued" in done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["what"] for event in events} >= {"nodes", "started", "step", "finished"}
    lines = (files / "state" / "timeline.csv").read_text().splitlines()
    assert lines[0] == "time_s,what,job,step,nodes,loss"
    assert len(lines) == len(events) + 1
    assert (files / "timeline.png").stat().st_size > 5000
    again = live(files)
    assert (again.exit_code, again.stdout) == (0, "")
    assert "2 finished" in again.stderr


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--checkpoint", "yuong", "no checkpoint is named 'yuong'. Did you mean 'young'?"),
        ("--seed", -1, "live: seed is -1; expected a whole number from 0"),
    ],
)
def test_a_value_that_processes_would_stumble_over_is_refused_before_they_start(files, flag, value, said) -> None:
    """With the checkpoint each job would be given up for good."""
    refused(live(files, "--speed", 60, flag, value), said)
    assert not (files / "state").exists()


def test_a_chart_that_cannot_be_drawn_is_refused_before_anything_is_trained(files) -> None:
    refused(live(files, "--chart", files / "jobs.csv" / "chart"), "jobs.csv: cannot be used", "expected a folder")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a,count,12,2", "a,sing,12,2", "column program: 'sing'; expected count, mlp, or an existing script"),
        ("a,count,12,2", "a,train.py,12,2", "column program: 'train.py'; expected count, mlp, or an existing script"),
        ("a,count,12,2", "../a,count,12,2", "column job_id: '../a'"),
        ("b,count,5,1", "a,count,5,1", "'a' is there twice"),
        ("a,count,12,2", "a,count,0,2", "column steps: '0'"),
        ("a,count,12,2", "a,count,12,65", "column max_nodes: '65'"),
        ("\na,count,12,2\nb,count,5,1", "", "jobs.csv: holds no job; expected at least one row"),
        ("max_nodes\na,count,12,2\nb,count,5,1", "max_nodes,samples_per_s\na,count,12,2,64 x\n", "samples_per_s: 'x'"),
        (
            "max_nodes\na,count,12,2\nb,count,5,1",
            "max_nodes,samples_per_s\na,count,12,2,0\n",
            "column samples_per_s: '0' is out of range",
        ),
    ],
)
def test_faults_in_the_table_of_jobs_are_named(files, old, new, said) -> None:
    assert old in JOBS
    (files / "jobs.csv").write_text(JOBS.replace(old, new))
    done = live(files)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (files / "state").exists()


def test_other_faults_are_one_line(files) -> None:
    assert "expected one of --trace FILE, --slurm PARTITION, --nodes N" in live(files, "--slurm", "idle").stderr
    assert "expected --slurm PARTITION as well" in live(files, "--listen", "localhost").stderr
    assert "speed is 0" in live(files, "--speed", 0).stderr
    assert "shares no nodes out by counts" in live(files, "--allocation", "malletrain").stderr
    (files / "state").write_text("")
    assert "expected a folder for jobs' state" in live(files).stderr


def test_no_time_to_hang_is_refused(files) -> None:
    assert "hang_s is 0.0; expected seconds above 0" in live(files, "--hang-s", 0).stderr


@pytest.mark.long
def test_jobs_whose_users_say_how_they_scale_have_what_is_best_for_them_at_once(files) -> None:
    (files / "idle.csv").write_text("node,idle_from_s,idle_to_s\n" + "".join(f"{node},0,600\n" for node in range(3)))
    rows = "a,count,40,3,640 1280 1920\nb,count,40,3,700 710\n"
    (files / "jobs.csv").write_text(f"job_id,program,steps,max_nodes,samples_per_s\n{rows}")
    done = live(files, "--json")
    assert done.exit_code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    joined = [(event["job"], event["nodes"]) for event in events if event["what"] == "joining"]
    assert set(joined[:2]) == {("a", 2), ("b", 1)}  # b, who hardly gains, has one; nobody is tried at other sizes


@pytest.mark.long
def test_jobs_commit_where_they_are_told_to(files) -> None:
    done = live(files, "--commits", f"local://{files}/far")
    assert done.exit_code == 0, done.stderr
    assert sorted(path.name for path in (files / "far").iterdir()) == ["a", "b"]
    assert "commit in local://" in live(files).stderr
    assert "is seen by one process only" in live(files, "--state", files / "other", "--commits", "memory://x").stderr


@pytest.fixture
def slurm(files, monkeypatch):
    """Commands of a Slurm with two idle nodes; a file counts how often sinfo is asked, another makes it fail.

    Its srun runs a command here.
    """
    (files / "sinfo").write_text(
        f"#!/bin/sh\necho >> {files}/asked\n[ -e {files}/down ] && echo no controller >&2 && exit 1\n"
        "echo 'n1|idle'; echo 'n2|idle'\n"
    )
    (files / "squeue").write_text("#!/bin/sh\n")
    (files / "scancel").write_text("#!/bin/sh\n")
    (files / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    for name in ("sinfo", "squeue", "scancel", "srun"):
        (files / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(files), prepend=":")
    return files


def live_slurm(folder: Path, *more: object):
    options = ["--slurm", "idle", "--listen", "127.0.0.1", "--hold-s", 0.1]
    return run("live", folder / "jobs.csv", "--state", folder / "state", *options, *more)


@pytest.mark.long
def test_slurm_is_asked_once_in_five_seconds(slurm) -> None:
    begin_s = time.monotonic()
    done = live_slurm(slurm)
    took_s = time.monotonic() - begin_s  # long where others use the machine, too
    assert done.exit_code == 0, done.stderr
    assert "2 finished" in done.stderr
    assert 1 <= len((slurm / "asked").read_text()) <= 1 + took_s / 5


@pytest.mark.long
def test_slurm_that_fails_is_one_line_and_the_run_goes_on(slurm) -> None:
    (slurm / "down").write_text("")
    done = live_slurm(slurm, "--until-s", 0.5)
    assert done.exit_code == 0
    assert done.stderr.count("--Node: no controller; going on with the 0 nodes of the last answer") == 1
    assert "2 queued" in done.stderr


def test_a_folder_that_another_manager_has_is_refused(files) -> None:
    (files / "state").mkdir()
    other = Ownership(files / "state")
    done = live(files)
    assert done.exit_code == 2
    assert "another manager runs its jobs" in done.stderr
    other.close()
