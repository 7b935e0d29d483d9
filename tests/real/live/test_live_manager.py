"""The live manager with jobs that only count, so that it needs no PyTorch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from algorithms.allocation.count_programme import CountProgramme
from ddlsched.errors import InputError
from ddlsched.real.live.commits import committed_steps
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.real.live.processes import LiveProcess
from ddlsched.real.live.reports import MOST_BYTES, Report, ReportSocket, parse_report, send_report
from ddlsched.real.live.store import JobStore
from ddlsched.workload.profiling import JobMonitor, ProfiledAllocator, ProfilingAdvisor


class Nodes:
    """A scavenger whose answer a test sets."""

    def __init__(self, count: int) -> None:
        self.there = frozenset(f"node{n}" for n in range(count))

    def idle(self, now_s: float) -> frozenset[str]:
        return self.there


class AllToTheFirst:
    """Shares all nodes out to the first job."""

    def __init__(self) -> None:
        self.monitor, self.advisor = JobMonitor(), self

    def counts(self, jobs, num_nodes: int, now_s: float) -> list[int]:
        return [min(job.max_nodes, num_nodes) if job is jobs[0] else 0 for job in jobs]

    def wake_s(self) -> None:
        return None


def manager(
    folder: Path, nodes: int, events: list[LiveEvent] | None = None, hang_s: float = 60.0, commits: str | None = None
) -> tuple[LiveManager, Nodes]:
    scavenger = Nodes(nodes)
    advisor = ProfilingAdvisor(scales=(2, 1), hold_s=0.2)
    sharer = ProfiledAllocator(
        CountProgramme(lookahead_s=10), advisor, JobMonitor(warm_up_steps=1, least_steps=3), (0.3, 0.3)
    )
    watch = (lambda _: None) if events is None else events.append
    return LiveManager(folder, scavenger, sharer, 10, watch, hang_s, commits=commits), scavenger


@pytest.mark.long
def test_jobs_are_trained_to_their_end_and_profiled_largest_first(tmp_path) -> None:
    events: list[LiveEvent] = []
    live, _ = manager(tmp_path, 3, events)
    live.store.submit("a", program="count", steps=100, max_nodes=2)
    live.store.submit("b", program="count", steps=20, max_nodes=1)
    live.run(60)
    assert [job.state for job in JobStore(tmp_path / "jobs.sqlite").jobs()] == ["finished", "finished"]
    assert [len(committed_steps(tmp_path / name)) for name in "ab"] == [100, 20]
    sizes = [event.nodes for event in events if event.job == "a" and event.what in ("started", "regrouped")]
    assert sizes[:2] == [2, 1]


@pytest.mark.long
def test_a_node_that_vanishes_takes_its_process_and_at_most_a_step(tmp_path) -> None:
    events: list[LiveEvent] = []
    live, nodes = manager(tmp_path, 2, events)
    live.store.submit("a", program="count", steps=10_000, max_nodes=2)
    while not (live.running and len(live.running["a"].group) == 2):
        assert live.turn()
    before = len(committed_steps(tmp_path / "a"))
    events.clear()
    nodes.there = frozenset({"node1"})
    live.turn()
    at_most = len(committed_steps(tmp_path / "a")) + 1
    assert live.running["a"].nodes == ("node1",)
    while not (regrouped := [event for event in events if event.what == "regrouped"]):
        assert live.turn()
    assert before <= regrouped[0].step <= at_most
    while len(committed_steps(tmp_path / "a")) < regrouped[0].step + 20:
        assert live.turn()
    live.close()


@pytest.mark.long
def test_a_job_stopped_after_its_last_step_is_done_and_not_started_again(tmp_path) -> None:
    first, _ = manager(tmp_path, 1)
    first.store.submit("a", program="count", steps=20, max_nodes=1)
    while len(committed_steps(tmp_path / "a")) < 20:
        first.turn()
    if first.running:  # else its process had ended already, and the job is finished
        first.close()
    events: list[LiveEvent] = []
    again, _ = manager(tmp_path, 1, events)
    again.run(60)
    assert "started" not in [event.what for event in events]
    assert [job.state for job in JobStore(tmp_path / "jobs.sqlite").jobs()] == ["finished"]


@pytest.mark.long
def test_a_killed_process_is_started_again_from_what_is_committed(tmp_path) -> None:
    events: list[LiveEvent] = []
    live, _ = manager(tmp_path, 1, events)
    live.store.submit("a", program="count", steps=20, max_nodes=1)
    while len(committed_steps(tmp_path / "a")) < 5:
        live.turn()
    live.running["a"].processes[0].kill()
    live.run(60)
    assert len(committed_steps(tmp_path / "a")) == 20
    assert "a process died" in [event.what for event in events]


@pytest.mark.long
def test_a_job_that_keeps_dying_is_given_up(tmp_path, monkeypatch) -> None:
    live, _ = manager(tmp_path, 1)
    live.store.submit("a", program="no such program", steps=5, max_nodes=1)
    live.run(60)
    assert [job.state for job in JobStore(tmp_path / "jobs.sqlite").jobs()] == ["failed"]


def test_the_store_knows_what_a_dead_manager_ran(tmp_path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    assert store.submit("a", program="count", steps=5, max_nodes=1)
    assert not store.submit("a", program="count", steps=5, max_nodes=1)
    with pytest.raises(InputError, match="is known as"):
        store.submit("a", program="count", steps=6, max_nodes=1)
    token = store.start("a")
    assert (store.regroup("a"), store.token_of("a"), store.token_of("b")) == (1, token, None)
    again = JobStore(tmp_path / "jobs.sqlite")
    assert again.requeue("running") == ["a"]
    assert again.token_of("a") is None
    assert token.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert again.regroup("a") == 2


def test_a_file_that_is_no_database_is_refused(tmp_path) -> None:
    (tmp_path / "jobs.sqlite").write_text("x" * 5000)
    with pytest.raises(InputError, match="cannot be used"):
        JobStore(tmp_path / "jobs.sqlite")


GOOD = {"job": "a", "token": "t", "generation": 1, "step": 3, "samples": 192, "nodes": 2, "loss": 0.5, "time_s": 1.0}
LINE = {"type": "Report", **GOOD}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{",
        b"[" * 900,
        b"[" * 1015,
        json.dumps(LINE | {"token": "\ud800"}).encode(),
        json.dumps(LINE | {"job": "\udfff"}).encode(),
        json.dumps(LINE | {"loss": 10**400}).encode(),
        json.dumps(LINE | {"time_s": -(10**400)}).encode(),
        json.dumps(LINE | {"step": 10**400}).encode(),
        json.dumps(LINE | {"step": -1}).encode(),
        json.dumps(LINE | {"step": True}).encode(),
        json.dumps(LINE | {"loss": "0.5"}).encode(),
        json.dumps(LINE | {"loss": float("nan")}).encode(),
        json.dumps(LINE | {"more": 1}).encode(),
        json.dumps({name: LINE[name] for name in ("type", "job", "token")}).encode(),
        json.dumps(LINE | {"job": ""}).encode(),
    ],
)
def test_what_is_no_report_is_refused(line) -> None:
    assert parse_report(line) is None
    assert parse_report(json.dumps(LINE).encode()) == Report(**GOOD, commit_s=0.0)


def received(reports: ReportSocket) -> list[Report]:
    found = []
    for _ in range(5):
        found += reports.receive(0.02)
    return found


def test_the_socket_believes_only_valid_tokens_and_drops_what_is_too_long() -> None:
    reports = ReportSocket({"a": "right"}.get)
    try:
        assert Path(reports.path).stat().st_mode & 0o077 == 0
        assert Path(reports.path).parent.stat().st_mode & 0o077 == 0
        send_report(reports.path, Report(**GOOD | {"token": "right"}))
        send_report(reports.path, Report(**GOOD | {"token": "wrong"}))
        with socket.socket(socket.AF_UNIX) as endless:
            endless.connect(reports.path)
            endless.sendall(b"x" * (3 * MOST_BYTES))
            assert [report.token for report in received(reports)] == ["right"]
        assert reports.refused == 2
        assert reports._visitors == {}
    finally:
        reports.close()
    send_report(reports.path, Report(**GOOD))  # nobody there: no error


def test_a_process_whose_name_is_cut_within_a_letter_is_asked_for_its_state() -> None:
    own = Path("/proc/self/comm")
    before = own.read_bytes()
    try:
        own.write_bytes("entraînement-é".encode()[:15])
        process: Any = SimpleNamespace(process=SimpleNamespace(pid=os.getpid()))
        assert not LiveProcess.is_stopped(process)
    finally:
        own.write_bytes(before)


def test_a_process_is_stopped_while_it_is_stopped() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process: Any = SimpleNamespace(process=child)
    try:
        assert not LiveProcess.is_stopped(process)
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert LiveProcess.is_stopped(process)
    finally:
        child.kill()
        child.wait()
    assert not LiveProcess.is_stopped(process)  # nor once it is gone


def test_what_says_that_it_is_ready_and_more_is_no_report() -> None:
    said = {"type": "Ready", "job": "a", "token": "t", "process": 1, "generation": 0, "host": "h", "port": 5}
    assert parse_report(json.dumps(said).encode()) is not None
    assert parse_report(json.dumps(said | {"more": 1}).encode()) is None
