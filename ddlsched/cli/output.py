"""What the commands say: results on stdout, notices on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import typer

from ddlsched.errors import InputError

__all__ = ["emit", "notice", "status", "without_nan"]


def emit(text: str) -> None:
    """Write a result to stdout, whole; a reader that has gone away (``| head``) ends the program quietly."""
    if sys.stdout is None:
        raise InputError("the result cannot be written to stdout (it is closed)")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
        raise typer.Exit(1) from None
    except OSError as error:
        _abandon_stdout()
        raise InputError(f"the result cannot be written to stdout ({error.strerror})") from None


def _abandon_stdout() -> None:
    # The interpreter flushes what is left at its end, and would report the same failure again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def without_nan(numbers: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the same with None for NaN, which JSON has not."""
    return {name: None if value != value else value for name, value in numbers.items()}


def status(text: str) -> AbstractContextManager[Any]:
    """Show on a terminal's stderr that something goes on."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(text) if console.is_terminal else nullcontext()


def notice(text: str) -> None:
    """Tell the user something on stderr."""
    typer.echo(f"ddlsched: {text}", err=True)
