"""``ddlsched live --slurm``: processes on the idle nodes of a Slurm of its own, which a main queue takes back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddlsched.real.live.commits import committed_steps
from ddlsched.real.slurm.local_cluster import LocalSlurm

pytestmark = pytest.mark.slurm

STEPS = 600


@pytest.fixture
def slurm() -> Iterator[LocalSlurm]:
    with LocalSlurm(nodes=4) as made:
        yield made


def live(slurm: LocalSlurm, folder: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-c", "from ddlsched.cli import main; main()", "live", str(folder / "jobs.csv")]
    options = ["--state", str(folder / "state"), "--slurm", "idle", "--listen", "127.0.0.1", "--hold-s", "1", "--json"]
    environment = {**slurm.environment, "PYTHONPATH": str(Path.cwd())}
    with (folder / "events").open("ab") as events:
        return subprocess.Popen([*program, *options], env=environment, stdout=events, stderr=events)


def jobs_in(slurm: LocalSlurm, partition: str) -> list[str]:
    return slurm.run("squeue", "--noheader", f"--partition={partition}", "--states=RUNNING", "--format=%N").split()


def awaited(done: Callable[[], bool], what: str, within_s: float = 90.0) -> None:
    until_s = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < until_s, what
        time.sleep(0.1)


def write_jobs(folder: Path, **steps: int) -> None:
    rows = "".join(f"{name},count,{count},2\n" for name, count in steps.items())
    (folder / "jobs.csv").write_text(f"job_id,program,steps,max_nodes\n{rows}")


def test_processes_run_on_nodes_give_way_to_the_main_queue_and_come_back(slurm: LocalSlurm, tmp_path: Path) -> None:
    write_jobs(tmp_path, a=STEPS, b=STEPS)
    manager = live(slurm, tmp_path)
    awaited(lambda: len(jobs_in(slurm, "idle")) == 4, "four jobs on four nodes")
    awaited(lambda: len(committed_steps(tmp_path / "state" / "a")) > 5, "steps are committed")
    slurm.run("sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 5")
    awaited(lambda: jobs_in(slurm, "main") != [], "the main queue's job has its nodes")
    assert len(jobs_in(slurm, "idle")) <= 1
    assert manager.wait(timeout=200) == 0
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines() if line.startswith("{")]
    assert "lost a node" in {event["what"] for event in events}
    assert not {"failed", "a process died"} & {event["what"] for event in events}
    for name in ("a", "b"):
        assert committed_steps(tmp_path / "state" / name) == [1.0 / (1 + step) for step in range(STEPS)]
    awaited(lambda: jobs_in(slurm, "idle") == [], "no job is left")


def test_a_manager_that_is_killed_leaves_no_job_and_goes_on(slurm: LocalSlurm, tmp_path: Path) -> None:
    write_jobs(tmp_path, a=STEPS)
    for _ in range(3):
        manager = live(slurm, tmp_path)
        before = len(committed_steps(tmp_path / "state" / "a"))
        awaited(lambda: len(committed_steps(tmp_path / "state" / "a")) > before + 3, "steps are committed")  # noqa: B023
        manager.kill()
        manager.wait()
        awaited(lambda: jobs_in(slurm, "idle") == [], "jobs of a manager that was killed end")
    assert live(slurm, tmp_path).wait(timeout=200) == 0
    assert committed_steps(tmp_path / "state" / "a") == [1.0 / (1 + step) for step in range(STEPS)]
