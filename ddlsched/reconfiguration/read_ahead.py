"""Asking the system to read files before they are needed, so that the disk does not wait for the program."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["begin_reading", "read_soon"]

_FIRST_BYTES = 512 << 20
"""Of all files together: what a fast disk reads while the program starts."""


def begin_reading(folder: str) -> None:
    """Let the begin of a folder's files be read while the program does something else; nothing is ever wrong here."""
    threading.Thread(target=_read_begins, args=(folder,), daemon=True).start()


def _read_begins(folder: str) -> None:
    with suppress(OSError):
        files = sorted(Path(folder).iterdir())
        for file in files:
            _read_begin(file, _FIRST_BYTES // len(files))


def _read_begin(file: Path, num_bytes: int) -> None:
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.posix_fadvise(descriptor, 0, num_bytes, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def read_soon(ranges: Iterable[tuple[int, int, int]]) -> None:
    """Let ranges of bytes of open files be read: the descriptor, the first byte and the one behind the last of each."""
    for descriptor, low, high in ranges:
        with suppress(OSError):
            os.posix_fadvise(descriptor, low, high - low, os.POSIX_FADV_WILLNEED)
