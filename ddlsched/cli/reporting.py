"""What commands say: results on stdout, each notice or failure as a line on stderr, and only tracebacks of plug-ins."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

from ddlsched.errors import DdlschedError, FaultyInputError, InputError, PluginError
from ddlsched.io.files import replacing
from ddlsched.plugins.user_files import NOT_THE_PLUGINS, interrupted_plugin

if TYPE_CHECKING:
    from ddlsched.engine.run_progress import RunProgress


def emit(text: str) -> None:
    """Write a result to stdout, whole."""
    sys.stdout.write(text)
    sys.stdout.flush()


def json_text(found: object) -> str:
    """Return a result as JSON for a reader, numbers of numpy too."""
    import json  # which a help page need not wait for

    return json.dumps(found, indent=2, default=float) + "\n"


@contextmanager
def checked_streams() -> Iterator[None]:
    """Let whatever writes to stdout, help and version too, end with one error where that cannot be written.

    A reader that has gone away (``| head``) ends the program quietly. What cannot be written to stderr is lost, and
    nothing else.
    """
    with redirect_stdout(cast("TextIO", _Stdout(sys.stdout))), redirect_stderr(cast("TextIO", _Stderr(sys.stderr))):
        yield


class _Stdout:
    """Writes to the process's stdout, or raises InputError; ``None`` is one that was closed before the start."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._written_as_far_as_possible(text))
        return len(text)

    def _written_as_far_as_possible(self, text: str) -> None:
        """Write text, with question marks for what the locale's encoding lacks."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "replace").decode(error.encoding))

    def flush(self) -> None:
        self._try(lambda: self._stream.flush())

    def _try(self, action: Callable[[], object]) -> None:
        if self._stream is None:
            self._fail(OSError(errno.EBADF, "it is closed"))
            return
        try:
            action()
        except OSError as error:
            # The interpreter flushes what is left at its end, and would report the same failure again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        raise InputError(f"the result cannot be written to stdout ({error.strerror})") from None


class _Stderr(_Stdout):
    """Writes to the process's stderr; what cannot be written is lost."""

    def _fail(self, error: OSError) -> None:
        pass


def write_told(path: Path, flag: str, what: str, write: Callable[..., object], *content: Any) -> None:
    """Let a file be written, which takes the place of one that is there if all goes well, and tell what is in it."""
    with replacing(path, flag) as file:
        write(*content, file)
    notice(f"wrote {what} to {path}")


def without_nan(numbers: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the same with None for NaN, which JSON has not."""
    return {name: None if value != value else value for name, value in numbers.items()}


def status(text: str) -> AbstractContextManager[Any]:
    """Show on a terminal's stderr that something goes on."""
    if not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR")):
        return nullcontext()
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(text) if console.is_terminal else nullcontext()


@contextmanager
def run_status(text: str) -> Iterator[Callable[[RunProgress], None]]:
    """As :func:`status`; yields what takes how far a run is, and shows it."""
    with status(text) as shown:
        yield lambda progress: None if shown is None else shown.update(f"{text}: {progress.text()}")


def notice(text: str) -> None:
    """Tell the user something on stderr."""
    sys.stderr.write(f"ddlsched: {text}\n")


_INTERRUPTED = 130
_LONGEST = 4000
"""Characters of a message that are shown; of a longer one its beginning and its end."""
_BAD_INPUT = 2
_FAILED = 1


@contextmanager
def reported() -> Iterator[None]:
    """Report this package's errors and exit with their code."""
    with checked_streams():
        try:
            yield
        except DdlschedError as error:
            for line in error.faults if isinstance(error, FaultyInputError) else [str(error)]:
                _say(line)
            _show_plugin_traceback(error)
            # What the user can correct in the input, or a plug-in or a run that failed.
            sys.exit(_BAD_INPUT if isinstance(error, InputError) else _FAILED)
        except OSError as error:  # of asking whether something is there, for any of the names that are given
            if error.errno != errno.ENAMETOOLONG:
                raise
            _say(f"{error.filename}: {error.strerror}; expected a shorter one")
            sys.exit(_BAD_INPUT)
        except MemoryError:
            _say("the memory does not suffice; expected smaller input, or more memory")
            sys.exit(_FAILED)


def interrupted(by: KeyboardInterrupt) -> int:
    """Tell that Ctrl-C ended the program, and which line of a policy ran, if one did; return the exit code."""
    place = interrupted_plugin(by)
    _say(f"interrupted{place and f' in {place}: a policy that never answers ends no run'}")
    return _INTERRUPTED


def one_line(text: str) -> str:
    """Return text with line breaks and other control characters escaped, so that it is one line anywhere."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _say(message: str) -> None:
    import typer  # which a run without errors need not wait for

    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
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
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(NOT_THE_PLUGINS):
        frames = frames.tb_next
    return frames
