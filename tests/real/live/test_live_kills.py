"""Kills at random moments, of the manager and of training processes: python -m pytest -m slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ddlsched.real.live.commits import committed_steps
from ddlsched.real.live.store import JobStore

KILLS = int(os.environ.get("KILLS", "40"))
NAMES = [f"j{n}" for n in range(5)]
STEPS = 40 * KILLS


def run_live(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", "from ddlsched.cli import main; main()", "live", folder / "jobs.csv"]
    options = ["--state", folder / "state", "--trace", folder / "idle.csv", "--hold-s", "0.2"]
    return subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)


def children(process: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def kill_one(live: subprocess.Popen, rng: np.random.Generator) -> str:
    """Kill the manager, one time in three, or one of its training processes; return which."""
    workers = children(live)
    if workers and rng.random() < 2 / 3:
        os.kill(int(rng.choice(workers)), signal.SIGKILL)
        return "worker"
    live.kill()
    live.wait()
    return "manager"


def check_progress(state: Path, seen: dict[str, list[float]]) -> None:
    """What was committed is never undone or done again."""
    for name in NAMES:
        steps = committed_steps(state / name)
        assert steps[: len(seen.get(name, []))] == seen.get(name, [])
        assert steps == [1.0 / (1 + k) for k in range(len(steps))]
        seen[name] = steps


@pytest.mark.slow
def test_killed_at_any_moment_no_job_is_lost_or_run_twice(tmp_path) -> None:
    rows = "".join(f"{name},count,{STEPS},2\n" for name in NAMES)
    (tmp_path / "jobs.csv").write_text(f"job_id,program,steps,max_nodes\n{rows}")
    (tmp_path / "idle.csv").write_text("node,idle_from_s,idle_to_s\n0,0,9999\n1,0,9999\n2,1,9999\n3,0,3\n")
    rng = np.random.default_rng(int(os.environ.get("FUZZ", "1")))
    seen: dict[str, list[float]] = {}
    killed = {"manager": 0, "worker": 0}
    live = run_live(tmp_path)
    while sum(killed.values()) < KILLS:
        time.sleep(rng.uniform(0.3, 4.0))
        which = kill_one(live, rng)
        killed[which] += 1
        check_progress(tmp_path / "state", seen)
        if which == "manager":
            live = run_live(tmp_path)
    assert live.wait(timeout=600) == 0
    print(killed)
    check_progress(tmp_path / "state", seen)
    jobs = JobStore(tmp_path / "state" / "jobs.sqlite").jobs()
    assert [(job.job_id, job.state) for job in jobs] == [(name, "finished") for name in NAMES]
    assert all(len(steps) == STEPS for steps in seen.values())
