"""What the live mode leaves on disk is whole at any moment, and what a killed manager leaves is cleaned up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run

from ddlsched.errors import InputError
from ddlsched.real import state_folder
from ddlsched.real.live.commits import CommitFolder
from ddlsched.real.live.reports import ReportSocket
from ddlsched.real.live.store import JobStore
from ddlsched.real.state_folder import open_in


def test_weights_are_on_disk_before_the_file_that_names_them_and_the_old_ones_go_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state1.pt").write_bytes(b"old")
    acts: list[tuple[str, str]] = []

    def noted(what: str, name: str, act):
        def noting(self: Path, *args, **kwargs):
            acts.append((what, self.name))
            return act(self, *args, **kwargs)

        monkeypatch.setattr(Path, name, noting)

    noted("renamed", "replace", Path.replace)
    noted("removed", "unlink", Path.unlink)
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        acts.append(("synced", Path(f"/proc/self/fd/{descriptor}").resolve().name))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    CommitFolder(tmp_path).commit([0.5, 0.25], lambda file: file.write(b"new"))
    assert acts == [
        ("synced", "state.tmp"),
        ("renamed", "state.tmp"),
        ("synced", tmp_path.name),
        ("synced", "history.tmp"),
        ("renamed", "history.tmp"),
        ("synced", tmp_path.name),
        ("removed", "state1.pt"),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.json", "state2.pt"]
    assert json.loads((tmp_path / "history.json").read_text()) == {"losses": [0.5, 0.25]}


MANAGER = """
import sys
from ddlsched.real.live.reports import ReportSocket
print(ReportSocket(lambda job: None).path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own, short enough for a socket's path."""
    folder = Path(tempfile.mkdtemp(prefix="dd", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_the_next_manager_removes_what_a_killed_one_left_and_nothing_else(temporary: Path) -> None:
    (temporary / "ddlsched-mine").mkdir()
    (temporary / "ddlsched-live-link").symlink_to(temporary / "ddlsched-mine")
    managers = [
        subprocess.Popen([sys.executable, "-c", MANAGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    killed, alive = (Path(manager.stdout.readline().strip()).parent for manager in managers)
    managers[0].send_signal(signal.SIGKILL)
    managers[0].communicate()
    assert killed.is_dir()
    new = ReportSocket(lambda job: None)
    there = {path.name for path in temporary.iterdir()}
    assert there == {"ddlsched-mine", "ddlsched-live-link", alive.name, Path(new.path).parent.name}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(new.path)
    new.close()
    managers[1].communicate("")
    assert not Path(new.path).parent.exists()


def submit_many(store: JobStore) -> None:
    for number in range(1000):
        store.submit(f"job{number}", program="count", steps=1, max_nodes=1)


@pytest.mark.long
def test_a_full_disk_under_the_state_of_jobs_is_one_line(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(InputError, match=r"jobs\.sqlite: .* cannot be kept \(database or disk is full\)"):
        submit_many(store)
    assert store.jobs()  # what was committed is there, and no transaction is open
    store._db.execute(f"PRAGMA max_page_count = {pages + 100}")
    store.submit("one more", program="count", steps=1, max_nodes=1)


def test_a_timeline_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, name: str, mode: str, **options: Any) -> Any:
        return Path("/dev/full").open(mode, 0) if name == "timeline.csv" else open_in(folder, name, mode, **options)

    monkeypatch.setattr(state_folder, "open_in", full)
    (tmp_path / "jobs.csv").write_text("job_id,program,steps,max_nodes\na,count,3,1\n")
    (tmp_path / "idle.csv").write_text("node,idle_from_s,idle_to_s\n1,0,1000\n")
    done = run("live", tmp_path / "jobs.csv", "--state", tmp_path / "state", "--trace", tmp_path / "idle.csv")
    refused(done, "timeline.csv: cannot be written (No space left on device)")
