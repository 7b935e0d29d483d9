"""What the commands say: results on stdout, notices on stderr."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO, cast

from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.engine.run_progress import RunProgress

__all__ = ["checked_streams", "emit", "notice", "run_status", "status", "without_nan"]


def emit(text: str) -> None:
    """Write a result to stdout, whole."""
    sys.stdout.write(text)
    sys.stdout.flush()


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
    sys.stderr.flush()
