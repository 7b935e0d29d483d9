"""Workloads in real namespaces with real gloo, and everything that can go wrong there. Needs root and PyTorch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_testbed import COMMAND, ENVIRONMENT, FOUR, HEADER, alive, children, eventually, finished, ours

pytestmark = pytest.mark.testbed
pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    subprocess.run([*COMMAND, "down"], env=ENVIRONMENT, capture_output=True, check=False)
    assert ours() == []


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    path = tmp_path / "endless.csv"
    path.write_text(HEADER + "a,0,4,100000,0.02,0.03,400000,100,1\nb,0,4,100000,0.01,0.01,300000,100,3\n")
    return path


@pytest.fixture
def running(endless: Path) -> Iterator[subprocess.Popen[str]]:
    """A run without an end, all of whose ranks are at work."""
    process = subprocess.Popen(
        [*COMMAND, "run", str(endless), *FOUR],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(lambda: len(children(process.pid)) >= 9, 60)  # the launcher, and 4 x 2 ranks
        time.sleep(2)
        yield process
    finally:
        process.kill()
        process.communicate()


def workers(process: subprocess.Popen[str]) -> list[int]:
    (launcher,) = (
        pid
        for pid in children(process.pid)
        if b"launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and Path(f"/proc/{pid}/stat").read_text().split()[3] == str(process.pid)
    )
    return sorted(children(launcher))


def fails(process: subprocess.Popen[str], below: set[int]) -> str:
    """Return what a run says that is to end within 10 s with an error, leaving no process and no namespace."""
    begin = time.monotonic()
    _, stderr = process.communicate(timeout=20)
    assert time.monotonic() - begin < 10, stderr
    assert process.returncode == 1, stderr
    assert eventually(lambda: not any(map(alive, below)))
    assert ours() == []
    (line,) = stderr.splitlines()
    return str(line)


@pytest.mark.parametrize(
    "policy",
    [
        ["--communication", "bounded-overlap:limit=99"],
        ["--scheduler", "srsf-1"],
        ["--communication", "adadual"],
        ["--communication", "preemptive:by=time", "--chunk-bytes", "50000", "--window", "3"],
        ["--scheduler", "block-srtf"],
    ],
)
def test_a_workload_runs_to_its_end_under_every_policy(workload: Path, tmp_path: Path, policy: list[str]) -> None:
    import pandas as pd

    done = finished("run", workload, *FOUR, *policy, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["transfers"] == 8 + 3 * 8
    jobs, transfers = (pd.read_parquet(tmp_path / "out" / f"{name}.parquet") for name in ("jobs", "transfers"))
    assert (jobs.jct_s > 8 * pd.Series([0.05, 0.02])).all()
    assert transfers.groupby(["job_id", "task"]).iteration.apply(list).map(lambda i: i == list(range(8))).all()
    assert ((transfers.ready_s <= transfers.granted_s) & (transfers.granted_s < transfers.ended_s)).all()
    bits = transfers.message_bytes * 1.5 * 8  # 2 (n - 1) / n, on four servers
    assert (transfers.ended_s - transfers.granted_s >= bits / 105e6).all()  # no faster than 100 Mbit/s


def test_jobs_share_processors_only_one_at_a_time_if_asked(workload: Path) -> None:
    done = finished("run", workload, "--servers", 2, "--gpus-per-server", 2, "--slots", "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("policy", [["--scheduler", "srsf-1"], ["--communication", "preemptive:by=time"]])
def test_jobs_that_train_a_model_take_part(workload: Path, tmp_path: Path, policy: list[str]) -> None:
    import pandas as pd

    done = finished("run", workload, *FOUR, *policy, "--chunk-bytes", 60000, "--train", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    transfers = pd.read_parquet(tmp_path / "out" / "transfers.parquet")
    buckets = transfers.groupby("job_id").task.unique().map(sorted).to_dict()
    assert buckets == {"a": ["bucket-0"], "b": ["bucket-0", "bucket-1", "bucket-2"]}
    whole = transfers.groupby(["job_id", "iteration"]).message_bytes.sum()
    assert (whole["a"] / 400_000).between(0.98, 1.02).all()
    assert (whole["b"] / 300_000).between(0.98, 1.02).all()


def test_a_job_on_one_server_trains_too(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text(HEADER + "a,0,1,5,0.02,0.03,400000,100,1\n")
    done = finished("run", path, "--servers", 2, "--train", "--json")
    assert done.returncode == 0, done.stderr


def test_a_network_that_is_up_is_used_and_stays(workload: Path) -> None:
    assert finished("up", "--servers", 4).returncode == 0
    assert finished("run", workload, *FOUR).returncode == 0
    assert len(ours()) == 5
    assert finished("list").stdout.split() == ["ddlsched-net", *(f"ddlsched-{server}" for server in range(4))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_everything(running: subprocess.Popen[str], number: signal.Signals) -> None:
    below = children(running.pid)
    running.send_signal(number)
    _, stderr = running.communicate(timeout=10)
    assert (running.returncode, len(stderr.splitlines())) == (130, 1), stderr
    assert eventually(lambda: not any(map(alive, below)))
    assert ours() == []


def test_the_gate_killed_leaves_no_process_and_down_removes_the_rest(running: subprocess.Popen[str]) -> None:
    below = children(running.pid)
    running.kill()
    running.wait()
    assert eventually(lambda: not any(map(alive, below)))
    assert len(ours()) == 5
    assert "removed ddlsched-net" in finished("down").stderr


def test_a_run_after_a_killed_one_removes_what_that_left(running: subprocess.Popen[str], workload: Path) -> None:
    running.kill()
    running.wait()
    done = finished("run", workload, *FOUR)
    assert done.returncode == 0, done.stderr
    assert ours() == []


def test_a_second_run_beside_one_is_refused(running: subprocess.Popen[str], workload: Path) -> None:
    done = finished("run", workload, *FOUR)
    assert done.returncode == 2
    assert f"another testbed is in use (process {running.pid})" in done.stderr


def test_a_worker_that_is_killed_ends_the_run(running: subprocess.Popen[str]) -> None:
    below = children(running.pid)
    os.kill(workers(running)[2], signal.SIGKILL)
    line = fails(running, below)
    assert "has died" in line or "is gone" in line or "an all-reduce failed" in line, line
    assert "server" in line


def test_a_worker_that_hangs_ends_the_run(running: subprocess.Popen[str]) -> None:
    below = children(running.pid)
    os.kill(workers(running)[-1], signal.SIGSTOP)
    assert "hangs: nothing heard for" in fails(running, below)


def test_a_link_set_down_ends_the_run(running: subprocess.Popen[str]) -> None:
    below = children(running.pid)
    subprocess.run(["ip", "-n", "ddlsched-2", "link", "set", "net0", "down"], check=True)
    line = fails(running, below)
    assert "has received nothing for" in line, line
    assert line.endswith("(down: net0 of server 2)")


def test_a_policy_that_admits_nobody_is_told(workload: Path, tmp_path: Path) -> None:
    policy = tmp_path / "nobody.py"
    policy.write_text(
        "from dataclasses import dataclass\n\n@dataclass(frozen=True, kw_only=True)\nclass Nobody:\n"
        "    def admit(self, transfer, network):\n        return False\n"
    )
    done = finished("run", workload, *FOUR, "--communication", f"{policy}:Nobody")
    assert done.returncode == 1
    assert "deadlock: communication Nobody() starts no transfer" in done.stderr
    assert "job 'a' has waited" in done.stderr


def test_messages_larger_than_memory_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text(HEADER + "a,0,4,8,0.02,0.03,400000000000000,100,1\n")
    done = finished("run", path, *FOUR)
    assert done.returncode == 2
    assert "would take 1,600,000,000 MB on all servers together; expected at most" in done.stderr
