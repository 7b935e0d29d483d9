from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import refused, run

from ddlsched.errors import InputError
from ddlsched.real import live_command
from ddlsched.real.live import manager
from ddlsched.real.live.failing import FailingNodes
from ddlsched.real.live.manager import LiveEvent
from ddlsched.real.live.nodes import LocalLauncher, SeldomAsked, SlurmLauncher, SlurmScavenger, TraceScavenger
from ddlsched.real.live.store import JobStore, StoredJob
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


EVENTS = (LiveEvent(0.12345, "step", "a", 3, 2, 0.5), LiveEvent(1.0, "nodes", nodes=4))


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note what managers are given; they only tell of two events and a commit, and give job b up."""
    given: list[Any] = []

    class Manager:
        def __init__(self, folder: Path, *others: Any) -> None:
            names = "scavenger sharer most_jobs watch hang_s launcher host commits warn checkpoint fewest"
            self.store = JobStore(folder / "jobs.sqlite")
            self.given = SimpleNamespace(folder=folder, **dict(zip(names.split(), others, strict=True)))
            given.append(self.given)

        def run(self, until_s: float) -> None:
            self.given.until_s, self.given.jobs = until_s, self.store.jobs()
            for event in EVENTS:
                self.given.watch(event)
            self.given.warn("warned")
            self.store.end("a", "finished")
            self.store.end("b", "failed")
            self.store.close()

    monkeypatch.setattr(manager, "LiveManager", Manager)
    return given


def test_a_manager_is_given_what_was_asked_for(files, managed) -> None:
    rows = "a,count,12,2,1,\nb,count,5,2,2,10 15\n"
    (files / "jobs.csv").write_text(f"job_id,program,steps,max_nodes,min_nodes,samples_per_s\n{rows}")
    more = "--speed 4 --most-jobs 3 --hang-s 7 --until-s 9 --checkpoint young --json --allocation malleable"
    done = live(files, *more.split(), "--commits", f"local://{files}/far")
    assert done.exit_code == 1  # as a job was given up
    assert done.stderr.splitlines() == [
        "ddlsched: warned",
        f"ddlsched: 1 finished, 1 failed, 0 queued; timeline: {files}/state/timeline.csv",
    ]
    [given] = managed
    assert (given.folder, given.most_jobs, given.hang_s, given.until_s) == (files / "state", 3, 7.0, 9.0)
    assert (given.host, given.commits) == (None, f"local://{files}/far")
    assert (given.checkpoint, given.fewest) == ("young", {"a": 1, "b": 2})
    assert isinstance(given.scavenger, TraceScavenger)
    assert given.scavenger.speed == 4.0
    assert [given.scavenger.idle(now_s) for now_s in (7.4, 7.5, 150.0)] == [
        {"node0"},
        {"node0", "node1"},
        set(),
    ]
    assert isinstance(given.launcher, LocalLauncher)
    assert [(job.job_id, job.program, job.steps, job.max_nodes) for job in given.jobs] == [
        ("a", "count", 12, 2),
        ("b", "count", 5, 2),
    ]
    advisor, shares = given.sharer.advisor, given.sharer.monitor
    assert (advisor.hold_s, dict(shares.rates("b")), dict(shares.rates("a"))) == (0.1, {1: 10.0, 2: 15.0}, {})
    timeline = (files / "state" / "timeline.csv").read_text()
    assert timeline == "time_s,what,job,step,nodes,loss\n0.123,step,a,3,2,0.5\n1.000,nodes,,0,4,None\n"
    assert [json.loads(line) for line in done.stdout.splitlines()] == [vars(event) for event in EVENTS]


def test_jobs_that_were_given_up_begin_again_only_if_asked(files, managed) -> None:
    assert live(files).exit_code == 1
    assert live(files).exit_code == 1
    assert [[job.state for job in given.jobs] for given in managed] == [["queued", "queued"], ["finished", "failed"]]
    done = live(files, "--retry-failed")
    assert "ddlsched: job 'b', which was given up, begins again\n" in done.stderr
    assert [job.state for job in managed[-1].jobs] == ["finished", "queued"]
    assert (managed[-1].checkpoint, managed[-1].until_s, done.stdout) == ("", 600.0, "")
    assert (files / "state" / "timeline.csv").read_text().count("time_s,what") == 1  # of three runs


def test_processes_on_slurm_report_to_this_host(files, managed, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(SlurmLauncher, "end_leftovers", lambda self: told.append(self.name))
    monkeypatch.setattr(live_command.socket, "gethostname", lambda: "here")
    for more, host in (((), "here"), (("--listen", "10.0.0.7"), "10.0.0.7")):
        asked = ["live", files / "jobs.csv", "--state", files / "state", "--slurm", "idle"]
        assert run(*asked, *more).exit_code == 1
        given = managed[-1]
        assert given.host == host
        assert given.launcher == SlurmLauncher.for_folder("idle", files / "state")
        assert isinstance(given.scavenger, SeldomAsked)
        asks = given.scavenger._scavenger
        assert (type(asks), asks.partition, asks.placeholder) == (SlurmScavenger, "idle", given.launcher.name)
        assert told.pop() == given.launcher.name


def test_nodes_of_this_machine_fail_as_asked(files, managed) -> None:
    more = "--nodes 3 --seed 5 --speed 2 --failures rsc-1 --recovery wait --checkpoint young"
    assert run("live", files / "jobs.csv", "--state", files / "state", *more.split()).exit_code == 1
    [given] = managed
    assert isinstance(given.scavenger, FailingNodes)
    assert given.scavenger.idle(0.0) == {"node0", "node1", "node2"}


def test_the_timeline_is_drawn_where_it_is_asked_for(files, managed, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("ddlsched.comparisons.charts.real_charts.live_timeline", lambda path: path)
    monkeypatch.setattr("ddlsched.comparisons.charts.style.save", lambda *given: drawn.append(given))
    live(files, "--chart", files / "charts" / "a")
    assert drawn == [(files / "state" / "timeline.csv", files / "charts" / "a")]
    assert (files / "charts").is_dir()


def test_a_timeline_without_space_ends_the_run_in_a_line(files, managed, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_full(*_: object, **__: object) -> Any:
        return Path("/dev/full").open("ab", buffering=0)

    monkeypatch.setattr("ddlsched.real.state_folder.open_in", open_full)
    said = "timeline.csv: cannot be written (No space left on device); expected space for a row an event"
    refused(live(files), said)


@pytest.mark.parametrize(("asked", "best"), [("10 15", {1: 10.0, 2: 15.0}), ("10 15 30 40", {1: 10.0, 2: 15.0})])
def test_rates_that_users_supply_are_those_of_sizes_that_a_job_may_have(asked: str, best: dict[int, float]) -> None:
    supplied = tuple(map(float, asked.split()))
    job = StoredJob("a", "count", 5, 2, "queued", 0, supplied)
    assert dict(live_command._sharer("malleable", 20.0, [job]).monitor.rates("a")) == best
    with pytest.raises(InputError, match="shares no nodes out by counts"):
        live_command._sharer("malletrain", 20.0, [])
