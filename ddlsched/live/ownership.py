"""Who owns a folder of jobs' state: one manager at a time, until its process ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from ddlsched.errors import InputError

__all__ = ["Ownership"]

TEMPORARY = "ddlsched-"
"""How temporary folders of a manager's socket begin."""


class Ownership:
    """The lock of a folder of jobs' state. The kernel gives it up with its process, however that ends.

    The lock's file says which temporary folder its owner uses; the next owner removes what a killed one has left.

    Raises
    ------
    InputError
        Another manager has it, or its file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "manager.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            self._file = os.fdopen(descriptor, "r+")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_left(Path(self._file.readline().strip()))
        except BlockingIOError:
            raise InputError(f"{folder}: another manager runs its jobs; expected to be the only one") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be used ({error}); expected a file for a lock") from None

    def note(self, temporary: Path) -> None:
        """Write down which temporary folder is to be removed if this process cannot."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{temporary}\n")
        self._file.flush()

    def close(self) -> None:
        """Give it up."""
        self._file.close()


def _remove_left(temporary: Path) -> None:
    """Remove a socket's folder, and nothing else, whatever is written in the lock's file."""
    is_ours = temporary.parent == Path(tempfile.gettempdir()) and temporary.name.startswith(TEMPORARY)
    if is_ours and temporary.is_dir() and not temporary.is_symlink() and temporary.stat().st_uid == os.getuid():
        shutil.rmtree(temporary, ignore_errors=True)
