"""Where checkpoints are read from: a local folder, read ahead of need, or any file system that fsspec knows."""

from __future__ import annotations

import os
import stat
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ddlsched.errors import InputError
from ddlsched.io.files import MOST_BYTES, file_system


def is_file_name(name: Any) -> bool:
    """Return whether something is the bare name of a file."""
    return isinstance(name, str) and name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0:")


def refuse_leaving(place: Location, file: Any, where: str) -> None:
    """Raise InputError, which says where it stands, for a name of no file in a folder."""
    if not is_file_name(file) or not place.holds(file):
        raise InputError(f"{where}: {file!r} leaves the directory; expected a file in it")


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
        """Return how messages call a file."""
        return str(self.folder / file)

    def holds(self, file: str) -> bool:
        """Return whether a name stays within the folder, links followed."""
        inside = Path(os.path.realpath(self.folder / file)).parent
        return inside in (Path(os.path.realpath(self.folder)), self._blobs)

    def _path(self, file: str) -> Path:
        """Return where a file is: elsewhere only if it is a link to a file of Hugging Face's cache."""
        real = Path(os.path.realpath(self.folder / file))
        return real if self._blobs is not None and real.parent == self._blobs else self.folder / file

    def num_bytes(self, file: str) -> int:
        """Return a file's size."""
        return self._opened(file).num_bytes

    def read(self, file: str, low: int, high: int) -> memoryview:
        """Return the bytes from one number to another, fewer only where the file ends."""
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
        """Return a whole file."""
        _refuse_large(self, file)
        return bytes(self.read(file, 0, self.num_bytes(file)))

    def descriptor(self, file: str) -> int | None:
        """Return an open file's descriptor, if it is local."""
        return self._opened(file).descriptor

    def version(self, file: str) -> str:
        """Return a text that changes when the file does, as far as can be told without reading it."""
        return self._opened(file).version

    def refuse_changes(self) -> None:
        """Raise InputError if a file that was used is no more what it was at its first use."""
        for file, opened in self._files.items():
            try:
                there = self._path(file).lstat()
            except OSError as error:
                raise InputError(_changed(self.name_of(file), error.strerror)) from None
            if {_version(there), _version(os.fstat(opened.descriptor))} != {opened.version}:
                raise InputError(_changed(self.name_of(file)))

    def touched(self) -> set[str]:
        """Return the used files of which only the time of the last change of any kind is another.

        That time cannot be put back as the one of the contents can; a new mode or link changes it, too.
        """
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
    return b"".join(parts)


def _version(there: os.stat_result) -> str:
    return f"{there.st_dev}:{there.st_ino} {there.st_size} {there.st_mtime_ns}"


def _changed(name: str, why: str | None = None) -> str:
    text = f"{name}: has changed while it was read{f' ({why})' if why else ''}"
    return f"{text}; expected a checkpoint that nobody writes: nothing was made of it, run again when it is still"


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
        self.files, _ = file_system(self.url, "checkpoints")

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
        return memoryview(b"".join(blocks))[low - begin : high - begin]

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


Location: TypeAlias = _Folder | _Remote
"""A folder from which files are read, whole or in ranges of bytes."""


def _refuse_large(location: Location, file: str) -> None:
    """Refuse to hold whole what is no description."""
    if location.num_bytes(file) > MOST_BYTES:
        size = f"{location.num_bytes(file):,} bytes; expected at most {MOST_BYTES:,}"
        raise InputError(f"{location.name_of(file)}: has {size}")


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


def _merged(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return ranges with those joined that lie close to each other."""
    found: list[tuple[int, int, int]] = []
    for descriptor, low, high in sorted(ranges):
        if found and descriptor == found[-1][0] and low <= found[-1][2] + _CLOSE_BYTES:
            found[-1] = descriptor, found[-1][1], max(found[-1][2], high)
        else:
            found.append((descriptor, low, high))
    return found


def _is_there(descriptor: int, at: int) -> bool:
    """Return whether a byte is in memory; to ask for all that is there already takes a tenth of copying it."""
    try:
        return os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except OSError:
        return False
