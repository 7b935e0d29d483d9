"""The files that are being written, chunk by chunk."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ddlsched.errors import InputError

__all__ = ["OpenFiles", "Target", "allow_open_files", "refuse_full_disk"]


_OTHER_FILES = 100
_MOST_PARTS = os.sysconf("SC_IOV_MAX")


class Target(NamedTuple):
    """Where in a new file an array begins."""

    file: str
    begin: int


class OpenFiles:
    """New files of known size, written at any place by several threads.

    Parameters
    ----------
    folder, directory
        Where they are, and its open descriptor.
    sizes
        Of each file; a file that has its size already is kept as it is.
    """

    def __init__(self, folder: Path, directory: int, sizes: Mapping[str, int]) -> None:
        self.folder = folder
        self.descriptors: dict[str, int] = {}
        for name in sizes:
            with self._explained(name, "the file"):
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o666, dir_fd=directory)
                self.descriptors[name] = descriptor
                if os.fstat(descriptor).st_size != sizes[name]:
                    _allocate(descriptor, sizes[name])

    def write(self, targets: Sequence[Target], offset: int, parts: Sequence[memoryview], tensor: str) -> None:
        """Write parts one behind the other into each target's file, ``offset`` bytes behind its array's begin."""
        for file, begin in targets:
            with self._explained(file, f"tensor {tensor}"):
                at = begin + offset
                for first in range(0, len(parts), _MOST_PARTS):
                    at += _written(self.descriptors[file], parts[first : first + _MOST_PARTS], at)

    def flush(self) -> None:
        """Wait until all that was written is on disk."""
        for name, descriptor in self.descriptors.items():
            with self._explained(name, "its tensors"):
                os.fdatasync(descriptor)

    def close(self) -> None:
        """Close the files."""
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])

    @contextmanager
    def _explained(self, file: str, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = "no space left" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            text = f"{self.folder / file}: {what} cannot be written ({why})"
            raise InputError(f"{text}; what is done is kept: run again to go on, or remove {self.folder}") from None


def _allocate(descriptor: int, num_bytes: int) -> None:
    """Give a file its size, and where the file system can, its blocks: writing to them takes a quarter less then.

    ``os.posix_fallocate`` would write to every block where the file system cannot.
    """
    import ctypes

    system = ctypes.CDLL(None, use_errno=True)
    fallocate = getattr(system, "fallocate64", None) or getattr(system, "fallocate", None)
    if fallocate is not None and num_bytes:
        failed = fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(num_bytes))
        if failed and ctypes.get_errno() in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.ftruncate(descriptor, num_bytes)


def _written(descriptor: int, parts: Sequence[memoryview], at: int) -> int:
    """Write all parts and return their bytes; the system may write fewer at a time."""
    num_bytes = sum(map(len, parts))
    done = os.pwritev(descriptor, parts, at)
    while done < num_bytes:
        done += os.pwrite(descriptor, b"".join(parts)[done:], at + done)
    return num_bytes


def refuse_full_disk(folder: Path, needed_bytes: int) -> None:
    """Raise InputError if a folder's file system has not as many bytes free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        text = f"{folder}: has {free_bytes / 1e6:,.1f} MB free of {needed_bytes / 1e6:,.1f} MB that the new files take"
        raise InputError(f"{text}; expected enough space")


def allow_open_files(num_files: int) -> None:
    """Let this process have as many files open, and some more; raise InputError if the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_files + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        text = f"{num_files:,} files of ranks, old and new, are open at a time, and this process may open {hard:,}"
        raise InputError(f"{text}; expected fewer ranks, fewer of them here (--host), or a higher limit (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
