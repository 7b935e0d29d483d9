"""How errors, notices and states are told, and with which code a command ends."""

from __future__ import annotations

import errno
import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.cli import reporting
from ddlsched.errors import FaultyInputError, InputError, PluginError, SimulationError


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (InputError("no file"), 2, ["no file"]),
        (FaultyInputError(["one", "two"]), 2, ["one", "two"]),
        (SimulationError("a deadlock"), 1, ["a deadlock"]),
        (PluginError("it raised"), 1, ["it raised"]),
        (MemoryError(), 1, ["the memory does not suffice; expected smaller input, or more memory"]),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x"), 2, ["x: File name too long; expected a shorter one"]),
    ],
)
def test_an_error_is_a_line_and_a_code(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, lines: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended, reporting.reported():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err.splitlines() == [f"ddlsched: error: {line}" for line in lines]


def test_other_errors_of_the_system_are_not_the_users() -> None:
    with pytest.raises(OSError, match="full"), reporting.reported():
        raise OSError(errno.ENOSPC, "full")


@pytest.mark.parametrize(("length", "shown"), [(4000, "a" * 4000), (4001, f"{'a' * 2000} ... {'a' * 2000}")])
def test_of_a_long_message_beginning_and_end_are_shown(
    capsys: pytest.CaptureFixture[str], length: int, shown: str
) -> None:
    reporting._say("a" * length)
    assert capsys.readouterr().err == f"ddlsched: error: {shown}\n"


def test_texts_are_told_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert reporting.one_line("a\nb\x1b[0mä") == "a\\nb\\x1b[0mä"
    reporting.notice("read 3 rows")
    assert capsys.readouterr().err == "ddlsched: read 3 rows\n"
    assert reporting.without_nan({"a": float("nan"), "b": 1.5, "c": "x"}) == {"a": None, "b": 1.5, "c": "x"}


@pytest.mark.parametrize("place", ["", "mine.py, line 3"])
def test_ctrl_c_says_which_policy_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    monkeypatch.setattr(reporting, "interrupted_plugin", lambda by: place)
    assert reporting.interrupted(KeyboardInterrupt()) == 130
    more = " in mine.py, line 3: a policy that never answers ends no run" if place else ""
    assert capsys.readouterr().err == f"ddlsched: error: interrupted{more}\n"


@pytest.mark.parametrize(
    ("is_terminal", "color", "is_shown"), [(False, "", False), (True, "", True), (False, "1", True)]
)
def test_what_goes_on_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, color: str, is_shown: bool
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(sys, "stderr", Stream())
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if color:
        monkeypatch.setenv("FORCE_COLOR", color)
    with reporting.status("reading") as shown:
        assert (shown is not None) is is_shown
    told: list[str] = []
    monkeypatch.setattr(reporting, "status", lambda text: _Shown(told if is_shown else None))
    with reporting.run_status("simulating") as watch:
        progress: Any = SimpleNamespace(text=lambda: "half")
        watch(progress)
    assert told == (["simulating: half"] if is_shown else [])


class _Shown:
    """A context of what is shown, or of nothing."""

    def __init__(self, told: list[str] | None) -> None:
        self.shown = None if told is None else SimpleNamespace(update=told.append)

    def __enter__(self) -> Any:
        return self.shown

    def __exit__(self, *_: object) -> None:
        """Nothing ends."""


class _Narrow(io.StringIO):
    """A stream whose encoding lacks letters."""

    def write(self, text: str) -> int:
        text.encode("ascii")
        return super().write(text)


def test_letters_that_an_encoding_lacks_are_question_marks() -> None:
    stream = _Narrow()
    told: Any = reporting._Stdout(stream)
    assert told.write("aäb") == 3
    assert stream.getvalue() == "a?b"


def test_a_stream_that_is_closed_is_an_error_for_results_and_none_for_notices() -> None:
    with pytest.raises(InputError, match=r"^the result cannot be written to stdout \(it is closed\)$"):
        reporting._Stdout(None).write("x")  # type: ignore[arg-type]
    assert reporting._Stderr(None).write("x") == 1  # type: ignore[arg-type]


def test_a_reader_that_is_gone_ends_a_command_with_one() -> None:
    with pytest.raises(SystemExit) as ended:
        reporting._Stdout(None)._fail(BrokenPipeError())  # type: ignore[arg-type]
    assert ended.value.code == 1


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def _raised(source: str, file: str) -> BaseException:
    try:
        exec(compile(source, file, "exec"), {})
    except Exception as error:
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    raise AssertionError


MINE = _raised("def key():\n    raise KeyError('k')\nkey()", "/home/me/mine.py")
OURS = _raised("raise KeyError('k')", f"{reporting.NOT_THE_PLUGINS[0]}/x.py")
SYNTAX = SyntaxError("bad", ("/home/me/mine.py", 3, 1, "x ="))


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [
        (_caused(PluginError("x"), MINE), True), (_caused(PluginError("x"), OURS), False),
        (_caused(PluginError("x"), SYNTAX), True), (PluginError("x"), False), (_caused(InputError("x"), MINE), False),
    ],
)  # fmt: skip
def test_of_a_plugin_that_raised_its_own_lines_are_shown(
    capsys: pytest.CaptureFixture[str], error: Any, is_shown: bool
) -> None:
    reporting._show_plugin_traceback(error)
    assert ("mine.py" in capsys.readouterr().err) is is_shown
