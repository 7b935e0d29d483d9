"""Commits in places that fsspec knows: what a kill between two writes, or a write in part, leaves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from test_live_manager import manager

from ddlsched.errors import InputError
from ddlsched.live.commit_places import CommitFolder, CommitStore, commits_at
from ddlsched.live.store import JobStore


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
    return lambda path: path.write_bytes(content)


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


@pytest.mark.parametrize("writes", range(3))
def test_a_kill_before_any_write_of_a_step_leaves_the_step_before(
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
    commits_at(url).commit([0.5, 0.25, 0.125], saved(b"three"))
    assert [name for name in names(url) if name.startswith("history")] == ["history3.json"]


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


def test_a_manager_runs_jobs_that_commit_elsewhere_and_finds_them_again(tmp_path: Path) -> None:
    state, url = tmp_path / "state", f"local://{tmp_path}/far"
    state.mkdir()
    live, _ = manager(state, 2, commits=url)
    live.store.submit("a", program="count", steps=40, max_nodes=2)
    while len(commits_at(f"{url}/a").losses()) < 5:
        live.turn()
    live.close()
    with pytest.raises(InputError, match=r"its jobs commit in local://.*, not in their folders"):
        manager(state, 2)
    live, _ = manager(state, 2, commits=url)
    live.run(60)
    assert [job.state for job in JobStore(state / "jobs.sqlite").jobs()] == ["finished"]
    assert commits_at(f"{url}/a").losses() == [1.0 / (1 + step) for step in range(40)]
    assert not (state / "a" / "history.json").exists()


def test_places_that_others_do_not_see_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="memory://x: is seen by one process only"):
        manager(tmp_path, 1, commits="memory://x")
    manager(tmp_path, 1)[0].close()
    with pytest.raises(InputError, match="its jobs commit in their folders, not in local://"):
        manager(tmp_path, 1, commits=f"local://{tmp_path}/far")
