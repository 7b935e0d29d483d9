"""Runs the command line in this process, and checks how it refuses."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest
import typer.main

from ddlsched.cli.app import app

COMMAND: Any = typer.main.get_command(app)
"""Built once: typer's own test runner builds it for every call, which takes longer than most calls."""


class Run(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


def run(*args: object) -> Run:
    """Run a command; an exception that would show our traceback comes through."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        COMMAND.main([str(arg) for arg in args], prog_name="ddlsched")
    # Whether the event loop is compiled first depends on the tests before.
    told = [line for line in err.getvalue().splitlines(True) if "preparing the event loop" not in line]
    return Run(int(ended.value.code or 0), out.getvalue(), "".join(told))


def refused(result: Run, *parts: str, exit_code: int = 2, lines: int | None = 1) -> None:
    """Check that a command ended with lines of faults only, so many of them, that have these parts."""
    said = result.stderr.splitlines()
    assert all(line.startswith("ddlsched: error: ") for line in said), result.stderr
    for part in parts:
        assert part in result.stderr
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert len(said) == lines or (lines is None and said), result.stderr
