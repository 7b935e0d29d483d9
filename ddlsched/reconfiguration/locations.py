"""Where checkpoints are read from: a local folder, memory-mapped, or any file system that fsspec knows."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from pathlib import Path
from typing import Any, Protocol

from ddlsched.errors import InputError
from ddlsched.io.reading import MOST_BYTES, read_bytes

__all__ = ["Location", "location_of"]


class Location(Protocol):
    """A folder from which files are read, whole or in ranges of bytes."""

    def name_of(self, file: str) -> str:
        """Return how messages call a file."""
        ...

    def holds(self, file: str) -> bool:
        """Return whether a name stays within the folder, links followed."""
        ...

    def num_bytes(self, file: str) -> int:
        """Return a file's size."""
        ...

    def read(self, file: str, low: int, high: int) -> memoryview:
        """Return the bytes from one number to another; without a copy where that can be."""
        ...

    def read_all(self, file: str) -> bytes:
        """Return a whole file."""
        ...

    def descriptor(self, file: str) -> int | None:
        """Return an open file's descriptor, if it is local."""
        ...

    def version(self, file: str) -> str:
        """Return a text that changes when the file does, as far as can be told without reading it."""
        ...


def location_of(directory: Path | str) -> Location:
    """Return a folder by its path, or by a URL such as ``http://host:8000/checkpoint``."""
    return _Remote(str(directory)) if "://" in str(directory) else _Folder(Path(directory))


class _Folder:
    """A local folder; its files are mapped into memory once and stay so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, tuple[memoryview, int]] = {}
        self._lock = threading.Lock()

    def name_of(self, file: str) -> str:
        return str(self.folder / file)

    def holds(self, file: str) -> bool:
        inside = Path(os.path.realpath(self.folder / file)).parent
        return inside == Path(os.path.realpath(self.folder))

    def num_bytes(self, file: str) -> int:
        try:
            return (self.folder / file).stat().st_size
        except OSError as error:
            raise self._unreadable(file, error) from None

    def read(self, file: str, low: int, high: int) -> memoryview:
        return self._mapped(file)[0][low:high]

    def read_all(self, file: str) -> bytes:
        try:
            return read_bytes(self.folder / file)
        except OSError as error:
            raise self._unreadable(file, error) from None

    def descriptor(self, file: str) -> int | None:
        return self._mapped(file)[1]

    def version(self, file: str) -> str:
        return f"{self.num_bytes(file)} {(self.folder / file).stat().st_mtime_ns}"

    def _mapped(self, file: str) -> tuple[memoryview, int]:
        """Return a file's bytes and its descriptor; it stays open as long as this folder is in use."""
        with self._lock:
            if file not in self._files:
                self._files[file] = self._map(file)
            return self._files[file]

    def _map(self, file: str) -> tuple[memoryview, int]:
        try:
            descriptor = os.open(self.folder / file, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, descriptor)
            if not os.fstat(descriptor).st_size:
                return memoryview(b""), descriptor
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), descriptor
        except (OSError, ValueError) as error:
            raise self._unreadable(file, error) from None

    def _unreadable(self, file: str, error: Exception) -> InputError:
        why = getattr(error, "strerror", None) or error
        return InputError(f"{self.name_of(file)}: cannot be read ({why}); expected a file of a checkpoint")


_BLOCK_BYTES = 1 << 20
_KEPT_BLOCKS = 64


class _Remote:
    """A folder of another machine or store, read in blocks of which the latest are kept.

    Ranks of a host need different columns of the same rows at about the same time: so each block is fetched once.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise InputError(f"{url}: needs fsspec; expected: pip install 'ddlsched[reconfiguration]'") from None
        self.url = url.rstrip("/")
        self._sizes: dict[str, int] = {}
        self._blocks: dict[tuple[str, int], bytes] = {}
        self._fetching: dict[tuple[str, int], threading.Lock] = {}
        self._lock = threading.Lock()
        try:
            self.files, _ = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError, OSError) as error:
            raise InputError(f"{url}: cannot be opened ({error}); expected a URL that fsspec knows") from None

    def name_of(self, file: str) -> str:
        return f"{self.url}/{file}"

    def holds(self, file: str) -> bool:
        return True  # a bare name cannot leave a URL

    def num_bytes(self, file: str) -> int:
        if file not in self._sizes:
            self._sizes[file] = int(self._asked(file, lambda url: self.files.size(url)))
        return self._sizes[file]

    def read(self, file: str, low: int, high: int) -> memoryview:
        if low >= high:
            return memoryview(b"")
        first = low // _BLOCK_BYTES
        blocks = [self._block(file, number) for number in range(first, -(-high // _BLOCK_BYTES))]
        begin = first * _BLOCK_BYTES
        return memoryview(b"".join(blocks) if len(blocks) > 1 else blocks[0])[low - begin : high - begin]

    def _block(self, file: str, number: int) -> bytes:
        with self._lock:
            lock = self._fetching.setdefault((file, number), threading.Lock())
        with lock:
            if (block := self._blocks.get((file, number))) is None:
                block = self._fetched(file, number * _BLOCK_BYTES)
                with self._lock:
                    self._blocks[file, number] = block
                    while len(self._blocks) > _KEPT_BLOCKS:
                        self._blocks.pop(next(iter(self._blocks)))
        return block

    def _fetched(self, file: str, low: int) -> bytes:
        high = min(low + _BLOCK_BYTES, self.num_bytes(file))
        found: bytes = self._asked(file, lambda url: self.files.cat_file(url, start=low, end=high))
        if len(found) != high - low:
            text = f"gave {len(found):,} bytes of {high - low:,}; expected a whole file"
            raise InputError(f"{self.name_of(file)}: {text}")
        return found

    def read_all(self, file: str) -> bytes:
        if self.num_bytes(file) > MOST_BYTES:
            raise InputError(
                f"{self.name_of(file)}: has {self.num_bytes(file):,} bytes; expected at most {MOST_BYTES:,}"
            )
        found: bytes = self._asked(file, lambda url: self.files.cat_file(url))
        return found

    def descriptor(self, file: str) -> int | None:
        return None

    def version(self, file: str) -> str:
        return str(self.num_bytes(file))

    def _asked(self, file: str, question: Any) -> Any:
        try:
            return question(self.name_of(file))
        except Exception as error:  # each file system has exceptions of its own
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            raise InputError(
                f"{self.name_of(file)}: cannot be read ({why}); expected a file of a checkpoint"
            ) from error
