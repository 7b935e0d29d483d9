"""Commits in places that fsspec knows: what a kill between two writes, or a write in part, leaves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from test_live_manager import AllToTheFirst, Nodes, manager
from test_unreadable_commits import unreadable

from ddlsched.errors import InputError
from ddlsched.real.live.commits import CommitFolder, CommitStore, DamagedCommitsError, commits_at, note_place
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.real.live.store import JobStore
from ddlsched.real.state_folder import Ownership


@pytest.fixture(params=["memory", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    place = f"memory://{uuid.uuid4().hex}/a" if request.param == "memory" else f"local://{tmp_path}/far/a"
    yield place
    files, path = fsspec.core.url_to_fs(place)
    if files.exists(path):
        files.rm(path, recursive=True)


def names(url: str) -> list[str]:
    files, path = fsspec.core.url_to_fs(url)
    return sorted(name.rsplit("/", 1)[-1] for name in files.ls(path, detail=False))


def saved(content: bytes) -> Any:
    return lambda file: file.write(content)


def test_each_step_replaces_the_one_before(url: str) -> None:
    commits = commits_at(url)
    assert isinstance(commits, CommitStore)
    assert (commits.losses(), commits.has_state(0)) == ([], False)
    for step in range(4):
        commits.commit([0.5] * step, saved(b"state %d" % step))
    assert names(url) == ["history3.json", "state3.pt"]
    again = commits_at(url)
    assert again.losses() == [0.5] * 3
    with again.open_state(3) as file:
        assert file.read() == b"state 3"
    assert again.name_of_state(3) == f"{url}/state3.pt"


@pytest.mark.parametrize("writes", range(4))
def test_a_kill_before_any_write_or_removal_leaves_one_step_or_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    commits_at(url).commit([0.5], saved(b"one"))
    killed = commits_at(url)

    class Killed(BaseException):
        pass

    def unless_killed(act: Any) -> Any:
        def acting(*args: Any, **kwargs: Any) -> Any:
            nonlocal writes
            if writes == 0:
                raise Killed
            writes -= 1
            return act(*args, **kwargs)

        return acting

    files = killed._files  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        for name in ("put_file", "pipe_file", "rm_file"):
            patch.setattr(files, name, unless_killed(getattr(files, name)))
        with pytest.raises(Killed):
            killed.commit([0.5, 0.25], saved(b"two"))
    steps = len(commits_at(url).losses())
    assert steps == (2 if writes == 0 and "history2.json" in names(url) else 1)
    with commits_at(url).open_state(steps) as file:
        assert file.read() == (b"one", b"two")[steps - 1]
    again = commits_at(url)
    for step in range(steps + 1, 4):  # it goes on from what is committed
        again.commit([0.5] * step, saved(b"later"))
    assert names(url) == ["history3.json", "state3.pt"]


def test_a_commit_between_listing_and_reading_is_seen(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, reader = CommitStore(url), CommitStore(url)
    job.commit([0.5], saved(b"one"))
    files = reader._files
    read, steps = files.cat_file, [2, 3]

    def late(path: str) -> bytes:
        if steps:
            job.commit([0.5] * steps.pop(0), saved(b"later"))
        return bytes(read(path))

    monkeypatch.setattr(files, "cat_file", late)
    assert reader.losses() == [0.5] * 3


def test_histories_of_which_none_is_whole_are_not_taken_for_an_empty_place(url: str) -> None:
    commits_at(url).commit([0.5], saved(b"one"))
    files, path = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{path}/history1.json", b"{")
    assert commits_at(url).losses() == []  # the first commit, cut off
    files.pipe_file(f"{path}/history7.json", b"{")
    with pytest.raises(InputError, match=r"none of the histories of steps 1, 7 can be read"):
        commits_at(url).losses()


def test_histories_that_are_listed_but_gone_are_not_taken_for_damaged(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = commits_at(url)
    commits.commit([0.5] * 7)
    monkeypatch.setattr(CommitStore, "_steps", lambda self: [6])
    with pytest.raises(InputError, match="histories of steps 6 can be read") as raised:
        commits.losses()
    assert not isinstance(raised.value, DamagedCommitsError)
    monkeypatch.undo()
    files, path = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{path}/history7.json", b"[" * 100_000)
    with pytest.raises(DamagedCommitsError, match="histories of steps 7 can be read"):
        commits.losses()


def test_what_cannot_be_removed_goes_with_a_later_commit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = CommitStore(url)
    commits.commit([0.5], saved(b"one"))

    def refused(path: str) -> None:
        raise PermissionError(f"no removal of {path}")

    with monkeypatch.context() as patch:
        patch.setattr(commits._files, "rm_file", refused)
        commits.commit([0.5] * 2, saved(b"two"))
        commits.commit([0.5] * 3, saved(b"three"))
    assert commits_at(url).losses() == [0.5] * 3
    commits.commit([0.5] * 4, saved(b"four"))
    assert names(url) == ["history4.json", "state4.pt"]


def test_a_history_that_was_written_in_part_does_not_count(url: str) -> None:
    commits = commits_at(url)
    commits.commit([0.5], saved(b"one"))
    commits.commit([0.5, 0.25], saved(b"two"))
    files, path = fsspec.core.url_to_fs(url)
    whole = files.cat_file(f"{path}/history2.json")
    commits_at(url).commit([0.5], saved(b"one"))  # as if the step before had not gone yet
    for text in (whole[:-5], b"", b"[]", b"\xff", json.dumps({"losses": [0.1, 0.2], "sha256": ""}).encode()):
        files.pipe_file(f"{path}/history2.json", text)
        assert commits_at(url).losses() == [0.5]
    files.pipe_file(f"{path}/history2.json", whole)
    assert commits_at(url).losses() == [0.5, 0.25]


def test_a_path_and_a_file_url_are_folders(tmp_path: Path) -> None:
    assert commits_at(tmp_path) == commits_at(f"file://{tmp_path}") == CommitFolder(tmp_path)
    commits_at(f"file://{tmp_path}/new").commit([0.5], saved(b"one"))
    assert commits_at(tmp_path / "new").losses() == [0.5]


def test_places_that_cannot_be_used_are_named() -> None:
    with pytest.raises(InputError, match=r"odd://x: cannot be opened .*expected a URL that fsspec knows"):
        commits_at("odd://x")
    with pytest.raises(InputError, match=r"local:///proc/x: cannot be used .*expected a place for commits"):
        commits_at("local:///proc/x").commit([0.5])


@pytest.mark.long
def test_a_manager_runs_jobs_that_commit_elsewhere_and_finds_them_again(tmp_path: Path) -> None:
    state, url = tmp_path / "state", f"local://{tmp_path}/far"
    state.mkdir()
    live, _ = manager(state, 2, commits=url)
    live.store.submit("a", program="count", steps=20, max_nodes=2)
    while len(commits_at(f"{url}/a").losses()) < 5:
        live.turn()
    live.close()
    with pytest.raises(InputError, match=r"its jobs commit in local://.*, not in their folders"):
        manager(state, 2)
    live, _ = manager(state, 2, commits=url)
    live.run(60)
    assert [job.state for job in JobStore(state / "jobs.sqlite").jobs()] == ["finished"]
    assert commits_at(f"{url}/a").losses() == [1.0 / (1 + step) for step in range(20)]
    assert not (state / "a" / "history.json").exists()


def test_places_that_others_do_not_see_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="memory://x: is seen by one process only"):
        manager(tmp_path, 1, commits="memory://x")
    manager(tmp_path, 1)[0].close()
    with pytest.raises(InputError, match="its jobs commit in their folders, not in local://"):
        manager(tmp_path, 1, commits=f"local://{tmp_path}/far")


@pytest.mark.long
def test_a_place_that_cannot_be_read_at_an_event_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, nodes = list[LiveEvent](), Nodes(2)
    live = LiveManager(tmp_path, nodes, AllToTheFirst(), watch=events.append, commits=f"local://{tmp_path}/far")
    live.store.submit("a", program="count", steps=10_000, max_nodes=2)
    while not any(event.what == "step" and event.nodes == 2 for event in events):
        live.turn()
    known = events[-1].step

    with monkeypatch.context() as patch:
        patch.setattr("ddlsched.real.live.manager.commits_at", unreadable)
        nodes.there = frozenset({"node1"})
        while events[-1].what != "step" or events[-1].nodes != 1:
            live.turn()
    live.close()
    lost, regrouped = (next(event for event in events if event.what == what) for what in ("lost a node", "regrouped"))
    assert known <= lost.step <= regrouped.step < events[-2].step


def test_who_does_not_own_a_folder_does_not_note_where_its_jobs_commit(tmp_path: Path) -> None:
    owner = Ownership(tmp_path)
    with pytest.raises(InputError, match="another manager runs its jobs"):
        manager(tmp_path, 1, commits=f"local://{tmp_path}/far")
    owner.close()
    assert not (tmp_path / "commits").exists()


def test_a_note_of_where_jobs_commit_goes_if_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "commits").write_text(f"local://{tmp_path}/far")
    for _ in range(2):  # the second finds a store of jobs, which commit in their folders
        manager(tmp_path, 1)[0].close()
    assert not (tmp_path / "commits").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("far/run", "far/run: is no URL; expected one such as s3://bucket/run"),
        ("file://far", "file://far: is relative, to another folder on every node; expected file:///folder"),
        ("local://far", "local://far: is relative"),
    ],
)
def test_places_that_are_elsewhere_on_each_node_are_refused(tmp_path: Path, url: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        manager(tmp_path, 1, commits=url)
    manager(tmp_path, 1, commits=f"file://{tmp_path}/far")[0].close()  # the folder is free again
    assert refused.value


def test_passwords_are_in_no_message_and_in_no_file_that_others_can_read(tmp_path: Path) -> None:
    (tmp_path / "commits").write_text("old")
    note_place(tmp_path, f"local://{tmp_path}/far")
    assert (tmp_path / "commits").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match=r"^odd://me:\*\*\*@host/x: cannot be opened"):
        commits_at("odd://me:secret@host/x")
    (tmp_path / "commits").write_text("ftp://me:s@cr:et@host/x")
    (tmp_path / "jobs.sqlite").touch()
    with pytest.raises(InputError, match=r"its jobs commit in ftp://me:\*\*\*@host/x, not in ftp://you:\*\*\*@host/x$"):
        note_place(tmp_path, "ftp://you:secret@host/x")
