"""Bars on a terminal: what they say, and when there are none."""

from __future__ import annotations

import io
import re
import sys

import pytest

from ddlsched.io import progress


class Terminal(io.StringIO):
    """What says that it is a terminal."""

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal of 200 columns in place of stderr, which pytest replaces between a fixture and its test."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return shown


def last_shown(terminal: Terminal, lines: int) -> list[str]:
    """Return the last lines, without what colours them."""
    return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", terminal.getvalue().replace("\r", "\n")).splitlines()[-lines:]


def test_bytes_that_are_moved_have_a_bar_for_each_work(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.bytes_bar() as watch:
        watch("read", 500_000, 1_000_000)
        watch("read", 1_000_000, 1_000_000)
        watch("write", 250_000, 2_000_000)
    read, write = last_shown(terminal, 2)
    assert read.startswith("read  ")
    assert "1.0/1.0 MB" in read
    assert write.startswith("write ")
    assert "0.2/2.0 MB" in write


def test_a_bar_that_is_told_nothing_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.bytes_bar():
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_without_a_terminal_there_is_no_bar(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.bytes_bar() as watch:
        watch("read", 1, 2)
    assert stream is None or stream.getvalue() == ""


def test_a_sweep_tells_what_is_done_what_failed_and_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.progress_bar("runs", lambda: ["seed 3, 5 s", "seed 4, 1 s"]) as watch:
        watch(1, 4, None)
        watch(2, 4, "seed 2 [x]: no memory")
    assert "failed: seed 2 [x]: no memory" in terminal.getvalue()
    bar, *lines = last_shown(terminal, 3)
    assert bar.startswith("runs ")
    assert " 2/4 " in bar
    assert " left " in bar
    assert lines == ["  seed 3, 5 s", "  seed 4, 1 s"]


def test_a_sweep_of_which_nothing_ended_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.progress_bar("runs", list):
        pass
    assert terminal.getvalue() == ""
