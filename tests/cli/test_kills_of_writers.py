"""Commands that write a file, killed at any moment and started again: a file is whole or not there, and ends the same.

``KILLS=200 python -m pytest -m slow tests/cli/test_kills_of_writers.py -s`` kills that often in all.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddlsched.training.recorded.rank_steps import RankCommunication, RankStep, WallTime
from ddlsched.training.recorded.recordings import recording_text

KILLS = int(os.environ.get("KILLS", 20))
SMALL = "microsoft-160:scale=0.002"
SEARCH = ["tune", SMALL, "--placement", "lwf", "--vary", "placement.kappa=1,2,4", "--trials", "3"]
SEARCH += ["--seeds", "1,2", "--held-out", "11,12", "--processes", "1"]
SWF = "".join(
    f"{n} {n} 0 {10 + n % 7} {1 + n % 8} -1 -1 {1 + n % 8} 100 -1 {n % 50 and 1} 1 1 1 1 -1 -1 -1\n"
    for n in range(1, 20000)
)
POLICIES = ["--scheduler", "ada-srsf", "--scheduler", "srsf-1"]
COMMANDS = {
    "workload": ["workload", "microsoft-160", "--seed", "1", "--out", "jobs.csv"],
    "import": ["workload", "import", "swf", "trace.swf", "--seed", "1", "--out", "jobs.csv"],
    "simulate": ["simulate", "small.csv", "--run-out", "run.parquet", "--jobs-out", "times.csv"],
    "report": ["report", "compared", "--out", "report.html"],
    "calibrate": ["calibrate", "measured.csv", "--chart", "fit.png"],
    "timeline": ["simulate", "small.csv", "--timeline", "timeline.json"],
    "estimate": ["estimate", "gpt3-350m", "--cluster", "v100", "--data", "8", "--job-out", "job.json"],
    "design": ["design", "gpt3-6.7b", "--gpus", "8,16", "--cluster", "h100", "--out", "all.csv"],
    "failures": ["workload", "failures", "swf", "trace.swf", "--out", "causes.csv"],
    "import-training": ["import-training", "0.recording.json", "1.recording.json", "--out", "trained.json"],
    "import-cluster": ["import-cluster", "kueue", "cluster", "--out", "imported"],
    "compare": ["compare", "small.csv", *POLICIES, "--seeds", "2", "--processes", "1", "--out", "again"],
}
COMPARISON = ["compare", "small.csv", *POLICIES, "--out", "compared"]
CLUSTER = Path(__file__).parents[2] / "docs" / "examples" / "kueue_cluster"
MEASURED = Path(__file__).parents[2] / "experiments" / "fidelity" / "measured" / "calibration.csv"


def started(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "ddlsched", *command]
    return subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def finished(folder: Path, command: list[str]) -> tuple[bytes, float]:
    begin_s = time.perf_counter()
    output, errors = (process := started(folder, command)).communicate(timeout=600)
    assert process.returncode == 0, errors.decode()
    said = b"\n".join(line for line in output.splitlines() if b"wall time" not in line)
    return said, time.perf_counter() - begin_s


def is_done(folder: Path, command: list[str], after_s: float) -> bool:
    """Kill a command after a while; returns whether it was faster."""
    process = started(folder, command)
    try:
        process.communicate(timeout=after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    return True


def whole(folder: Path, name: str) -> object:
    """Return what a file that a run wrote holds, but for how long the run took."""
    path = folder / name
    if path.suffix == ".parquet":
        return pd.read_parquet(path).to_csv()
    if path.name == "runs.csv":
        return pd.read_csv(path).drop(columns="engine_s").to_csv()
    return path.read_bytes()


def written(folder: Path, before: set[str]) -> set[str]:
    """Return the names of files that a command has written for its user; those that begin with a dot are none."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(name) for name in names if not any(part[0] == "." for part in name.parts)} - before


def recorded_step() -> RankStep:
    stretch = WallTime(5000, 6000)
    stretch.phase("forward", 5000)
    stretch.phase("backward", 5100)
    stretch.communicate(RankCommunication("all-reduce", 4000), 5200, (5700, 5900), (5200, 5900))
    stretch.phase("optimizer", 5950)
    return stretch.step()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trace.swf").write_text(SWF)
    finished(tmp_path, ["workload", "microsoft-160", "--scale", "0.002", "--seed", "1", "--out", "small.csv"])
    finished(tmp_path, [*COMPARISON, "--seeds", "3", "--processes", "1"])
    shutil.copy(MEASURED, tmp_path / "measured.csv")
    shutil.copytree(CLUSTER, tmp_path / "cluster")
    for rank in range(2):
        steps = {step: recorded_step() for step in range(200)}
        (tmp_path / f"{rank}.recording.json").write_text(recording_text(rank, 2, {}, steps))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_killed_command_writes_is_whole_and_ends_the_same(name: str, folder: Path) -> None:
    command, draw, kills = COMMANDS[name], random.Random(name), 0
    before = written(folder, set())
    finished(folder, command)  # what is compiled, is
    expected = {path: whole(folder, path) for path in written(folder, before)}
    said, run_s = finished(folder, command)
    while kills < KILLS / (len(COMMANDS) + 1):
        for path in (folder / path for path in expected):
            path.unlink(missing_ok=True)
        shutil.rmtree(folder / "again", ignore_errors=True)  # where runs are that a sweep would not do again
        for _ in range(4):
            kills += not is_done(folder, command, draw.uniform(0.3, 1.1) * run_s)
            for path in written(folder, before) & expected.keys():
                assert whole(folder, path) == expected[path], f"half of {path} is there"
        assert finished(folder, command)[0] == said
        assert {path: whole(folder, path) for path in expected} == expected
    print(name, kills, "kills; left over:", written(folder, before) - expected.keys())


@pytest.mark.slow
def test_a_killed_search_has_tried_the_untuned_policies_and_loses_no_trial(folder: Path) -> None:
    optuna = pytest.importorskip("optuna")
    draw, kills, _ = random.Random(0), 0, finished(folder, [*SEARCH, "--out", "whole"])
    while kills < KILLS / (len(COMMANDS) + 1):
        shutil.rmtree(folder / "tuning", ignore_errors=True)
        known: dict[int, float] = {}
        for _ in range(5):
            kills += not is_done(folder, SEARCH, draw.uniform(1.0, 8.0))
            known |= finished_trials(optuna, folder, known)
        finished(folder, SEARCH)
        known |= finished_trials(optuna, folder, known)
        assert len(known) == 3
    print("tune", kills, "kills")


def finished_trials(optuna: Any, folder: Path, known: dict[int, float]) -> dict[int, float]:
    """Return the finished trials, which have those that are known, with their values; the first is of no change."""
    if not (folder / "tuning" / "study.db").exists():
        return {}
    try:
        study = optuna.load_study(study_name="ddlsched", storage=f"sqlite:///{folder / 'tuning' / 'study.db'}")
    except (KeyError, optuna.exceptions.StorageInternalError):  # killed before the study was there
        assert not known
        return {}
    found = {trial.number: trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")}
    assert known.items() <= {number: trial.value for number, trial in found.items()}.items()
    assert not found or found[min(found)].params == {"placement.kappa": 1}
    return {number: trial.value for number, trial in found.items()}
