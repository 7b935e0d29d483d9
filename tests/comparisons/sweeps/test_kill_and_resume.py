"""A real ``ddlsched compare`` killed with SIGKILL, all its processes at once, at random moments, until it is done.

The slow form kills it many times and prints what that cost:
python -m pytest -m slow tests/comparisons/sweeps/test_kill_and_resume.py -s
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

import ddlsched
from ddlsched.comparisons.comparison import Comparison
from ddlsched.comparisons.sweeps.stored_runs import read_jobs, read_metadata

PROCESSES = 2
LOGGED = """
import os, time
import ddlsched

def logged(*, seed):
    with open(os.environ["STARTED_LOG"], "a") as log:
        log.write(f"{seed} {os.getpid()} {time.time_ns()}\\n")
    time.sleep(float(os.environ["PAUSE_S"]))
    return ddlsched.microsoft_160(seed=seed, scale=0.002)
"""
"""A generator that writes down when a run starts, and takes its time."""
POLICIES = ("ada-srsf", "srsf-1")


@dataclass
class Killed:
    """A comparison that is killed again and again."""

    folder: Path
    seeds: int
    pause_s: float
    kills: int = 0
    finished_at_kill: list[int] = field(default_factory=list)
    leftovers: int = 0
    parents: set[str] = field(default_factory=set)
    states: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def start(self) -> subprocess.Popen[bytes]:
        command = ["compare", "gen.py:logged", "--out", "out", "--seeds", str(self.seeds)]
        command += [word for policy in POLICIES for word in ("--scheduler", policy)]
        process = subprocess.Popen(
            [sys.executable, "-c", "from ddlsched.cli import main; main()", *command, "--processes", str(PROCESSES)],
            cwd=self.folder,
            env=os.environ | {"STARTED_LOG": str(self.folder / "out.log"), "PAUSE_S": str(self.pause_s)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.parents.add(str(process.pid))  # which tries the generator before it starts any run
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it with all its workers, and look at what it leaves."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.kills += 1
        self.leftovers += len(list((self.folder / "out").rglob("*.part")))
        self.look()
        self.finished_at_kill.append(len(self.runs()))

    def runs(self) -> list[Path]:
        return sorted((self.folder / "out" / "runs").glob("*.parquet"))

    def look(self) -> None:
        """Check that every run's file is whole, and that none was ever written again."""
        for path in self.runs():
            assert read_metadata(path)["summary"]["makespan_s"] > 0
            assert len(read_jobs(path)) == 160
            state = path.stat()
            now = (state.st_ino, state.st_mtime_ns, state.st_size)
            assert self.states.setdefault(path.name, now) == now, f"{path.name} was written again"
        assert set(self.states) == {path.name for path in self.runs()}, "a finished run is lost"

    def finish(self) -> None:
        process = self.start()
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
        self.look()

    def check_against_one_that_was_never_killed(self) -> None:
        other = ddlsched.compare("gen.py:logged", POLICIES, seeds=self.seeds, folder="whole", processes=1)
        one = Comparison.open(self.folder / "out")
        pd.testing.assert_frame_equal(one.runs.drop(columns="engine_s"), other.runs.drop(columns="engine_s"))
        for name in ("comparison.csv", "classes.csv", "failures.csv"):
            assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
        assert len(one.runs) == 2 * self.seeds
        assert not list(one.folder.rglob("*.part"))

    def check_that_nothing_was_done_twice(self) -> int:
        """Return how many simulations were started for nothing, because they were under way at a kill."""
        lines = [line.split() for line in (self.folder / "out.log").read_text().splitlines()]
        started = [(int(seed), int(time_ns)) for seed, process, time_ns in lines if process not in self.parents]
        rows = Comparison.open(self.folder / "out").runs
        stored_ns = {
            seed: max((self.folder / "out" / file).stat().st_mtime_ns for file in own["file"])
            for seed, own in rows.groupby("seed")
        }
        assert not [seed for seed, time_ns in started if time_ns > stored_ns[seed]], "started although it was stored"
        lost = len(started) - len(rows)
        assert 0 <= lost <= self.kills * 2 * PROCESSES  # what may have been submitted
        return lost


@pytest.fixture
def killed(tmp_path, request, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STARTED_LOG", str(tmp_path / "whole.log"))
    monkeypatch.setenv("PAUSE_S", "0")
    (tmp_path / "gen.py").write_text(LOGGED)
    return Killed(tmp_path, *request.param)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [(6, 0.1)], indirect=True)
def test_killed_once_nothing_is_lost_or_done_twice(killed):
    process = killed.start()
    while len(killed.runs()) < 2 and process.poll() is None:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    killed.kill(process)
    assert 2 <= killed.finished_at_kill[-1] < 2 * killed.seeds
    killed.finish()
    killed.check_against_one_that_was_never_killed()
    killed.check_that_nothing_was_done_twice()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [(100, 0.1)], indirect=True)
def test_killed_many_times_at_any_moment_nothing_is_lost_or_done_twice(killed):
    moments = random.Random(2)
    while True:
        process, before = killed.start(), len(killed.runs())
        wanted = before + (
            moments.random() < 0.75
        )  # any moment from the start on; three in four when some run has ended
        while len(killed.runs()) < wanted and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 1.5))
        if process.poll() is not None:
            break
        killed.kill(process)
    process.communicate()
    killed.finish()
    killed.check_against_one_that_was_never_killed()
    lost = killed.check_that_nothing_was_done_twice()
    idle = sum(
        now == before for before, now in zip([0, *killed.finished_at_kill], killed.finished_at_kill, strict=False)
    )
    print(
        f"\n{2 * killed.seeds} runs, {killed.kills} kills ({idle} of them before a run had finished), "
        f"{killed.leftovers} unfinished files left and removed; runs lost: 0, stored twice: 0, "
        f"started for nothing because they were under way: {lost}"
    )
    assert killed.kills >= 20
