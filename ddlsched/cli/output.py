"""Where results go: stdout, and files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ddlsched.errors import InputError

__all__ = ["emit", "notice", "refuse_unwritable", "replacing"]


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


def notice(text: str) -> None:
    """Tell the user something on stderr."""
    typer.echo(f"ddlsched: {text}", err=True)


def refuse_unwritable(path: Path, flag: str) -> None:
    """Raise InputError now, before a long run, if ``path`` cannot be written later."""
    try:
        if path.is_dir():
            raise InputError(f"{flag} {path}: is a folder; expected a file name")
        if not path.parent.is_dir():
            raise InputError(f"{flag} {path}: there is no folder {path.parent}; expected a file in an existing folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not _is_device(path):
            tempfile.TemporaryFile(dir=_target(path).parent).close()
    except OSError as error:
        raise _unwritable(path, error, flag) from None


@contextmanager
def replacing(path: Path, flag: str) -> Iterator[Path]:
    """Give the name of a temporary file beside ``path``, which takes its place if all goes well.

    So a run that is stopped never leaves half a file, nor destroys the one of the run before.
    """
    if _is_device(path):
        with _named(path, flag):
            yield path
        return
    target = _target(path)
    temporary = target.with_name(f".ddlsched-{os.getpid()}{target.suffix}")
    try:
        with _named(path, flag):
            yield temporary
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """Return what a symbolic link stands for, which is to be replaced and not the link."""
    return Path(os.path.realpath(path))


def _is_device(path: Path) -> bool:
    """Return whether a path is /dev/null, a pipe, or the like, which must not be replaced by a file."""
    return path.exists() and not path.is_file()


@contextmanager
def _named(path: Path, flag: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error, flag) from None


def _unwritable(path: Path, error: OSError, flag: str) -> InputError:
    return InputError(f"{flag} {path}: cannot be written ({error.strerror or error}); expected a writable file")
