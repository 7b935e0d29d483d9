"""The files that traces come in: plain text, gzip, tar and zip archives; tables by lines, JSON arrays by elements."""

from __future__ import annotations

import csv
import io
import itertools
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, NoReturn, TextIO, TypeAlias

from ddlsched.errors import InputError, abbreviated
from ddlsched.io.files import bounded, refuse_irregular, unzipped
from ddlsched.io.tables import first_line
from ddlsched.workload.traces.traced import NO_TEXT, BadRowError, Cells, Refusal, TracedJob, TraceSource

_MOST_BYTES = 1 << 32
"""Of a trace, decompressed."""
_LONGEST_LINE = 1 << 20
_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, RuntimeError)
"""What a damaged file raises; a RuntimeError (of which NotImplementedError is one) is a zip archive's, if it is
encrypted or packed in a way that Python does not know."""
Layout: TypeAlias = tuple[Sequence[str], Callable[[Cells], TracedJob]]
"""The columns that a table must have, and what makes a job of a row's cells."""


def sources(path: Path, members: str) -> Iterator[TraceSource]:
    """Yield the texts of a file: itself (``.gz`` is decompressed), or the members that match of a tar or zip archive.

    Raises
    ------
    InputError
        While iterating: the file is not there, is damaged, or an archive holds no member of that name.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected a trace file")
        if path.is_file():
            refuse_irregular(path, _MOST_BYTES)
            archive = _zipped if zipfile.is_zipfile(path) else _tarred if tarfile.is_tarfile(path) else None
            if archive is not None:
                yield from _members(path, archive(path), members)
                return
        with unzipped(path, _MOST_BYTES, "a trace file") as file:
            yield _source(str(path), path.resolve(), file)
    except _DAMAGED as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); expected a whole, readable file") from None


def _members(path: Path, files: Iterator[tuple[str, Callable[[], Any]]], pattern: str) -> Iterator[TraceSource]:
    found = False
    for member, opened_member in files:
        if fnmatch(PurePath(member).name, pattern):
            found = True
            yield _source(f"{path}:{member}", path.resolve().with_suffix("") / member, opened_member())
    if not found:
        raise InputError(f"{path}: holds no file named like {pattern}; expected an archive of the trace's files")


def _tarred(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each file in an archive, and what opens it; those of a tar archive before the next."""
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, partial(archive.extractfile, member)


def _zipped(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                yield member.filename, partial(archive.open, member)


def _source(name: str, path: PurePath, file: Any) -> TraceSource:
    # A byte that is no text spoils its row, not the file.
    text = io.TextIOWrapper(bounded(file, name, _MOST_BYTES, _DAMAGED), encoding="utf-8-sig", errors="replace")
    stem, folder = (NO_TEXT.sub("?", part).strip() for part in (path.name.split(".")[0], path.parent.name))
    return TraceSource(name, stem or "trace", folder, text)


def read_csv(source: TraceSource, layout: Callable[[list[str]], Layout]) -> Iterator[TracedJob | Refusal]:
    """Read a table with a header; a line is a row, a blank line is none, columns not asked for are passed over.

    ``layout`` says for the header's names which of them are required, and makes jobs of rows.

    Raises
    ------
    InputError
        A required column is not in the header.
    """
    lines = numbered_lines(source)
    header = [name.strip() for name in next(lines, (1, ""))[1].rstrip("\n").split(",")]
    required, job_of = layout(header)
    for name in required:
        if name not in header:
            there = abbreviated(",".join(header))
            raise InputError(
                f"{source.name}: column {name!r} is missing (there is {there}); expected {','.join(required)}"
            )

    def job_of_line(line: str) -> TracedJob:
        cells = _split(line)
        if len(cells) != len(header):
            raise BadRowError("wrong number of values", f"has {len(cells)} values; expected {len(header)}")
        return job_of(dict(zip(header, cells, strict=True)))

    return read_rows(lines, job_of_line)


def read_rows(rows: Iterator[tuple[int, Any]], job_of: Callable[[Any], TracedJob]) -> Iterator[TracedJob | Refusal]:
    """Turn each numbered row into a job or a refusal."""
    for number, row in rows:
        try:
            job = job_of(row)
            yield job._replace(line=number, job_id=job.job_id or str(number))
        except BadRowError as bad:
            yield Refusal(number, *bad.args)


def numbered_lines(source: TraceSource) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their numbers from 1, but for those that are blank.

    Raises
    ------
    InputError
        While iterating: a line without end.
    """
    for number in itertools.count(1):
        line = source.text.readline(_LONGEST_LINE)
        if not line:
            return
        if len(line) == _LONGEST_LINE:
            raise InputError(f"{source.name}, line {number}: has {len(line):,} characters or more; expected rows")
        if not line.isspace():
            yield number, line


def _split(line: str) -> list[str]:
    line = line.rstrip("\n")
    if '"' not in line:
        return line.split(",")
    # A line at a time, so that a quote left open spoils its own line and not those after it.
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise BadRowError("not CSV", f"is no CSV ({error})") from None


def json_elements(source: TraceSource) -> Iterator[tuple[int, Any]]:
    """Yield the elements of a JSON array with the lines on which they begin, without holding the array.

    Raises
    ------
    InputError
        While iterating: the text is no JSON array.
    """
    scanner = JsonScanner(source.name, source.text)
    yield from scanner.elements()
    if scanner.next_character():
        scanner.refuse("expected nothing after the array")


_CHUNK: Final = 1 << 20
_LONGEST_ELEMENT: Final = 1 << 26
_SPACE = re.compile(r"\s*")


class JsonScanner:
    """A window on a JSON text that moves on as its values are read."""

    def __init__(self, name: str, text: TextIO) -> None:
        self.name, self.text, self.window, self.at, self.line = name, text, "", 0, 1
        self.decoder = json.JSONDecoder()

    def next_character(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            space = _SPACE.match(self.window, self.at)
            self._move(space.end() if space else self.at)
            if self.at < len(self.window):
                return self.window[self.at]
            if not self._refill():
                return ""

    def value(self) -> Any:
        """Return the value that begins here, and move on.

        Raises
        ------
        InputError
            It is no JSON, not whole, or too long.
        """
        while True:
            try:
                value, end = self.decoder.raw_decode(self.window, self.at)
            except (ValueError, RecursionError) as error:
                if len(self.window) - self.at > _LONGEST_ELEMENT or not self._refill():
                    self.refuse(f"is no JSON ({first_line(error)}); expected a whole JSON text")
                continue
            if end == len(self.window) and self._refill():
                continue  # A number may go on beyond the window.
            self._move(end)
            return value

    def elements(self) -> Iterator[tuple[int, Any]]:
        """Yield the elements of the array that begins here, each with the line on which it begins.

        Raises
        ------
        InputError
            While iterating: there is no array.
        """
        for _ in self._parts("[", "]", "a JSON array"):
            yield self.line, self.value()

    def members(self) -> Iterator[str]:
        """Yield the keys of the object that begins here; the caller reads each value before the next.

        Raises
        ------
        InputError
            While iterating: there is no object.
        """
        for _ in self._parts("{", "}", "a JSON object"):
            key = self.value()
            if not isinstance(key, str) or self.next_character() != ":":
                self.refuse("expected a name and : before each value of an object")
            self.at += 1
            yield key

    def _parts(self, begin: str, end: str, what: str) -> Iterator[None]:
        """Stop before each part between brackets, which whoever asks for the next has read."""
        if self.next_character() != begin:
            self.refuse(f"expected {what}")
        self.at += 1
        while self.next_character() != end:
            yield
            if self.next_character() == ",":
                self.at += 1
            elif self.next_character() != end:
                self.refuse(f"expected , or {end} here")
        self.at += 1

    def refuse(self, why: str) -> NoReturn:
        """Raise InputError with the line that has been reached."""
        raise InputError(f"{self.name}, line {self.line}: {why}")

    def _move(self, to: int) -> None:
        self.line += self.window.count("\n", self.at, to)
        self.at = to

    def _refill(self) -> bool:
        more = self.text.read(_CHUNK)
        self.window, self.at = self.window[self.at :] + more, 0
        return bool(more)
