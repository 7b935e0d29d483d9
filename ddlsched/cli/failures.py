"""Every failure as one line on stderr and an exit code; a plug-in's own traceback, never ours."""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import typer
from typer.core import TyperGroup

from ddlsched.cli.output import checked_streams
from ddlsched.errors import DdlschedError, FaultyInputError, InputError, PluginError

__all__ = ["ReportingGroup", "exit_code", "one_line"]

_NOT_THE_PLUGINS = (str(Path(__file__).parents[1]) + os.sep, dataclasses.__file__, "<")
"""Beginnings of the file names of our frames, and of those that Python puts between ours and a plug-in's."""
_INTERRUPTED = 130
_BAD_INPUT = 2
_FAILED = 1


class ReportingGroup(TyperGroup):
    """A group of commands that reports this package's errors and ends with their exit code."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Run the command line and exit."""
        with checked_streams():
            try:
                return super().main(*args, **more)
            except DdlschedError as error:
                for line in error.faults if isinstance(error, FaultyInputError) else [str(error)]:
                    _say(line)
                _show_plugin_traceback(error)
                sys.exit(exit_code(error))
            except MemoryError:
                _say("the memory does not suffice; expected smaller input, or more memory")
                sys.exit(_FAILED)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(_INTERRUPTED) from None


def exit_code(error: DdlschedError) -> int:
    """Return 2 for what the user can correct in the input, 1 for a plug-in or a run that failed."""
    return _BAD_INPUT if isinstance(error, InputError) else _FAILED


def one_line(text: str) -> str:
    """Return text with line breaks and other control characters escaped, so that it is one line anywhere."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _say(message: str) -> None:
    label = typer.style("error:", fg=typer.colors.RED, bold=True)
    typer.echo(f"ddlsched: {label} {one_line(message)}", err=True)


def _show_plugin_traceback(error: DdlschedError) -> None:
    cause = error.__cause__
    if not isinstance(error, PluginError) or cause is None:
        return
    frames = _from_plugin_on(cause.__traceback__)
    # Without a frame of the plug-in's (say, it lacks a parameter) the line above has said it all; a syntax
    # error has no frame either, but shows its place.
    if frames is not None or isinstance(cause, SyntaxError):
        traceback.print_exception(type(cause), cause, frames, file=sys.stderr)


def _from_plugin_on(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_NOT_THE_PLUGINS):
        frames = frames.tb_next
    return frames
