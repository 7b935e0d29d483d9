"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddlsched.errors import InputError

__all__ = ["refuse_unwritable", "replacing"]


def refuse_unwritable(path: Path, what: str) -> None:
    """Raise InputError now, before a long run, if ``path`` (the file of ``what``) cannot be written later."""
    try:
        if path.is_dir():
            raise InputError(f"{what} {path}: is a folder; expected a file name")
        if not path.parent.is_dir():
            raise InputError(f"{what} {path}: there is no folder {path.parent}; expected a file in an existing folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not _is_device(path):
            tempfile.TemporaryFile(dir=_target(path).parent).close()
    except OSError as error:
        raise _unwritable(path, error, what) from None


@contextmanager
def replacing(path: Path, what: str) -> Iterator[Path]:
    """Give the name of a temporary file beside ``path``, which takes its place if all goes well.

    So a run that is stopped never leaves half a file, nor destroys the one of the run before. A device such as
    /dev/null is written to directly.

    Raises
    ------
    InputError
        The file cannot be written; ``what`` says in the message which file that is.
    """
    try:
        if _is_device(path):
            yield path
            return
        target = _target(path)
        temporary = target.with_name(f".ddlsched-{os.getpid()}{target.suffix}")
        try:
            yield temporary
            temporary.replace(target)
        finally:
            with suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise _unwritable(path, error, what) from None


def _target(path: Path) -> Path:
    """Return what a symbolic link stands for, which is to be replaced and not the link."""
    return Path(os.path.realpath(path))


def _is_device(path: Path) -> bool:
    """Return whether a path is /dev/null, a pipe, or the like, which must not be replaced by a file."""
    return path.exists() and not path.is_file()


def _unwritable(path: Path, error: OSError, what: str) -> InputError:
    return InputError(f"{what} {path}: cannot be written ({error.strerror or error}); expected a writable file")
