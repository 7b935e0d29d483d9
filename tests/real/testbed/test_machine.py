"""Which threads go before which."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.real.testbed import launcher, machine
from ddlsched.real.testbed.launcher import fork_worker
from ddlsched.real.testbed.machine import MachineWatch, ahead_of_others, behind_this_thread
from ddlsched.real.testbed.worker import Worker


def scheduling_of_a_new_thread() -> tuple[int, int]:
    """Return policy and priority of a thread that is started now."""
    found: list[tuple[int, int]] = []

    def look() -> None:
        found.append((os.sched_getscheduler(0), os.sched_getparam(0).sched_priority))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_threads_started_behind_share_the_processors_in_turns() -> None:
    """Loops that spin for a lock would otherwise keep who holds it, or waits for another loop, from ever running."""
    with ahead_of_others(True):
        own = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
        if own[0] != os.SCHED_FIFO:
            pytest.skip("this user may not run ahead of others")
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # 0, unless whoever runs the tests gave them another
        with behind_this_thread():
            assert scheduling_of_a_new_thread() == (os.SCHED_OTHER, 0)
            assert os.getpriority(os.PRIO_PROCESS, 0) == -20
        assert os.getpriority(os.PRIO_PROCESS, 0) == niceness
        assert scheduling_of_a_new_thread() == own == (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority)


def test_the_threads_of_gloo_give_way() -> None:
    pytest.importorskip("torch")
    from ddlsched.real.testbed.gloo import GlooReducer

    with ahead_of_others(True):
        if os.sched_getscheduler(0) != os.SCHED_FIFO:
            pytest.skip("this user may not run ahead of others")
        reducer = GlooReducer()
        reducer.join("127.0.0.1", reducer.listen("127.0.0.1"), "127.0.0.1", 0, 1, 2)
        names, until_s = thread_names(), time.monotonic() + 10
        while not set(names.values()) >= GLOO_THREADS and time.monotonic() < until_s:  # they name themselves
            names = thread_names()
        priorities = {name: os.sched_getparam(number).sched_priority for number, name in names.items()}
        niceness = {name: os.getpriority(os.PRIO_PROCESS, number) for number, name in names.items()}
        reducer.leave()
    assert {name: (priorities[name], niceness[name]) for name in GLOO_THREADS} == dict.fromkeys(GLOO_THREADS, (0, -20))


GLOO_THREADS = {"gloo_tcp_loop", "pt_gloo_runloop"}


def thread_names() -> dict[int, str]:
    tasks = Path("/proc/self/task")
    return {int(task.name): (task / "comm").read_text(encoding="utf-8").strip() for task in tasks.iterdir()}


def test_without_realtime_nothing_changes() -> None:
    before = os.sched_getscheduler(0)
    with behind_this_thread():
        assert scheduling_of_a_new_thread()[0] == before


@pytest.mark.long
def test_a_worker_ends_with_who_started_it() -> None:
    read, write = os.pipe()
    parent = os.fork()
    if not parent:  # pragma: no cover
        fork_worker(lambda: time.sleep(60 * bool(os.write(write, f"{os.getpid()}".encode()))))
        time.sleep(60)
    worker = int(os.read(read, 20))
    for end in (read, write):
        os.close(end)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    until_s = time.monotonic() + 5
    while _runs(worker) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    """Return whether a process is there and has not ended."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z"


def test_a_worker_without_a_job_has_received_nothing() -> None:
    said: list[dict[str, Any]] = []
    worker = Worker(SimpleNamespace(send=said.append), None)  # type: ignore[arg-type]
    worker._pong({"asked_ns": 5})
    assert said == [{"say": "pong", "asked_ns": 5, "computing": 0, "received_bytes": 0, "cards_down": []}]


@pytest.mark.parametrize(("answer", "served"), [(0, 1), (-1, 0)])
def test_a_worker_serves_only_in_a_namespace_that_it_has_entered(
    answer: int, served: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").touch()
    serving: list[int] = []
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # which it changes
    monkeypatch.setattr(launcher, "NAMESPACES", tmp_path)
    monkeypatch.setattr(launcher, "_libc", lambda: SimpleNamespace(setns=lambda *_: answer))
    monkeypatch.setattr(launcher, "Worker", lambda *_: SimpleNamespace(serve=lambda: serving.append(1)))
    with contextlib.nullcontext() if served else pytest.raises(OSError, match="namespace a cannot be entered"):
        launcher.become_worker(None, namespace="a", realtime=False)  # type: ignore[arg-type]
    assert len(serving) == served


def test_a_machine_is_watched_from_its_own_begin_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of 4 and 6 s end 30 and 90 ms late; meanwhile 70 of 80 ticks are busy."""
    ticks = [(100, 400), (170, 480)]
    monkeypatch.setattr(machine, "_ticks", lambda: ticks.pop(0))
    watch = MachineWatch()
    watch.computed(4_000_000_000, 30_000_000)
    watch.computed(6_000_000_000, 90_000_000)
    watch.computed(0, 0)
    assert watch.summary() == {
        "cpu_busy_share": 0.875,
        "mean_late_ms": 40.0,
        "most_late_ms": 90.0,
        "late_share": 0.012,
        "machine_limited": False,
    }


@pytest.mark.parametrize(
    ("busy", "late_ns", "limited"), [(90, 20, False), (91, 0, True), (0, 21, True), (0, 20, False)]
)
def test_a_machine_is_the_limit_beyond_nine_tenths_or_two_percent(
    busy: int, late_ns: int, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_ticks", lambda: (busy, 100))
    watch = MachineWatch(begin=(0, 0))
    watch.computed(1000, late_ns)
    assert watch.summary()["machine_limited"] is limited


def test_a_machine_that_did_nothing_was_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_ticks", lambda: (7, 9))
    assert set(MachineWatch().summary().values()) == {0}


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user and nice already
        ("cpu  1 2 4 1000 500 8 16 32 64 128\ncpu0 5 5 5 5\n", (63, 1563)),
        ("cpu  1 2 x 1000 500 8 16 32\n", (0, 0)),
    ],
)
def test_ticks_are_those_of_all_processors(
    text: str, ticks: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_STAT", tmp_path / "stat")
    assert machine._ticks() == (0, 0)
    (tmp_path / "stat").write_text(text)
    assert machine._ticks() == ticks


class Scheduling:
    """Stands for the system's calls; notes what is set. Whoever may not, gets an error for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: int, *, allowed: bool = True) -> None:
        self.policy, self.param, self.nice, self.allowed = policy, os.sched_param(0), 3, allowed
        self.set: list[Any] = []
        monkeypatch.setattr(os, "sched_getscheduler", lambda number: self.policy + number)
        monkeypatch.setattr(os, "sched_setscheduler", self.schedule)
        monkeypatch.setattr(os, "sched_getparam", lambda number: self.param)
        monkeypatch.setattr(os, "getpriority", lambda which, number: self.nice + which + number)
        monkeypatch.setattr(os, "setpriority", self.prioritise)

    def schedule(self, number: int, policy: int, param: os.sched_param) -> None:
        if not self.allowed and policy == os.SCHED_FIFO:
            raise PermissionError
        self.policy, self.param = policy, param
        self.set.append((number, policy, param.sched_priority))

    def prioritise(self, which: int, number: int, nice: int) -> None:
        self.set.append((which, number, nice))


def test_who_runs_ahead_is_put_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduling = Scheduling(monkeypatch, os.SCHED_OTHER)
    with contextlib.suppress(KeyError), ahead_of_others(True):
        assert scheduling.set == [(0, os.SCHED_FIFO, 10)]
        raise KeyError
    assert scheduling.set[1:] == [(0, os.SCHED_OTHER, 0)]
    for wanted, allowed in ((False, True), (True, False)):
        scheduling = Scheduling(monkeypatch, os.SCHED_OTHER, allowed=allowed)
        with ahead_of_others(wanted):
            pass
        assert scheduling.set == []


def test_what_runs_ahead_goes_in_turns_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduling = Scheduling(monkeypatch, os.SCHED_FIFO)
    scheduling.param = os.sched_param(10)
    with contextlib.suppress(KeyError), behind_this_thread():
        assert scheduling.set == [(0, os.SCHED_OTHER, 0), (os.PRIO_PROCESS, 0, -20)]
        raise KeyError
    assert scheduling.set[2:] == [(os.PRIO_PROCESS, 0, 3), (0, os.SCHED_FIFO, 10)]


def test_who_may_not_be_nicer_goes_in_turns_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduling = Scheduling(monkeypatch, os.SCHED_FIFO)
    monkeypatch.setattr(os, "setpriority", lambda which, number, nice: _refused(nice))
    with behind_this_thread():
        assert scheduling.set == [(0, os.SCHED_OTHER, 0)]
    assert scheduling.set[1:] == [(0, os.SCHED_FIFO, 0)]


def _refused(nice: int) -> None:
    if nice < 0:
        raise PermissionError
