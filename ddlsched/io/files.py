"""Files that users name: written whole or not at all, and read with bounds.

What is endless ends with a line that names it, not with the memory. A regular file is refused by its size, before it is
read. A pipe, such as ``<(pass show token)``, gives what it gives, up to the same size, but neither one that nobody
writes to nor one whose writer is silent is waited for. Devices are not read: ``/dev/zero`` never ends.

Reading tables that people write: rows with their place in the file, cells checked one by one.

Files are parsed, never executed, and every fault is reported with its file, row, column, value and what was
expected.
"""

from __future__ import annotations

import codecs
import csv
import errno
import gzip
import io
import json
import math
import os
import re
import secrets
import select
import stat
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from ddlsched.deferred import pa, pq
from ddlsched.errors import InputError, abbreviated, did_you_mean, need
from ddlsched.units import MAX_NS, NS_PER_S


def refuse_unwritable(path: Path | None, what: str, suffixes: Sequence[str] = ()) -> None:
    """Raise InputError now, before a long run, if ``path`` (the file of ``what``) cannot be written later.

    A file has one of ``suffixes``, if there are any; what is in /dev may have any name. None is no file.
    """
    if path is None:
        return
    try:
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
    except OSError as error:
        raise _unwritable(f"{what} {path}", error) from None


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
        temporary = target.with_name(f".ddlsched-{secrets.token_hex(8)}{target.suffix}")
        # Others may write in the folder, and links lie in it: made anew, it is none.
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            temporary.replace(target)
        finally:
            with suppress(OSError):
                temporary.unlink()


@contextmanager
def writable(path: Path | str, expected: str = "a writable file") -> Iterator[None]:
    """Raise as InputError that the system lets nothing be written to a file or folder."""
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error, expected) from None


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


def _unwritable(path: Path | str, error: OSError, expected: str = "a writable file") -> InputError:
    return InputError(f"{path}: cannot be written ({error.strerror or error}); expected {expected}")


Made = TypeVar("Made")
MOST_BYTES: Final = 1 << 28
"""Of a file that is held whole: a table of some three million jobs."""
MOST_PARQUET_BYTES: Final = 1 << 30
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


Row: TypeAlias = "tuple[str, dict[str, Any]]"
"""Where a row stands, for messages, and its cells by column."""
TableRow: TypeAlias = Mapping[str | None, Any]
"""Cells by column; None where the row ends before."""

_LIMIT_S = MAX_NS / NS_PER_S


def readable(path: Path, what: str, read: Callable[[Path], Made]) -> Made:
    """Return ``read(path)``; a file that is not there or cannot be read becomes an InputError.

    ``what`` is what was expected, such as "a workload file".
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected {what}")
        return read(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected {what}") from None
    except OSError as error:
        why = error.strerror or first_line(error)
        raise InputError(f"{path}: cannot be read ({why}); expected a readable file") from None


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark."""
    data = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    try:
        text, bad = data.decode("utf-8"), data.find(b"\0")
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    if bad >= 0:
        line = data.count(b"\n", 0, bad) + 1
        raise InputError(f"{path}, line {line}: byte 0x{data[bad]:02x} is no text; expected a file in UTF-8")
    return text


def csv_rows(
    path: Path, required: Sequence[str], optional: Sequence[str], *, faults: list[str] | None = None
) -> Iterator[Row]:
    """Return the rows of a CSV file with a header, in which the required columns must be and no unknown ones.

    A row with too many or too few values is added to ``faults`` and left out, if a list is given.

    Raises
    ------
    InputError
        While iterating: the first fault met.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next((cells for cells in reader if cells), [])]
        if not header:
            raise InputError(f"{path}: is empty; expected a header row with the columns {', '.join(required)}")
        check_columns(path, header, required, optional)
        number = 0
        for cells in reader:
            if not cells:
                continue
            number += 1
            where = f"{path}, row {number} (line {reader.line_num})"
            if len(cells) != len(header):
                fault = f"{where}: has {len(cells)} values; expected {len(header)}, one for each column"
                if faults is None:
                    raise InputError(fault)
                faults.append(fault)
                continue
            yield where, dict(zip(header, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise InputError(f"{where}: is no CSV ({error}); expected comma-separated values") from None


def table_rows(path: Path, what: str) -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows of a CSV file; values beyond the header's are under None.

    Raises
    ------
    InputError
        It cannot be read, or is no CSV.
    """
    reader = csv.DictReader(io.StringIO(readable(path, what, read_text)), skipinitialspace=True)
    try:
        return list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is no CSV ({error}); expected {what}") from None


def refuse_longer(row: TableRow) -> None:
    """Refuse a row with values that the header has no name for: those before them may be shifted."""
    if any(row.get(None) or ()):
        raise InputError("has more fields than the header; expected a name for each")


def check_columns(path: Path, header: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    """Refuse a header that lacks a required column, has an unknown one, or one twice."""
    known = (*required, *optional)
    for name in required:
        if name not in header:
            unknown = [found for found in header if found not in known]
            instead = f" (there is {abbreviated(unknown).strip('[]')})" if unknown else ""
            raise InputError(f"{path}: column {name!r} is missing{instead}; expected the columns {', '.join(required)}")
    counts = Counter(header)
    for name in header:
        if name not in known:
            raise InputError(f"{path}: unknown column {abbreviated(name)}.{did_you_mean(name, known)}")
        if counts[name] > 1:
            raise InputError(f"{path}: column {name!r} occurs {counts[name]} times; expected once")


def parsed_json(text: str | bytes, where: str, expected: str, **hooks: Any) -> Any:
    """Return what a JSON text says; raise InputError, which says where it is and what is expected, if it is none."""
    try:
        return json.loads(text, **hooks)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is no JSON ({first_line(error)}); expected {expected}") from None


_OF_YAML = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML lets through of Python's own conversions."""


@contextmanager
def as_yaml(path: Path, expected: str) -> Iterator[None]:
    """Raise InputError where a file cannot be read, or holds no YAML, with its line; ``expected`` says what."""
    import yaml

    try:
        yield
    except InputError:
        raise
    except OSError as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise InputError(f"{path}: {why}; expected {expected}") from None
    except (yaml.YAMLError, *_OF_YAML) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else f"{path}"
        why = getattr(error, "problem", None) or first_line(error)
        raise InputError(f"{where}: is no YAML ({why}); expected {expected}") from None


def located(where: str, make: Callable[[], Made]) -> Made:
    """Return ``make()``; what it refuses is reported with its place."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def cell_text(where: str, column: str, value: Any) -> str | None:
    """Return a text without the space around it, or None if nothing is left; a number is its own text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise InputError(f"{where}, column {column}: {abbreviated(value)} is no text; expected a text")
    text = "" if value is None or value != value else str(value).strip()
    return text or None


def cell_number(
    where: str, column: str, value: Any, expected: str = "", *, at_most: float = math.inf, positive: bool = False
) -> float:
    """Return a finite number >= 0, or ``positive`` and > 0, from text or from a number."""
    bound = f", at most {at_most:g}" if at_most < math.inf else ""
    expected = expected or f"expected a finite number {'>' if positive else '>='} 0{bound}"
    number = _parsed(value)
    if number is None:
        shown = "is empty" if value in (None, "") else f"{abbreviated(value)} is no number"
        raise InputError(f"{where}, column {column}: {shown}; {expected}")
    if not 0 <= number < math.inf or number > at_most or (positive and number == 0):
        raise InputError(f"{where}, column {column}: {abbreviated(value)} is out of range; {expected}")
    return abs(number)  # Of -0.0 too.


def cell_time_s(where: str, column: str, value: Any) -> float:
    """Return a time in seconds that the clock can hold."""
    number = cell_number(where, column, value)
    if number >= _LIMIT_S:
        shown, limit = abbreviated(value), f"expected less than {_LIMIT_S:.6g} s"
        raise InputError(f"{where}, column {column}: {shown} s is too large for the clock; {limit}")
    return number


def cell_whole(where: str, column: str, value: Any, at_most: int = MAX_NS, at_least: int = 1) -> int:
    """Return a whole number within bounds."""
    expected = f"expected a whole number from {at_least} to {'9.2e18' if at_most == MAX_NS else at_most}"
    number = cell_number(where, column, value, expected)
    if not number.is_integer() or not at_least <= number <= at_most:
        raise InputError(f"{where}, column {column}: {abbreviated(value)} is out of range or not whole; {expected}")
    # A float holds no whole number beyond 2**53 exactly.
    exact = isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
    return int(value) if exact else int(number)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [""])[0]


def _parsed(value: Any) -> float | None:
    # Python reads b"1" and "1_000" as numbers, nobody else does.
    if isinstance(value, bool | bytes | None) or (isinstance(value, str) and "_" in value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
