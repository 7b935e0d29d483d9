"""Places of commits that cannot be read for a while, or for good: jobs wait, and the manager goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_live_manager import AllToTheFirst, Nodes, manager
from tiers import tried

from ddlsched.errors import InputError
from ddlsched.real.live.commits import Commits, commits_at
from ddlsched.real.live.manager import LiveEvent, LiveManager, Retries
from ddlsched.real.live.store import JobStore


def unreadable(where: str) -> Commits:
    raise InputError(f"{where}: cannot be used; expected a place for commits")


def all_but_a(where: Path) -> Commits:
    return unreadable(str(where)) if where.name == "a" else commits_at(where)


@pytest.mark.long
def test_a_job_whose_commits_cannot_be_read_waits_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, warnings = list[LiveEvent](), list[str]()
    live = LiveManager(tmp_path, Nodes(1), AllToTheFirst(), watch=events.append, warn=warnings.append)
    for job in "ab":
        live.store.submit(job, program="count", steps=10, max_nodes=1)
    with monkeypatch.context() as patch:
        patch.setattr("ddlsched.real.live.manager.commits_at", all_but_a)
        while "finished" not in [event.what for event in events]:  # the other one has its node meanwhile
            live.turn()
    assert [event.job for event in events if event.what == "finished"] == ["b"]
    assert warnings[0] == f"job 'a': {tmp_path}/a: cannot be used; expected a place for commits; tried again in 1 s"
    live.run(60)
    assert [event.job for event in events if event.what == "finished"] == ["b", "a"]


@pytest.mark.long
def test_a_job_whose_last_commit_cannot_be_read_ends_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list[LiveEvent]()
    live = LiveManager(tmp_path, Nodes(1), AllToTheFirst(), watch=events.append)
    live.store.submit("a", program="count", steps=10, max_nodes=1)
    with monkeypatch.context() as patch:
        while not live.running:
            live.turn()
        patch.setattr("ddlsched.real.live.manager.commits_at", unreadable)
        while "commits unreadable" not in [event.what for event in events]:
            live.turn()
    live.run(60)
    what = [event.what for event in events]
    assert (what.count("started"), what[-1]) == (1, "finished")


@pytest.mark.long
def test_commits_that_cannot_be_read_for_too_long_end_the_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = manager(tmp_path, 1)
    live.store.submit("a", program="count", steps=10, max_nodes=1)
    live._reads = Retries(give_up_s=0.5)
    monkeypatch.setattr("ddlsched.real.live.manager.commits_at", unreadable)
    with pytest.raises(InputError, match="a: cannot be used; expected a place for commits"):
        live.run(60)
    assert [job.state for job in JobStore(tmp_path / "jobs.sqlite").jobs()] == ["queued"]


def two_jobs(folder: Path, commits: str | None = None) -> tuple[LiveManager, list[LiveEvent], list[str]]:
    events, warnings = list[LiveEvent](), list[str]()
    live = LiveManager(folder, Nodes(1), AllToTheFirst(), watch=events.append, warn=warnings.append, commits=commits)
    for job in "ab":
        live.store.submit(job, program="count", steps=10, max_nodes=1)
    return live, events, warnings


def states(folder: Path) -> list[str]:
    return [job.state for job in JobStore(folder / "jobs.sqlite").jobs()]


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    tried(
        ["", "{", "[]", "{}", "\xff", '{"losses": 5}', '{"losses": "55"}', '{"losses": [null]}', "[" * 100_000],
        lambda place: place in (1, 4, 6, 8),
    ),
    ids=["empty", "cut off", "list", "no losses", "not UTF-8", "number", "text", "null", "nested"],
)
def test_a_job_whose_history_is_damaged_fails_alone_and_at_once(tmp_path: Path, text: str) -> None:
    live, events, warnings = two_jobs(tmp_path)
    (tmp_path / "a").mkdir()
    damaged = tmp_path / "a" / "history.json"
    damaged.write_bytes(text.encode("latin1"))
    live.run(60)
    assert states(tmp_path) == ["failed", "finished"]
    assert "commits unreadable" not in [event.what for event in events]
    expected = f"{damaged}: is damaged; expected the losses of a job's steps, as ddlsched wrote them"
    assert warnings == [f"job 'a' is given up: {expected}"]
    assert damaged.read_bytes() == text.encode("latin1")


@pytest.mark.long
def test_a_job_whose_history_at_a_url_is_damaged_fails_alone(tmp_path: Path) -> None:
    live, _, warnings = two_jobs(tmp_path, f"local://{tmp_path}/far")
    (tmp_path / "far" / "a").mkdir(parents=True)
    (tmp_path / "far" / "a" / "history7.json").write_text("{")
    live.run(60)
    assert states(tmp_path) == ["failed", "finished"]
    what = "none of the histories of steps 7 can be read; expected one that is whole"
    assert warnings == [f"job 'a' is given up: local://{tmp_path}/far/a: {what}"]


@pytest.mark.long
def test_a_history_that_is_damaged_while_its_job_runs_is_seen_when_its_process_ends(tmp_path: Path) -> None:
    live, events, warnings = two_jobs(tmp_path)
    live._kills = Retries(first_s=0.01)
    while not live.running:
        live.turn()
    live.running["a"].processes[0].kill()
    live.running["a"].processes[0].wait()
    (tmp_path / "a" / "history.json").write_text("{")
    live.run(60)
    assert states(tmp_path) == ["failed", "finished"]
    assert len(warnings) == 1
    assert [event.job for event in events if event.what in ("failed", "finished")] == ["a", "b"]


def test_pauses_between_tries_double_up_to_a_minute_for_an_hour() -> None:
    retries, now_s, pauses_s = Retries(), 0.0, []
    while (pause_s := retries.failed("a", now_s)) is not None:
        assert retries.must_wait("a")
        assert not retries.take_due(now_s)
        now_s += pause_s
        assert retries.take_due(now_s)
        assert not retries.must_wait("a")
        pauses_s.append(pause_s)
    assert pauses_s[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert 3600 < sum(pauses_s) <= 3660
    retries.succeeded("a")
    assert retries.failed("a", now_s) == 1


def test_time_for_which_nobody_tried_does_not_count() -> None:
    retries = Retries()
    assert retries.failed("a", 0.0) == 1
    assert retries.take_due(7200.0)  # there was no node for it before
    assert retries.failed("a", 7200.0) == 2
