"""Files that users name: written whole or not at all, and read with bounds.

What is endless ends with a line that names it, not with the memory. A regular file is refused by its size, before it is
read. A pipe, such as ``<(pass show token)``, gives what it gives, up to the same size, but neither one that nobody
writes to nor one whose writer is silent is waited for. Devices are not read: ``/dev/zero`` never ends.
"""

from __future__ import annotations

import errno
import functools
import gzip
import io
import os
import re
import secrets
import select
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from ddlsched.deferred import pa, pq
from ddlsched.errors import InputError, need


def refuse_unwritable(path: Path | None, what: str, suffixes: Sequence[str] = ()) -> None:
    """Raise InputError now, before a long run, if ``path`` (the file of ``what``) cannot be written later.

    A file has one of ``suffixes``, if there are any; what is in /dev may have any name. None is no file.
    """
    if path is None:
        return
    with writable(f"{what} {path}"):
        if path.is_dir():
            raise InputError(f"{what} {path}: is a folder; expected a file name")
        if not path.parent.is_dir():
            raise InputError(f"{what} {path}: there is no folder {path.parent}; expected a file in an existing folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not _is_device(path):
            tempfile.TemporaryFile(dir=_target(path).parent).close()
            # /dev/stdout may be a link to a file of any name
            if suffixes and path.suffix.lower() not in suffixes and not path.is_relative_to("/dev"):
                raise InputError(f"{what} {path}: the suffix is {path.suffix!r}; expected {' or '.join(suffixes)}")


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
    with writable(f"{what} {path}"):
        if _is_device(path):
            yield path
            return
        target = _target(path)
        _remove_abandoned(target.parent)
        temporary = target.with_name(f".ddlsched-{secrets.token_hex(8)}{target.suffix}")
        # Others may write in the folder, and links lie in it: made anew, it is none.
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            temporary.replace(target)
        finally:
            with suppress(OSError):
                temporary.unlink()


@functools.cache  # a sweep writes thousands of files into one folder
def _remove_abandoned(folder: Path) -> None:
    """Delete what processes that were killed have left of :func:`replacing` in a folder, once it is a day old."""
    for left in folder.glob(".ddlsched-" + 16 * "[0-9a-f]" + "*"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > ABANDONED_S:
                left.unlink()


@contextmanager
def writable(path: Path | str, expected: str = "a writable file") -> Iterator[None]:
    """Raise as InputError that the system lets nothing be written to a file or folder."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); expected {expected}") from None


def made_folder(path: Path, what: str) -> Path:
    """Return a folder for ``what``, made if it is not there; raise InputError if it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        return path
    except OSError as error:
        raise InputError(f"{path}: cannot be used ({error.strerror}); expected a folder for {what}") from None


def _target(path: Path) -> Path:
    """Return what a symbolic link stands for, which is to be replaced and not the link."""
    return Path(os.path.realpath(path))


def _is_device(path: Path) -> bool:
    """Return whether a path is /dev/null, a pipe, or the like, which must not be replaced by a file."""
    return path.exists() and not path.is_file()


Made = TypeVar("Made")
MOST_BYTES: Final = 1 << 28
"""Of a file that is held whole: a table of some three million jobs."""
MOST_PARQUET_BYTES: Final = 1 << 30
ABANDONED_S: Final = 86400.0
"""So long nobody has written to an unfinished file that is deleted."""
MOST_ROWS: Final = 10_000_000
"""Of a table that is read to its end, however few bytes they take: ten million jobs take some 4 GB of memory."""
_SILENCE_S = 20.0
"""So long the writer of a pipe may say nothing."""
_WRITER_S = 1.0
"""So long a pipe is given to find a writer."""
_PAUSE_S = 0.02


@contextmanager
def opened(path: Path, most_bytes: int = MOST_BYTES) -> Iterator[io.BufferedReader]:
    """Open a user's file for reading its bytes in order; it cannot be sought in.

    Raises
    ------
    InputError
        It is a folder, a device, or larger than ``most_bytes``; or, while it is read, turns out to be, or is a pipe
        through which nothing comes.
    OSError
        It is not there, or may not be read.
    """
    # Without O_NONBLOCK a pipe that nobody writes to would never open.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        is_pipe = stat.S_ISFIFO(status.st_mode)
        if not is_pipe:
            _refuse(path, status, most_bytes)
        raw = io.FileIO(descriptor, closefd=False)
        yield bounded(_Pipe(raw, path) if is_pipe else raw, str(path), most_bytes)
    finally:
        os.close(descriptor)


@contextmanager
def unzipped(path: Path, most_bytes: int, what: str) -> Iterator[io.BufferedReader]:
    """Open a user's file as :func:`opened`, decompressed if it is gzip; a damaged one is an InputError, too.

    ``what`` is what the file is expected to be; decompressed, it may hold ``most_bytes``.
    """
    try:
        with opened(path, most_bytes) as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            yield bounded(gzip.GzipFile(fileobj=file), str(path), most_bytes) if zipped else file
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected {what}") from None
    except (OSError, EOFError, zlib.error) as error:
        why = (str(error).splitlines() or [""])[0]
        raise InputError(f"{path}: cannot be read ({why}); expected a whole, readable file") from None


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return all of a user's file; as :func:`opened`."""
    with opened(path, most_bytes) as file:
        return file.read()


def refuse_irregular(path: Path, most_bytes: int) -> None:
    """Raise as :func:`opened`, also for a pipe, before a library opens ``path`` by its name."""
    _refuse(path, path.stat(), most_bytes)


def opened_parquet(path: Path) -> pq.ParquetFile:
    """Open a user's Parquet file that will be read whole.

    Raises
    ------
    InputError
        As :func:`opened`, or it holds more than :data:`MOST_ROWS` rows.
    OSError, pyarrow.ArrowException
        It cannot be read, or is no Parquet file.
    """
    refuse_irregular(path, MOST_PARQUET_BYTES)
    file = pq.ParquetFile(path, page_checksum_verification=True)
    rows = file.metadata.num_rows
    if rows > MOST_ROWS:
        file.close()
        raise InputError(f"{path}: has {rows:,} rows; expected at most {MOST_ROWS:,}: give a part of it")
    return file


def from_parquet(path: Path, convert: Callable[[pa.Table], Made]) -> Made:
    """Return what ``convert`` makes of a user's Parquet file; as :func:`opened_parquet`, and InputError for none."""
    try:
        with opened_parquet(path) as file:
            return convert(file.read())
    except InputError:
        raise
    except (pa.ArrowException, ValueError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise InputError(f"{path}: is no Parquet file ({why}); expected Parquet") from None


def bounded(raw: Any, name: str, most_bytes: int, damage: tuple[type[Exception], ...] = ()) -> io.BufferedReader:
    """Return a stream of the bytes of ``raw`` that raises InputError beyond ``most_bytes``; ``name`` is the file's.

    ``damage`` is what ``raw`` raises if the file is damaged, which becomes an InputError, too.
    """
    return io.BufferedReader(_Bounded(raw, name, most_bytes, damage), 1 << 16)


def _refuse(path: Path, status: os.stat_result, most_bytes: int) -> None:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
    kind = "a pipe" if stat.S_ISFIFO(status.st_mode) else kinds.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise InputError(f"{path}: is {kind}; expected a regular file")
    if status.st_size > most_bytes:
        raise _too_large(str(path), most_bytes)


def _too_large(name: str, most_bytes: int) -> InputError:
    return InputError(f"{name}: is larger than {most_bytes / 1e6:,.0f} MB; expected at most that: give a part of it")


class _Bounded(io.RawIOBase):
    """Passes bytes on and counts them."""

    def __init__(self, raw: Any, name: str, most_bytes: int, damage: tuple[type[Exception], ...]) -> None:
        self._raw, self._name, self._most_bytes, self._damage, self._seen = raw, name, most_bytes, damage, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count: int = self._raw.readinto(buffer)
        except self._damage as error:
            raise InputError(f"{self._name}: cannot be read ({error}); expected a whole, readable file") from None
        self._seen += count
        if self._seen > self._most_bytes:
            raise _too_large(self._name, self._most_bytes)
        return count


class _Pipe:
    """Waits for what comes through a pipe that was opened without waiting."""

    def __init__(self, raw: io.FileIO, path: Path) -> None:
        self._raw, self._path, self._begun = raw, path, False
        self._patience_ends_s = time.monotonic() + _WRITER_S

    def readinto(self, buffer: Any) -> int:
        while True:
            count = self._raw.readinto(buffer)
            if count is None:
                self._wait_for_bytes()
            elif count or self._begun:
                self._begun = True
                return count
            else:
                self._wait_for_a_writer()

    def _wait_for_bytes(self) -> None:
        waiting = select.poll()
        waiting.register(self._raw, select.POLLIN)
        if not waiting.poll(1000 * _SILENCE_S):
            raise InputError(
                f"{self._path}: nothing came through this pipe for {_SILENCE_S:g} s; expected a regular file, "
                "or a pipe whose writer goes on"
            )

    def _wait_for_a_writer(self) -> None:
        if time.monotonic() > self._patience_ends_s:
            raise InputError(
                f"{self._path}: is a pipe through which nothing comes; expected a regular file, or a pipe to which a "
                "process writes (a pipe can be read once)"
            )
        time.sleep(_PAUSE_S)


def decoded(kind: type[Made], text: bytes, where: str, expected: str) -> Made:
    """Return the struct that a JSON text holds.

    Raises
    ------
    InputError
        It holds none, with the field that is at fault, and what was ``expected``.
    """
    import msgspec

    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        why, _, place = str(error).partition(" - at `$.")
        field = f", field {place.rstrip('`')}" if place else ""
        raise InputError(f"{where}{field}: {why}; expected {expected}") from None


_PASSWORD = re.compile(r"(://[^/:@\s]*):[^/\s]*@")
_SERVER_SILENCE_S = 60.0


def without_password(text: str) -> str:
    """Return a text with stars in the place of the passwords of its URLs."""
    return _PASSWORD.sub(r"\1:***@", text)


def file_system(url: str, extra: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path within it; ``extra`` brings fsspec.

    An HTTP server that says nothing for a minute is given up; other file systems have limits of their own.

    Raises
    ------
    InputError
        fsspec is not installed, or knows no such file system.
    """
    need(without_password(url), "fsspec", extra=extra)
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    try:
        if url.startswith(("http://", "https://")):
            from aiohttp import ClientTimeout

            patience = ClientTimeout(total=None, sock_connect=_SERVER_SILENCE_S, sock_read=_SERVER_SILENCE_S)
            options = {"client_kwargs": {"timeout": patience}}
        files, path = url_to_fs(url, **options)
    except (ValueError, ImportError, OSError) as error:
        why = f"{url}: cannot be opened ({error}); expected a URL that fsspec knows"
        raise InputError(without_password(why)) from None
    return files, str(path)
