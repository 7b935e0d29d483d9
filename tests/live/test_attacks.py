"""What was tried against the live manager: malformed reports, held connections, a second manager, what kills leave."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
from test_live_manager import GOOD, manager, received

from ddlsched.errors import InputError
from ddlsched.live.ownership import Ownership
from ddlsched.live.progress_socket import Report, ReportSocket, send_report

MALFORMED = {
    "a lone surrogate": json.dumps(GOOD | {"token": "\ud800"}).encode(),
    "nested brackets": b"[" * 1015,
    "a whole number of 400 digits": json.dumps(GOOD | {"loss": 10**400}).encode(),
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_report_does_not_end_the_manager(tmp_path, line) -> None:
    live, _ = manager(tmp_path, 1)
    live.store.submit("a", program="count", steps=10, max_nodes=1)
    with socket.socket(socket.AF_UNIX) as attacker:
        attacker.connect(live._socket.path)
        attacker.sendall(line + b"\n")
        live.run(60)
    assert live._socket.refused == 1


def test_reports_arrive_while_as_many_connections_are_held_as_there_may_be() -> None:
    reports = ReportSocket(lambda job, token: True)
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


def test_the_temporary_folder_of_a_killed_manager_is_removed_by_the_next(tmp_path) -> None:
    if (child := os.fork()) == 0:
        killed, _ = manager(tmp_path, 1)
        (tmp_path / "there").write_text(str(killed._socket.folder))
        os._exit(9)
    os.waitpid(child, 0)
    left = Path((tmp_path / "there").read_text())
    assert (left / "progress").is_socket()
    manager(tmp_path, 1)[0].close()
    assert not left.exists()


@pytest.mark.parametrize("name", ["elsewhere", "../elsewhere", "ddlsched-link"])
def test_nothing_but_a_temporary_folder_is_removed(tmp_path, monkeypatch, name) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    for folder in (tmp_path / "elsewhere", tmp_path / "tmp" / "elsewhere"):
        folder.mkdir()
        (folder / "precious").write_text("")
    (tmp_path / "tmp" / "ddlsched-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "manager.lock").write_text(f"{tmp_path / 'tmp' / name}\n")
    Ownership(tmp_path).close()
    assert (tmp_path / "tmp" / name / "precious").exists()
    assert (tmp_path / "elsewhere" / "precious").exists()
