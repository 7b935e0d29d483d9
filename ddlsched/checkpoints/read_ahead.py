"""Asking the system to read files before they are needed, so that the disk does not wait for the program."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["begin_reading", "read_soon"]

_FIRST_BYTES = 512 << 20
"""Of all files together: what a fast disk reads while the program starts."""


_CLOSE_BYTES = 1 << 20


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
            there = os.fstat(descriptor)
            if stat.S_ISREG(there.st_mode) and there.st_size:
                read_soon([(descriptor, 0, min(num_bytes, there.st_size))])
        finally:
            os.close(descriptor)


def read_soon(ranges: Iterable[tuple[int, int, int]]) -> None:
    """Let ranges of bytes of open files be read: the descriptor, the first byte and the one behind the last of each."""
    for descriptor, low, high in _merged(ranges):
        with suppress(OSError):
            if not (_is_there(descriptor, low) and _is_there(descriptor, high - 1)):
                os.posix_fadvise(descriptor, low, high - low, os.POSIX_FADV_WILLNEED)


def _merged(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield ranges with those joined that lie close to each other."""
    last: tuple[int, int, int] | None = None
    for descriptor, low, high in sorted(ranges):
        if last is not None and descriptor == last[0] and low <= last[2] + _CLOSE_BYTES:
            last = descriptor, last[1], max(last[2], high)
            continue
        if last is not None:
            yield last
        last = descriptor, low, high
    if last is not None:
        yield last


def _is_there(descriptor: int, at: int) -> bool:
    """Return whether a byte is in memory; to ask for all that is there already takes a tenth of copying it."""
    try:
        return os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except OSError:
        return False
