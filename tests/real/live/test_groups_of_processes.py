"""When the processes of a live job form a group, leave it and hang: by hand, on processes that are made up."""

from __future__ import annotations

import fcntl
import io
import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.real.live.commits import writing
from ddlsched.real.live.processes import JobProcesses, LiveProcess
from ddlsched.real.live.reports import Ready, Report
from ddlsched.real.live.seat import LEAVE, Assignment

AIMS = Assignment("a", "token", "count", 20, "folder", "socket", 7)


class Pipe(io.BytesIO):
    """What a process is told through; it may be broken."""

    broken = False

    def write(self, line: Any) -> int:
        if self.broken:
            raise BrokenPipeError
        return super().write(line)

    def close(self) -> None:
        self.was_closed = True
        if self.broken:
            raise BrokenPipeError


def _worker(number: int, generation: int = 0, *, ready: bool = False, started_s: float = 0.0, **others: Any) -> Any:
    process: Any = SimpleNamespace(stdin=Pipe(), pid=number, poll=lambda: None)
    made = LiveProcess(f"node{number}", process, started_s, number, generation, ready, ("host", 100 + number))
    for name, value in others.items():
        setattr(made, name, value)
    return made


def _job(*workers: LiveProcess, group: int = 0, **others: Any) -> JobProcesses:
    """Return a job of which the first of these workers are the group."""
    job = JobProcesses(AIMS, {worker.node: worker for worker in workers}, tuple(workers[:group]))
    for name, value in others.items():
        setattr(job, name, value)
    return job


def _told(worker: LiveProcess) -> list[bytes]:
    stdin: Any = worker.process.stdin
    return list(stdin.getvalue().splitlines(keepends=True))


@pytest.mark.parametrize(
    ("generation", "ready", "starting", "training"),
    [(0, False, True, False), (0, True, False, False), (1, False, False, True), (1, True, False, False)],
)
def test_what_a_process_does_follows_from_its_group_and_whether_it_waits(
    generation: int, ready: bool, starting: bool, training: bool
) -> None:
    worker = _worker(1, generation, ready=ready)
    assert (worker.is_starting, worker.is_training) == (starting, training)


def test_a_process_that_has_ended_is_told_nothing() -> None:
    worker = _worker(1)
    worker.write(b"x\n")
    assert _told(worker) == [b"x\n"]
    stdin: Any = worker.process.stdin
    stdin.broken = True
    worker.write(b"y\n")
    worker.close()
    assert (_told(worker), stdin.was_closed) == ([b"x\n"], True)
    worker.process.stdin = None
    worker.write(b"y\n")
    worker.close()


def test_processes_are_started_with_their_numbers_in_logs_of_their_own(tmp_path: Path) -> None:
    started: list[tuple[str, str]] = []

    def start(node: str, log: Any) -> Any:
        started.append((node, Path(log.name).name))
        return SimpleNamespace(stdin=Pipe(), poll=lambda: None)

    aims = Assignment("a", "token", "count", 20, str(tmp_path), "socket", 7)
    job = JobProcesses(aims, launcher=SimpleNamespace(start=start))  # type: ignore[arg-type]
    job.add(["rack/0", "b"], 3.5)
    job.add(["c"], 4.0)
    assert started == [("rack/0", "rack_0.log"), ("b", "b.log"), ("c", "c.log")]
    assert job.nodes == ("rack/0", "b", "c")
    assert [(each.number, each.started_s) for each in job.workers.values()] == [(1, 3.5), (2, 3.5), (3, 4.0)]
    assert [json.loads(_told(each)[0])["process"] for each in job.workers.values()] == [1, 2, 3]
    assert len(job.processes) == 3


def test_processes_that_have_ended_are_taken_out() -> None:
    ended: list[Any] = []
    one, two, three = (_worker(number) for number in (1, 2, 3))
    two.process.poll = lambda: 0
    job = _job(one, two, three, launcher=SimpleNamespace(end=ended.append))
    assert job.take_ended() == [two]
    assert (job.nodes, ended) == (("node1", "node3"), [two.process])
    assert two.process.stdin.was_closed  # type: ignore[union-attr]
    assert job.take_ended() == []


@pytest.mark.parametrize(
    ("process", "generation", "is_ready"), [(2, 1, True), (2, 0, False), (2, 2, False), (3, 1, False)]
)
def test_who_says_that_it_waits_has_been_given_no_orders_since(process: int, generation: int, is_ready: bool) -> None:
    workers = _worker(1, 1), _worker(2, 1)
    job = _job(*workers)
    assert not job.take_ready(Ready("a", "token", process, generation, "there", 5))
    assert (workers[1].is_ready, workers[0].is_ready) == (is_ready, False)
    assert workers[1].meets_at == (("there", 5) if is_ready else ("host", 102))


@pytest.mark.parametrize(
    ("generations", "scripts", "aside", "said", "after", "is_more"),
    [
        ([0, 0], ["a", ""], [False] * 2, (2, "a"), [False, False], False),
        ([0, 0], ["a", ""], [False] * 2, (2, "b"), [False, True], True),
        ([0, 1], ["", "b"], [False] * 2, (1, "a"), [True, False], True),
        ([1, 0], ["a", ""], [True, False], (2, "b"), [True, False], False),
    ],
)
def test_who_runs_another_script_than_the_group_stands_aside(
    generations: list[int],
    scripts: list[str],
    aside: list[bool],
    said: tuple[int, str],
    after: list[bool],
    is_more: bool,
) -> None:
    told = zip(generations, scripts, aside, strict=True)
    workers = [
        _worker(number, generation, ready=bool(script), script=script, is_aside=is_aside)
        for number, (generation, script, is_aside) in enumerate(told, 1)
    ]
    number, script = said
    job = _job(*workers)
    assert job.take_ready(Ready("a", "token", number, 0, "host", 1, script)) is is_more
    assert [worker.is_aside for worker in workers] == after


@pytest.mark.parametrize(
    ("ready", "is_there", "is_leaving", "has_broken"),
    [
        ((False, False), True, False, False), ((True, False), True, False, True), ((False, True), True, False, True),
        ((True, True), True, True, False), ((True, False), False, False, False),
    ],
)  # fmt: skip
def test_a_group_has_broken_if_one_left_it_unasked_and_all_are_there(
    ready: tuple[bool, bool], is_there: bool, is_leaving: bool, has_broken: bool
) -> None:
    job = _job(*(_worker(number, 1, ready=is_ready) for number, is_ready in enumerate(ready)), group=2)
    job.is_leaving = is_leaving
    if not is_there:
        del job.workers["node1"]
    assert job.has_broken() is has_broken
    assert job.has_survivors() is True


@pytest.mark.parametrize(
    ("ready", "gone", "joining", "is_asked"),
    [
        ([False, False], False, [], False), ([False, True], False, [], True), ([False, False], True, [], True),
        ([False, False], False, [False], False), ([False, False], False, [True], True),
        ([False, False], False, [True, False], False), ([False, False], False, [True, True], True),
    ],
)  # fmt: skip
def test_a_group_is_asked_to_leave_once_it_is_short_or_all_who_join_are_ready(
    ready: list[bool], gone: bool, joining: list[bool], is_asked: bool
) -> None:
    group = [_worker(number, 1, ready=is_ready) for number, is_ready in enumerate(ready)]
    others = [_worker(9 + number, 0, ready=is_ready) for number, is_ready in enumerate(joining)]
    job = _job(*group, *others, group=2, progress_s=1.0)
    if gone:
        del job.workers["node1"]
    for _ in range(2):
        job.ask_to_leave(5.0)
    assert (job.is_leaving, job.progress_s) == ((True, 5.0) if is_asked else (False, 1.0))
    assert _told(group[0]) == ([LEAVE] if is_asked else [])
    assert _told(group[1]) == ([LEAVE] if is_asked and not gone else [])
    assert [_told(each) for each in others] == [[]] * len(others)


@pytest.mark.parametrize(
    ("workers", "fewest", "can_form"),
    [
        ([(0, True)], 1, True), ([(0, False)], 1, False), ([(0, True)], 2, False), ([(0, True), (0, True)], 2, True),
        ([(0, True), (0, False)], 1, False), ([(1, True), (0, False)], 1, True), ([(1, True), (1, False)], 1, False),
        ([], 1, False), ([], 0, True),
    ],
)  # fmt: skip
def test_a_group_forms_of_enough_who_wait_while_nobody_trains(
    workers: list[tuple[int, bool]], fewest: int, can_form: bool
) -> None:
    job = _job(*(_worker(number, of, ready=is_ready) for number, (of, is_ready) in enumerate(workers)), fewest=fewest)
    assert job.can_form() is can_form
    assert job.has_survivors() is any(of for of, _ in workers)


@pytest.mark.parametrize(
    ("changed", "is_news"),
    [
        ({}, True), ({"generation": 2}, False), ({"nodes": 1}, False), ({"nodes": 3}, False), ({"step": 4}, False),
        ({"step": 20}, True), ({"step": 21}, False),
    ],
)  # fmt: skip
def test_a_report_is_news_if_it_is_of_this_group_and_says_more(changed: dict[str, int], is_news: bool) -> None:
    job = _job(_worker(1, 3), _worker(2, 3), group=2, last_step=4)
    said: Any = {"generation": 3, "step": 5, "samples": 50, "nodes": 2, "loss": None, "time_s": 1.0} | changed
    assert job.is_news(Report("a", "token", **said)) is is_news
    assert not _job(_worker(1, 3)).is_news(Report("a", "token", **said))


@pytest.mark.parametrize(("often_s", "told_s"), [(None, 0.0), (inf, 0.0), (50.0, 25.0)])
def test_a_group_meets_at_its_oldest_member_in_the_order_of_ages(often_s: float | None, told_s: float) -> None:
    one, two = _worker(1, ready=True), _worker(2, 1, ready=True)
    starting, aside = _worker(3), _worker(4, ready=True, is_aside=True)
    failing = None if often_s is None else SimpleNamespace(time_to_failure_s=lambda nodes: often_s / nodes)
    job = _job(
        one, starting, two, aside, failing=failing, checkpoint="daly", commit_s=0.5, is_leaving=True, last_step=9
    )
    job.form(4, 7.5)
    assert job.group == (one, two)
    assert (job.is_leaving, job.progress_s, job.last_step) == (False, 7.5, 0)
    assert [(each.generation, each.is_ready) for each in (one, two, starting, aside)] == [
        (4, False), (4, False), (0, False), (0, True),
    ]  # fmt: skip
    for rank, worker in enumerate((one, two)):
        assert [json.loads(line) for line in _told(worker)] == [{
            "generation": 4, "rank": rank, "ranks": 2, "host": "host", "port": 101, "checkpoint": "daly",
            "time_to_failure_s": told_s, "commit_s": 0.5,
        }]  # fmt: skip
    assert _told(starting) == _told(aside) == []


@pytest.mark.parametrize(
    ("now_s", "stopped", "hanging"),
    [
        (10.0, [], []), (12.0, [], []), (12.1, [], [3]), (13.0, [], [3]), (13.1, [], [3, 1, 2]), (13.1, [2], [3, 2]),
        (12.1, [2], [3]),
    ],
)  # fmt: skip
def test_who_takes_too_long_hangs_and_of_a_group_who_is_stopped(
    monkeypatch: pytest.MonkeyPatch, now_s: float, stopped: list[int], hanging: list[int]
) -> None:
    """A process was started at 2 s; of the group something was heard at 3 s; after 10 s more it is too long."""
    monkeypatch.setattr(LiveProcess, "is_stopped", lambda self: self.number in stopped)
    workers = _worker(1, 1), _worker(2, 1), _worker(3, started_s=2.0), _worker(4, 1, ready=True)
    found = _job(*workers, group=2, progress_s=3.0).hanging(now_s, 10.0)
    assert [worker.number for worker in found] == hanging


@pytest.mark.parametrize(
    ("stat", "is_stopped"),
    [("7 (a b) T 1", True), ("7 (a) t 1", True), ("7 (a) S 1", False), ("7 (T) T) R 1", False), (None, False)],
)
def test_the_kernel_says_who_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stat: str | None, is_stopped: bool
) -> None:
    monkeypatch.setattr("ddlsched.real.live.processes.Path", lambda name: tmp_path / name.replace("/", "_"))
    if stat is not None:
        (tmp_path / "_proc_7_stat").write_text(stat)
    assert _worker(7).is_stopped() is is_stopped


def test_only_one_process_commits_at_a_time(tmp_path: Path) -> None:
    with writing(tmp_path), (tmp_path / "writer.lock").open("ab") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "writer.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
