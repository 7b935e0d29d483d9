"""Links that somebody planted in a folder of state, and folders that cannot be written (items 9 and 17)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import refused, run
from test_live_manager import AllToTheFirst, Nodes

from ddlsched.errors import InputError
from ddlsched.real.live.commits import CommitFolder, note_place, writing
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.real.live.store import JobStore
from ddlsched.real.slurm.journal import AgentJournal
from ddlsched.real.state_folder import Ownership, open_in

KEPT = "what stood here\n"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.write_text(KEPT)
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def live(state: Path, *more: object):
    (state.parent / "jobs.csv").write_text("job_id,program,steps,max_nodes\na,count,3,1\n")
    (state.parent / "idle.csv").write_text("node,idle_from_s,idle_to_s\n0,0,600\n")
    return run("live", state.parent / "jobs.csv", "--state", state, "--trace", state.parent / "idle.csv", *more)


@pytest.mark.parametrize("name", ["timeline.csv", "manager.lock", "jobs.sqlite"])
def test_item_9_a_link_in_the_folder_of_state_is_refused_and_its_target_stays(
    state: Path, target: Path, name: str
) -> None:
    (state / name).symlink_to(target)
    refused(live(state), f"{name}: cannot be used")
    assert target.read_text() == KEPT


@pytest.mark.parametrize("name", ["history.tmp", "state.tmp", "writer.lock"])
def test_item_9_a_link_in_a_jobs_folder_is_refused_and_its_target_stays(state: Path, target: Path, name: str) -> None:
    (state / name).symlink_to(target)
    with pytest.raises(InputError, match=rf"{name}: cannot be used .*; expected a file, and no link"), writing(state):
        CommitFolder(state).commit([0.5], lambda file: file.write(b"new"))
    assert target.read_text() == KEPT


@pytest.mark.long
@pytest.mark.parametrize("planted", ["folder", "history.json", "node0.log"])
def test_item_9_a_job_with_a_link_in_its_place_fails_alone(state: Path, target: Path, planted: str) -> None:
    elsewhere = state.parent / "elsewhere"
    elsewhere.mkdir()
    if planted == "folder":
        (state / "a").symlink_to(elsewhere)
    else:
        (state / "a").mkdir()
        (state / "a" / planted).symlink_to(target)
    events, warnings = list[LiveEvent](), list[str]()
    manager = LiveManager(state, Nodes(1), AllToTheFirst(), watch=events.append, warn=warnings.append)
    for job in "ab":
        manager.store.submit(job, program="count", steps=3, max_nodes=1)
    manager.run(60)
    assert [job.state for job in JobStore(state / "jobs.sqlite").jobs()] == ["failed", "finished"]
    assert len(warnings) == 1
    assert "cannot be used" in warnings[0]
    assert (target.read_text(), list(elsewhere.iterdir())) == (KEPT, [])


def test_item_9_the_note_of_where_jobs_commit_and_the_journal_follow_no_link(state: Path, target: Path) -> None:
    (state / "commits").symlink_to(target)
    note_place(state, f"local://{state}/far")
    assert not (state / "commits").is_symlink()
    (state / "agent.sqlite").symlink_to(target)
    with pytest.raises(InputError, match=r"agent\.sqlite: cannot be used"):
        AgentJournal(state / "agent.sqlite")
    assert target.read_text() == KEPT


def test_item_9_a_pipe_or_a_folder_in_the_place_of_a_file_is_refused_at_once(state: Path) -> None:
    os.mkfifo(state / "manager.lock")
    with pytest.raises(InputError, match=r"manager\.lock"):
        Ownership(state)
    (state / "folder").mkdir()
    with pytest.raises(InputError, match=r"folder: cannot be used"):
        open_in(state, "folder", "rb")


@pytest.mark.long
def test_a_folder_of_state_may_itself_be_reached_by_a_link_of_the_users(state: Path) -> None:
    (state.parent / "link").symlink_to(state)
    done = live(state.parent / "link")
    assert done.exit_code == 0, done.stderr
    assert (state / "timeline.csv").exists()


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder here that even root cannot write")
def test_item_17_a_folder_that_cannot_be_written_is_one_line(state: Path) -> None:
    (state / "sys").symlink_to("/sys/kernel")
    refused(live(state / "sys"), "cannot be used")
    refused(run("slurm-agent", "main", "--state", "/sys/kernel"), "manager.lock: cannot be used")


def test_a_store_is_not_made_behind_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.sqlite"
    (tmp_path / "jobs.sqlite").symlink_to(elsewhere)
    with pytest.raises(InputError):
        JobStore(tmp_path / "jobs.sqlite")
    assert not elsewhere.exists()
