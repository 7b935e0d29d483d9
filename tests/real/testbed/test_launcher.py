"""The launcher of workers, in this process: where it listens, what it hands on, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ddlsched.real.testbed import launcher


class Listener:
    """A socket that two connect to."""

    def __init__(self, told: list[Any]) -> None:
        self.told, self.left = told, ["first", "second"]

    def bind(self, path: str) -> None:
        Path(path).touch(0o666)
        self.told.append(("bind", path))

    def listen(self, backlog: int) -> None:
        self.told.append(("listen", backlog))

    def accept(self) -> tuple[Any, None]:
        name = self.left.pop(0)
        return SimpleNamespace(name=name, close=lambda: self.told.append(f"{name} is closed here")), None

    def close(self) -> None:
        self.told.append("the listener is closed there")


def test_each_connection_becomes_a_worker_until_the_parent_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    parents = iter([5, 5, 5, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(launcher, "prepare", lambda: told.append("prepares"))
    monkeypatch.setattr(launcher, "_libc", lambda: SimpleNamespace(prctl=lambda *given: told.append(given)))
    monkeypatch.setattr(launcher.signal, "signal", lambda *given: told.append(given))
    monkeypatch.setattr(launcher.socket, "socket", lambda *given: told.append(given) or Listener(told))
    monkeypatch.setattr(launcher, "fork_worker", lambda work: work())
    monkeypatch.setattr(launcher, "Channel", Channel)
    given: dict[str, Any] = {}
    monkeypatch.setattr(launcher, "become_worker", lambda channel, **how: given.update({channel.name: how}))
    launcher.main(str(tmp_path / "workers"))
    assert told[:7] == [
        (1, signal.SIGKILL),
        (signal.SIGINT, signal.SIG_IGN),
        (signal.SIGTERM, signal.SIG_IGN),
        "prepares",
        (socket.AF_UNIX, socket.SOCK_STREAM),
        ("bind", str(tmp_path / "workers")),
        ("listen", 256),
    ]
    assert told[7:] == [
        "the listener is closed there",
        "first is closed here",
        "the listener is closed there",
        "second is closed here",
    ]
    assert (tmp_path / "workers").stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().out == "ready\n"
    assert given == {
        "first": {"namespace": "of first", "realtime": True},
        "second": {"namespace": "of second", "realtime": False},
    }


class Channel:
    """Says what its connection wants."""

    def __init__(self, connection: Any) -> None:
        self.name = connection.name

    def next(self, within_s: float) -> dict[str, Any]:
        assert within_s == 10.0
        return {"namespace": f"of {self.name}", "realtime": self.name == "first"}


def test_copies_have_one_thread_and_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    torch = ModuleType("torch")
    torch.__dict__["set_num_threads"] = told.append
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(launcher.signal, "signal", lambda *given: told.append(given))
    launcher.prepare()
    assert told == [1, (signal.SIGCHLD, signal.SIG_IGN)]


class Ended(BaseException):
    """Stands for the end of a process."""


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return what a copy does: this process is it, and ends with an exception."""

    def fork(work: Callable[[], None], parents: tuple[int, int] = (7, 7)) -> list[Any]:
        told: list[Any] = []
        monkeypatch.setattr(os, "getpid", lambda: parents[0])
        monkeypatch.setattr(os, "getppid", lambda: parents[1])
        monkeypatch.setattr(os, "fork", lambda: 0)
        monkeypatch.setattr(os, "_exit", lambda code: _end(told, code))
        monkeypatch.setattr(launcher, "_libc", lambda: SimpleNamespace(prctl=lambda *given: told.append(given)))
        monkeypatch.setattr(launcher.signal, "signal", lambda *given: told.append(given))
        with pytest.raises(Ended):
            launcher.fork_worker(lambda: told.append("works") or work())  # type: ignore[func-returns-value]
        return told

    return fork


def _end(told: list[Any], code: int) -> None:
    told.append(f"ends with {code}")
    raise Ended


def test_a_copy_works_and_ends_well_unless_it_fails_or_is_alone(forked: Callable[..., list[Any]]) -> None:
    dies = (1, signal.SIGKILL)
    signals = [(signal.SIGINT, signal.SIG_IGN), (signal.SIGCHLD, signal.SIG_DFL)]
    assert forked(lambda: None) == [dies, *signals, "works", "ends with 0"]
    assert forked(lambda: 1 / 0) == [dies, *signals, "works", "ends with 1"]  # type: ignore[arg-type, return-value]
    assert forked(lambda: None, (7, 1)) == [dies, "ends with 1"]  # the parent died meanwhile
