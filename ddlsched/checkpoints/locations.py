"""Where checkpoints are read from: a local folder, or any file system that fsspec knows."""

from __future__ import annotations

import os
import stat
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ddlsched.errors import InputError
from ddlsched.io.reading import MOST_BYTES

__all__ = ["Location", "file_system", "location_of"]


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
        """Return the bytes from one number to another, fewer only where the file ends."""
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

    def refuse_changes(self) -> None:
        """Raise InputError if a file that was used is no more what it was at its first use."""
        ...

    def touched(self) -> set[str]:
        """Return the used files of which only the time of the last change of any kind is another.

        That time cannot be put back as the one of the contents can; a new mode or link changes it, too.
        """
        ...


def location_of(directory: Path | str) -> Location:
    """Return a folder by its path, or by a URL such as ``http://host:8000/checkpoint``."""
    return _Remote(str(directory)) if "://" in str(directory) else _Folder(Path(directory))


class _Opened(NamedTuple):
    """An open file, as it was then."""

    descriptor: int
    num_bytes: int
    version: str
    changed_ns: int


class _Folder:
    """A local folder; each file is opened once, if it is no link, and stays open.

    Files are read, not mapped: a mapped file that is cut short ends the process with SIGBUS.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A snapshot in Hugging Face's cache is links to the files of all snapshots, which lie beside these.
        is_snapshot = folder.absolute().parent.name == "snapshots"
        self._blobs = Path(os.path.realpath(folder.absolute().parent.parent / "blobs")) if is_snapshot else None
        self._files: dict[str, _Opened] = {}
        self._lock = threading.Lock()

    def name_of(self, file: str) -> str:
        return str(self.folder / file)

    def holds(self, file: str) -> bool:
        inside = Path(os.path.realpath(self.folder / file)).parent
        return inside in (Path(os.path.realpath(self.folder)), self._blobs)

    def _path(self, file: str) -> Path:
        """Return where a file is: elsewhere only if it is a link to a file of Hugging Face's cache."""
        real = Path(os.path.realpath(self.folder / file))
        return real if self._blobs is not None and real.parent == self._blobs else self.folder / file

    def num_bytes(self, file: str) -> int:
        return self._opened(file).num_bytes

    def read(self, file: str, low: int, high: int) -> memoryview:
        descriptor, file_bytes, *_ = self._opened(file)
        wanted = max(min(high, file_bytes) - low, 0)
        try:
            data = _read_all(descriptor, low, wanted)
        except OSError as error:
            raise self._unreadable(file, error) from None
        if len(data) < wanted:
            raise InputError(_changed(self.name_of(file)))
        return memoryview(data)

    def read_all(self, file: str) -> bytes:
        _refuse_large(self, file)
        return bytes(self.read(file, 0, self.num_bytes(file)))

    def descriptor(self, file: str) -> int | None:
        return self._opened(file).descriptor

    def version(self, file: str) -> str:
        return self._opened(file).version

    def refuse_changes(self) -> None:
        for file, opened in self._files.items():
            try:
                there = self._path(file).lstat()
            except OSError as error:
                raise InputError(_changed(self.name_of(file), error.strerror)) from None
            if {_version(there), _version(os.fstat(opened.descriptor))} != {opened.version}:
                raise InputError(_changed(self.name_of(file)))

    def touched(self) -> set[str]:
        return {
            file for file, opened in self._files.items() if os.fstat(opened.descriptor).st_ctime_ns != opened.changed_ns
        }

    def _opened(self, file: str) -> _Opened:
        """Return a file, which stays open as long as this folder is in use."""
        with self._lock:
            if file not in self._files:
                self._files[file] = self._open(file)
            return self._files[file]

    def _open(self, file: str) -> _Opened:
        try:
            # A pipe is opened without waiting for a writer, to be refused.
            descriptor = os.open(self._path(file), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            weakref.finalize(self, os.close, descriptor)
            there = os.fstat(descriptor)
        except (OSError, ValueError) as error:
            raise self._unreadable(file, error) from None
        if not stat.S_ISREG(there.st_mode):
            raise InputError(f"{self.name_of(file)}: is no regular file; expected a file of a checkpoint")
        return _Opened(descriptor, there.st_size, _version(there), there.st_ctime_ns)

    def _unreadable(self, file: str, error: Exception) -> InputError:
        why = getattr(error, "strerror", None) or error
        if os.path.islink(self.folder / file):  # noqa: PTH114 (which raises if the name is too long)
            why = "is a link, which is not followed"
        return InputError(f"{self.name_of(file)}: cannot be read ({why}); expected a file of a checkpoint")


def _read_all(descriptor: int, low: int, num_bytes: int) -> bytes:
    """Return bytes of a file, fewer only where it ends; the system reads at most 2 GiB at a time."""
    parts = []
    while num_bytes and (part := os.pread(descriptor, num_bytes, low)):
        parts.append(part)
        low, num_bytes = low + len(part), num_bytes - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _version(there: os.stat_result) -> str:
    return f"{there.st_dev}:{there.st_ino} {there.st_size} {there.st_mtime_ns}"


def _changed(name: str, why: str | None = None) -> str:
    text = f"{name}: has changed while it was read{f' ({why})' if why else ''}"
    return f"{text}; expected a checkpoint that nobody writes: nothing was made of it, run again when it is still"


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path within it.

    An HTTP server that says nothing for :data:`_SILENCE_S` is given up; other file systems have limits of their own.

    Raises
    ------
    InputError
        fsspec is not installed, or knows no such file system.
    """
    try:
        from fsspec.core import url_to_fs

        options: dict[str, Any] = {}
        if url.startswith(("http://", "https://")):
            from aiohttp import ClientTimeout

            patience = ClientTimeout(total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
            options = {"client_kwargs": {"timeout": patience}}
    except ImportError:
        raise InputError(f"{url}: needs fsspec; expected: pip install 'ddlsched[checkpoints]'") from None
    try:
        files, path = url_to_fs(url, **options)
    except (ValueError, ImportError, OSError) as error:
        raise InputError(f"{url}: cannot be opened ({error}); expected a URL that fsspec knows") from None
    return files, str(path)


_SILENCE_S = 60.0
_BLOCK_BYTES = 1 << 20
_KEPT_BLOCKS = 64
_VERSION_KEYS = ("size", "ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
"""Under which file systems tell what changes with a file."""


class _Remote:
    """A folder of another machine or store, read in blocks of which the latest are kept.

    Ranks of a host need different columns of the same rows at about the same time: so each block is fetched once.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._versions: dict[str, tuple[int, str]] = {}
        self._blocks: dict[tuple[str, int], bytes] = {}
        self._fetching: dict[tuple[str, int], threading.Lock] = {}
        self._lock = threading.Lock()
        self.files, _ = file_system(self.url)

    def name_of(self, file: str) -> str:
        return f"{self.url}/{file}"

    def holds(self, file: str) -> bool:
        return True  # a bare name cannot leave a URL

    def num_bytes(self, file: str) -> int:
        return self._known(file)[0]

    def _known(self, file: str) -> tuple[int, str]:
        """Return a file's size, and its version as its file system tells it."""
        if file not in self._versions:
            self._versions[file] = self._told(file)
        return self._versions[file]

    def _told(self, file: str) -> tuple[int, str]:
        info = self._asked(file, lambda url: self.files.info(url))
        return int(info["size"]), " ".join(str(info[key]) for key in _VERSION_KEYS if key in info)

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
        _refuse_large(self, file)
        found: bytes = self._asked(file, lambda url: self.files.cat_file(url))
        return found

    def descriptor(self, file: str) -> int | None:
        return None

    def version(self, file: str) -> str:
        return self._known(file)[1]

    def refuse_changes(self) -> None:
        self.files.invalidate_cache()
        for file, known in self._versions.items():
            if self._told(file) != known:
                raise InputError(_changed(self.name_of(file)))

    def touched(self) -> set[str]:
        return set()

    def _asked(self, file: str, question: Any) -> Any:
        try:
            return question(self.name_of(file))
        except Exception as error:  # each file system has exceptions of its own
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            raise InputError(
                f"{self.name_of(file)}: cannot be read ({why}); expected a file of a checkpoint"
            ) from error


def _refuse_large(location: Location, file: str) -> None:
    """Refuse to hold whole what is no description."""
    if location.num_bytes(file) > MOST_BYTES:
        size = f"{location.num_bytes(file):,} bytes; expected at most {MOST_BYTES:,}"
        raise InputError(f"{location.name_of(file)}: has {size}")
