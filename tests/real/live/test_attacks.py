"""What was tried against the live manager: malformed reports, held connections, hanging processes, a second manager."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from test_live_manager import GOOD, LINE, AllToTheFirst, Nodes, manager, received

from ddlsched.errors import InputError
from ddlsched.real.live.commits import committed_steps
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.real.live.reports import MOST_BYTES, Report, ReportSocket, send_report
from ddlsched.real.live.seat import Assignment, Seat
from ddlsched.real.live.store import JobStore

MALFORMED = {
    "a lone surrogate": json.dumps(LINE | {"token": "\ud800"}).encode(),
    "nested brackets": b"[" * 1015,
    "a whole number of 400 digits": json.dumps(LINE | {"loss": 10**400}).encode(),
}


@pytest.mark.long
def test_malformed_reports_do_not_end_the_manager(tmp_path) -> None:
    live, _ = manager(tmp_path, 1)
    live.store.submit("a", program="count", steps=10, max_nodes=1)
    with ExitStack() as attackers:
        for line in MALFORMED.values():
            attacker = attackers.enter_context(socket.socket(socket.AF_UNIX))
            attacker.connect(live._socket.path)
            attacker.sendall(line + b"\n")
        live.run(60)
    assert live._socket.refused == len(MALFORMED)


def test_reports_arrive_while_as_many_connections_are_held_as_there_may_be() -> None:
    reports = ReportSocket(lambda job: "t")
    held = [socket.socket(socket.AF_UNIX) for _ in range(256)]
    try:
        for each in held:
            each.connect(reports.path)
            each.sendall(b"{")
            reports.receive(0.0)
        send_report(reports.path, Report(**GOOD))
        assert received(reports) == [Report(**GOOD)]
    finally:
        for each in held:
            each.close()
        reports.close()


def test_a_second_manager_of_the_same_jobs_is_refused_and_changes_nothing(tmp_path) -> None:
    first, _ = manager(tmp_path, 1)
    first.store.submit("a", program="count", steps=10, max_nodes=1)
    first.store.start("a")
    with pytest.raises(InputError, match="another manager runs its jobs"):
        manager(tmp_path, 1)
    assert [job.state for job in first.store.jobs()] == ["running"]
    first.close()
    manager(tmp_path, 1)[0].close()


def test_the_temporary_folder_of_a_killed_manager_is_removed_by_the_next(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where no other test removes it
    if (child := os.fork()) == 0:
        killed, _ = manager(tmp_path, 1)
        (tmp_path / "there").write_text(str(Path(killed._socket.path).parent))
        os._exit(9)
    os.waitpid(child, 0)
    left = Path((tmp_path / "there").read_text())
    assert (left / "progress").is_socket()
    manager(tmp_path, 1)[0].close()
    assert not left.exists()


def train_until(live: LiveManager, folder: Path, step: int) -> None:
    while len(committed_steps(folder / "a")) < step:
        live.turn()


def turn_until(live: LiveManager, events: list[LiveEvent], what: str, hang_s: float) -> LiveEvent:
    """Go on until an event, with less patience than a start on a busy machine takes."""
    live.hang_s, patience_s = hang_s, live.hang_s
    while what not in (found := {event.what: event for event in events}):
        assert live.turn()
    live.hang_s = patience_s
    return found[what]


@pytest.mark.long
def test_a_stopped_process_is_noticed_ended_and_started_again_from_its_last_commit(tmp_path) -> None:
    events: list[LiveEvent] = []
    live, _ = manager(tmp_path, 1, events)
    live.store.submit("a", program="count", steps=20, max_nodes=1)
    train_until(live, tmp_path, 5)
    os.kill(live.running["a"].processes[0].pid, signal.SIGSTOP)
    stopped_s, committed = live.now_s, len(committed_steps(tmp_path / "a"))
    hang = turn_until(live, events, "a process hangs", hang_s=1.0)
    assert stopped_s + 0.9 < hang.time_s < stopped_s + 5.0
    live.run(60)
    again = next(event for event in events if event.what == "started" and event.time_s > hang.time_s)
    assert again.step in (committed, committed + 1)  # it may have been stopped between a commit and the next look
    assert len(committed_steps(tmp_path / "a")) == 20


@pytest.mark.long
def test_a_process_that_hangs_as_it_starts_is_ended(tmp_path) -> None:
    (tmp_path / "sleep.py").write_text("import time; time.sleep(600)")
    events: list[LiveEvent] = []
    live, _ = manager(tmp_path, 1, events, hang_s=0.4)
    live.store.submit("a", program=str(tmp_path / "sleep.py"), steps=5, max_nodes=1)
    live.run(60)
    assert [event.what for event in events if event.job and event.what != "joining"] == ["a process hangs"] * 5 + [
        "failed"
    ]


@pytest.mark.long
def test_only_the_stopped_one_of_a_group_is_ended(tmp_path) -> None:
    events: list[LiveEvent] = []
    live, _ = manager(tmp_path, 2, events)
    live.store.submit("a", program="count", steps=1000, max_nodes=2)
    while not (live.running and len(live.running["a"].group) == 2):
        live.turn()
    first, second = live.running["a"].processes
    os.kill(first.pid, signal.SIGSTOP)
    events.clear()
    turn_until(live, events, "a process hangs", hang_s=1.0)
    while "regrouped" not in [event.what for event in events]:
        assert live.turn()
    assert first.poll() == -signal.SIGKILL
    assert live.running["a"].group[0].process is second
    assert second.poll() is None
    train_until(live, tmp_path, events[-1].step + 5)
    live.close()


@pytest.mark.long
def test_a_group_whose_members_die_one_after_another_is_started_not_regrouped(tmp_path) -> None:
    events: list[LiveEvent] = []
    live = LiveManager(tmp_path, Nodes(2), AllToTheFirst(), 1, events.append)
    live.store.submit("a", program="count", steps=1000, max_nodes=2)
    while not (live.running and len(live.running["a"].group) == 2):
        assert live.turn()
    last = live.running["a"].processes[1]
    os.kill(last.pid, signal.SIGSTOP)  # So that it cannot say that it is ready before it dies, too.
    live.running["a"].processes[0].kill()
    while [event.what for event in events].count("joining") < 2:
        assert live.turn()
    events.clear()
    last.kill()
    last.wait()
    while not {"started", "regrouped"} & {event.what for event in events}:
        assert live.turn()
    assert "regrouped" not in [event.what for event in events]
    live.close()


@pytest.mark.slow
def test_reports_that_cannot_be_true_do_not_end_the_manager(tmp_path) -> None:
    """They come from a process of the job, which knows the token."""
    live, _ = manager(tmp_path, 2)
    live.store.submit("a", program="count", steps=300, max_nodes=2)
    train_until(live, tmp_path, 5)
    token = live.running["a"].assignment.token
    rng = np.random.default_rng(0)
    for _ in range(300):
        if "a" not in live.running:
            break
        nodes, samples, step = (int(rng.choice([0, 1, 2, 3, 300, 2**63 - 1])) for _ in range(3))
        time_s = float(rng.choice([0.0, -1e308, 1e308, 1e-320, time.time()]))
        said = {"job": "a", "token": token, "step": step, "samples": samples, "nodes": nodes, "time_s": time_s}
        send_report(live._socket.path, Report(**said, generation=int(rng.choice([0, 1, 2])), loss=1e308))
        live.turn()
    live.run(60)
    assert [job.state for job in JobStore(tmp_path / "jobs.sqlite").jobs()] == ["finished"]


@pytest.mark.long
def test_who_listens_learns_no_token_and_can_neither_make_reports_nor_have_them_count_again(tmp_path) -> None:
    live, _ = manager(tmp_path, 1)
    live.store.submit("a", program="count", steps=60, max_nodes=1)
    train_until(live, tmp_path, 5)
    token = live.running["a"].assignment.token
    with socket.socket(socket.AF_UNIX) as heard:
        heard.bind(str(tmp_path / "heard"))
        heard.listen()
        true = Report("a", token, live.running["a"].group[0].generation, 30, 1920, 1, 0.5, 1.0)
        send_report(str(tmp_path / "heard"), true)
        connection, _ = heard.accept()
        line = connection.recv(MOST_BYTES)
        connection.close()
    assert token.encode() not in line
    said: list[int] = []
    live.watch = lambda event: said.append(event.step) if event.what == "step" else None
    changed = json.dumps(json.loads(line) | {"step": 31}).encode() + b"\n"
    refused = live._socket.refused
    for each in (line, line, changed):
        with socket.socket(socket.AF_UNIX) as attacker:
            attacker.connect(live._socket.path)
            attacker.sendall(each)
    while live._socket.refused == refused:
        live.turn()
    assert live._socket.refused == refused + 1  # the one that was changed
    live.run(60)
    assert said.count(30) == 1
    assert len(committed_steps(tmp_path / "a")) == 60


def test_a_clock_that_is_set_changes_no_measured_speed(tmp_path, monkeypatch) -> None:
    reports = ReportSocket(lambda job: "t")
    read, write = os.pipe()
    line = Assignment("a", "t", "count", 5, str(tmp_path), reports.path, os.getpid())
    os.write(write, json.dumps(line.__dict__).encode() + b"\n")
    seat = Seat(read)
    begin_s = time.monotonic()
    for clock_s in (2e9, 0.0):
        monkeypatch.setattr(time, "time", lambda clock_s=clock_s: clock_s)
        seat.report([0.5], 64, 1)
    found = received(reports) + received(reports)
    reports.close()
    os.close(read)
    os.close(write)
    assert len(found) == 2
    assert begin_s <= found[0].time_s <= found[1].time_s <= time.monotonic()
