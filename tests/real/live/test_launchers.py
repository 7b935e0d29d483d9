"""Who starts processes on nodes, and reports that come by TCP."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.errors import InputError
from ddlsched.real.live import reports
from ddlsched.real.live.nodes import LocalLauncher, SeldomAsked, SlurmLauncher
from ddlsched.real.live.reports import Ready, ReportSocket, send_report


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let srun write its arguments and what it is told of exit codes, and then wait."""
    path = tmp_path / "srun"
    path.write_text(f'#!/bin/sh\necho "$@" $SLURM_EXIT_ERROR $SLURM_EXIT_IMMEDIATE > {tmp_path}/said\nexec sleep 60\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "said"


def test_a_process_on_a_node_is_a_job_of_the_whole_node_that_starts_now_or_never(srun: Path) -> None:
    launcher = SlurmLauncher("idle", "ddlsched-live-1")
    with (srun.parent / "log").open("ab") as log:
        process = launcher.start("n3", log)
    until_s = time.monotonic() + 20
    while not (srun.exists() and srun.read_text().endswith("\n")) and time.monotonic() < until_s:
        time.sleep(0.02)
    said = srun.read_text()
    launcher.end(process)
    assert "--exclusive --quiet --immediate=5 --partition=idle --nodelist=n3 --job-name=ddlsched-live-1" in said
    assert said.endswith("-m ddlsched.real.live.worker 124 125\n")
    assert process.returncode == -15  # srun passes SIGTERM on; SIGKILL would leave its job behind


@pytest.mark.parametrize(
    ("code", "taken"), [(0, False), (1, False), (124, True), (125, True), (143, True), (137, True)]
)
def test_a_node_that_slurm_took_or_never_gave_is_no_failure_of_the_job(code: int, taken: bool) -> None:
    assert SlurmLauncher("idle", "a").was_taken(code) is taken
    assert LocalLauncher().was_taken(code) is False


class Stubborn:
    """A process that ends only when it is killed, or has ended."""

    def __init__(self, ended: bool, ends_s: float | None = None) -> None:
        self.ended, self.ends_s, self.told = ended, ends_s, list[str]()

    def poll(self) -> int | None:
        return 0 if self.ended else None

    def terminate(self) -> None:
        self.told.append("terminate")

    def kill(self) -> None:
        self.told.append("kill")
        self.ended = True

    def wait(self, timeout: float | None = None) -> None:
        self.told.append(f"wait {timeout}")
        if not self.ended and self.ends_s is None:
            raise subprocess.TimeoutExpired("srun", timeout or 0)


@pytest.mark.parametrize(
    ("process", "slurm", "local"),
    [
        (lambda: Stubborn(True), ["wait 10.0"], ["wait None"]),
        (lambda: Stubborn(False, 1.0), ["terminate", "wait 10.0"], ["kill", "wait None"]),
        (lambda: Stubborn(False), ["terminate", "wait 10.0", "kill", "wait None"], ["kill", "wait None"]),
    ],
)
def test_srun_has_ten_seconds_to_end_its_job(process: Any, slurm: list[str], local: list[str]) -> None:
    for launcher, told in ((SlurmLauncher("idle", "a"), slurm), (LocalLauncher(), local)):
        ends = process()
        launcher.end(ends)
        assert ends.told == told


def test_jobs_that_a_manager_left_are_cancelled_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []
    answers: list[Any] = [0, 1, subprocess.TimeoutExpired("scancel", 30), FileNotFoundError()]

    def run(command: list[str], **settings: Any) -> SimpleNamespace:
        told.append(command)
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return SimpleNamespace(returncode=answer, stdout="", stderr="scancel: error")

    monkeypatch.setattr(subprocess, "run", run)
    launcher = SlurmLauncher("idle", "ddlsched-live-7")
    for _ in range(3):
        launcher.end_leftovers()
    with pytest.raises(InputError, match="scancel: no such program; expected Slurm's commands"):
        launcher.end_leftovers()
    assert told == [["scancel", "--name=ddlsched-live-7", "--me"]] * 4


@pytest.mark.parametrize(
    ("code", "taken", "killed"),
    [
        (0, False, False),
        (-9, True, True),
        (-15, True, True),
        (-2, True, True),
        (-1, True, True),
        (-11, True, False),
        (9, False, False),
    ],
)
def test_signals_from_outside_are_told_from_a_programs_own(code: int, taken: bool, killed: bool) -> None:
    slurm = SlurmLauncher("idle", "a")
    assert (slurm.was_taken(code), slurm.was_killed(code), LocalLauncher().was_killed(code)) == (taken, False, killed)
    assert (slurm.parent, LocalLauncher().parent) == (0, os.getpid())


def test_a_scavenger_is_asked_again_five_seconds_after_its_answer() -> None:
    asked: list[float] = []

    class Nodes:
        def idle(self, now_s: float) -> frozenset[str]:
            asked.append(now_s)
            return frozenset({f"n{len(asked)}"})

    seldom = SeldomAsked(Nodes(), lambda _: None)

    def answer() -> None:
        assert seldom._answer is not None
        seldom._answer.result(10)

    assert seldom.idle(0.0) == frozenset()
    answer()
    assert seldom.idle(1.0) == {"n1"}
    assert seldom.idle(5.9) == {"n1"}
    assert asked == [0.0]
    seldom.idle(6.0)
    answer()
    assert asked == [0.0, 6.0]
    assert seldom.idle(20.0) == {"n2"}


def test_jobs_of_two_folders_have_two_names(tmp_path: Path) -> None:
    one, other = (SlurmLauncher.for_folder("idle", tmp_path / name).name for name in "ab")
    assert one != other
    assert one == SlurmLauncher.for_folder("idle", tmp_path / "b" / ".." / "a").name


def test_a_local_process_is_ended_at_once() -> None:
    process = subprocess.Popen(["sleep", "60"])
    LocalLauncher().end(process)
    assert process.returncode == -9


def test_reports_by_tcp_are_believed_with_the_token_only() -> None:
    reports = ReportSocket({"a": "right"}.get, "127.0.0.1")
    good, bad = (Ready("a", token, 1, 0, "127.0.0.1", 5) for token in ("right", "wrong"))
    for report in (good, bad):
        send_report(reports.path, report)
    received = []
    until_s = time.monotonic() + 10
    while reports.refused == 0 or not received:
        assert time.monotonic() < until_s
        received += reports.receive(0.1)
    assert received == [good]
    reports.close()
    send_report(reports.path, good)  # nobody there: no error


def test_an_address_of_somebody_else_is_refused() -> None:
    with pytest.raises(InputError, match=r"192\.0\.2\.1: cannot listen there"):
        ReportSocket({"a": "right"}.get, "192.0.2.1")


def test_a_manager_that_is_slow_to_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, contextlib.ExitStack() as waiting:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        for _ in range(2):
            caller = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(str(tmp_path / "s"))
        asked = threading.Thread(target=reports._is_dead, args=(tmp_path / "s",), daemon=True)
        asked.start()
        asked.join(2)
        assert not asked.is_alive()
