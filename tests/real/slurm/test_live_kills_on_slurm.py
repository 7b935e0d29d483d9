"""Managers of ``ddlsched live --slurm`` and its processes on nodes killed at random moments, on a Slurm of its own.

``KILLS=200 tests/real/slurm/run tests/real/slurm/test_live_kills_on_slurm.py`` for more than the default.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from ddlsched.real.live.commits import committed_steps
from ddlsched.real.live.store import JobStore
from ddlsched.real.slurm.local_cluster import LocalSlurm

pytestmark = pytest.mark.slurm

KILLS = int(os.environ.get("KILLS", "10"))
NAMES = ("a", "b", "c")
STEPS = 60 * KILLS


def manager_of(slurm: LocalSlurm, folder: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-c", "from ddlsched.cli import main; main()", "live", str(folder / "jobs.csv")]
    options = ["--state", str(folder / "state"), "--slurm", "idle", "--listen", "127.0.0.1", "--hold-s", "0.5"]
    environment = {**slurm.environment, "PYTHONPATH": str(Path.cwd())}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([*program, *options], env=environment, stdout=log, stderr=log)


def workers(slurm: LocalSlurm) -> list[int]:
    found = []
    for process in slurm.processes():
        with suppress(OSError):
            command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if command[1:3] == [b"-m", b"ddlsched.real.live.worker"]:
                found.append(process)
    return found


def kill_one_worker(slurm: LocalSlurm, rng: random.Random, manager: subprocess.Popen[bytes]) -> bool:
    """Kill a process on a node, once there is one; return whether one was there before its manager ended."""
    while not (there := workers(slurm)) and manager.poll() is None:
        time.sleep(0.05)
    if there:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(there), signal.SIGKILL)
    return bool(there)


def test_kills_lose_no_job_undo_no_step_and_leave_nothing_behind(tmp_path: Path) -> None:
    rows = "".join(f"{name},count,{STEPS},2\n" for name in NAMES)
    (tmp_path / "jobs.csv").write_text(f"job_id,program,steps,max_nodes\n{rows}")
    rng = random.Random(0)
    seen: dict[str, list[float]] = {name: [] for name in NAMES}
    killed: Counter[str] = Counter()
    with LocalSlurm(nodes=4) as slurm:
        daemons = set(slurm.processes())
        manager = manager_of(slurm, tmp_path)
        while killed.total() < KILLS and manager.poll() is None:
            time.sleep(rng.uniform(0.3, 4.0))
            if rng.random() < 2 / 3:
                killed["worker"] += kill_one_worker(slurm, rng, manager)
            else:
                manager.kill()
                manager.wait()
                killed["manager"] += 1
                manager = manager_of(slurm, tmp_path)
            for name in NAMES:
                steps = committed_steps(tmp_path / "state" / name)
                assert steps[: len(seen[name])] == seen[name]
                seen[name] = steps
        assert manager.wait(timeout=600) == 0, (tmp_path / "log").read_text()
        print(f"{dict(killed)}, {STEPS} steps of {len(NAMES)} jobs")
        jobs = JobStore(tmp_path / "state" / "jobs.sqlite").jobs()
        assert [(job.job_id, job.state) for job in jobs] == [(name, "finished") for name in NAMES]
        assert all(len(committed_steps(tmp_path / "state" / name)) == STEPS for name in NAMES)
        until_s = time.monotonic() + 30
        while set(slurm.processes()) - daemons and time.monotonic() < until_s:
            time.sleep(0.2)
        assert set(slurm.processes()) - daemons == set()
    assert killed.total() >= KILLS // 2
