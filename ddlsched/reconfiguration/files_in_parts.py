"""The files that are being written, chunk by chunk, and a journal of what is safely on disk."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ddlsched.errors import InputError

__all__ = ["Journal", "OpenFiles", "Target", "refuse_full_disk"]


_OTHER_FILE_SYSTEM = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What systems say that cannot copy between these files themselves."""
_READ_BYTES = 1 << 18


class Target(NamedTuple):
    """Where in a new file an array begins."""

    file: str
    begin: int


class OpenFiles:
    """New files of known size, written at any place by several threads.

    Parameters
    ----------
    folder
        Where they are.
    headers, sizes
        The first bytes and the size of each file; a file that has its size already is kept as it is.
    """

    def __init__(self, folder: Path, headers: Mapping[str, bytes], sizes: Mapping[str, int]) -> None:
        self.folder = folder
        self.descriptors: dict[str, int] = {}
        for name, header in headers.items():
            with self._explained(name, "its header"):
                descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
                self.descriptors[name] = descriptor
                if os.fstat(descriptor).st_size != sizes[name]:
                    os.ftruncate(descriptor, sizes[name])
                os.pwrite(descriptor, header, 0)

    def write(self, targets: Sequence[Target], offset: int, data: memoryview, tensor: str) -> None:
        """Write bytes into each target's file, ``offset`` bytes behind where the tensor's array begins."""
        for file, begin in targets:
            with self._explained(file, f"tensor {tensor}"):
                done = 0
                while done < len(data):
                    done += os.pwrite(self.descriptors[file], data[done:], begin + offset + done)

    def copy(
        self, targets: Sequence[Target], offset: int, source: int, byte_range: tuple[int, int], tensor: str
    ) -> None:
        """Copy a range of an open file to each target, within the kernel if it can."""
        for file, begin in targets:
            with self._explained(file, f"tensor {tensor}"):
                _copy_range(source, self.descriptors[file], byte_range, begin + offset)

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


def _copy_range(source: int, target: int, byte_range: tuple[int, int], begin: int) -> None:
    low, high = byte_range
    while low < high:
        try:
            done = os.copy_file_range(source, target, high - low, low, begin)
        except OSError as error:
            if error.errno not in _OTHER_FILE_SYSTEM:
                raise
            done = os.pwrite(target, os.pread(source, min(high - low, _READ_BYTES), low), begin)
        if not done:
            raise OSError(errno.EIO, "the file that is read has become shorter")
        low, begin = low + done, begin + done


class Journal:
    """How many batches of a plan are on disk, kept in a file, and locked against a second run.

    Parameters
    ----------
    path
        Of the file.
    fingerprint
        What the plan and its batches follow from; a journal of another plan is refused.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path = path
        self.file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise InputError(f"{path.parent}: another run is writing it; expected one at a time") from None
        self.file.seek(0)
        lines = self.file.read().splitlines()
        if lines and lines[0] != fingerprint:
            self.close()
            text = f"{path.parent}: holds part of another change of parallelism"
            raise InputError(f"{text}; expected none: remove it to begin anew")
        self.done = max(len(lines) - 1, 0)
        if not lines:
            self._add(fingerprint)

    def record(self) -> None:
        """Note that one more batch is on disk."""
        self.done += 1
        self._add(f"batch {self.done}")

    def _add(self, line: str) -> None:
        self.file.write(line + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Let another run have it."""
        self.file.close()


def refuse_full_disk(folder: Path, needed_bytes: int) -> None:
    """Raise InputError if a folder's file system has not as many bytes free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        text = f"{folder}: has {free_bytes / 1e6:,.1f} MB free of {needed_bytes / 1e6:,.1f} MB that the new files take"
        raise InputError(f"{text}; expected enough space")
