"""Who owns a folder of jobs' state: one manager at a time, until its process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ddlsched.errors import InputError

__all__ = ["Ownership"]


class Ownership:
    """The lock of a folder of jobs' state. The kernel gives it up with its process, however that ends.

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
        except BlockingIOError:
            raise InputError(f"{folder}: another manager runs its jobs; expected to be the only one") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be used ({error}); expected a file for a lock") from None

    def close(self) -> None:
        """Give it up."""
        self._file.close()
