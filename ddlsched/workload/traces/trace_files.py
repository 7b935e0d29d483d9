"""The files that traces come in: plain text, gzip, tar archives; tables by lines, JSON arrays by elements."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError
from ddlsched.io.json_values import JsonScanner
from ddlsched.io.reading import bounded, opened, refuse_irregular
from ddlsched.io.tables import abbreviated, first_line
from ddlsched.workload.traces.traced import NO_TEXT, BadRowError, Cells, Refusal, Source, TracedJob

__all__ = ["json_elements", "numbered_lines", "read_csv", "read_rows", "sources"]

_MOST_BYTES = 1 << 32
"""Of a trace, decompressed."""
_LONGEST_LINE = 1 << 20


def sources(path: Path, members: str) -> Iterator[Source]:
    """Yield the texts of a file: itself (``.gz`` is decompressed), or the members of a tar archive that match.

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
            if tarfile.is_tarfile(path):
                yield from _members(path, members)
                return
        with opened(path, _MOST_BYTES) as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            yield _source(str(path), path.name, gzip.GzipFile(fileobj=file) if zipped else file)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a trace file") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); expected a whole, readable file") from None


def _members(path: Path, pattern: str) -> Iterator[Source]:
    found = False
    with tarfile.open(path) as archive:
        for member in archive:
            name = Path(member.name).name
            file = archive.extractfile(member) if member.isfile() and fnmatch(name, pattern) else None
            if file is not None:
                found = True
                yield _source(f"{path}:{member.name}", name, file)
    if not found:
        raise InputError(f"{path}: holds no file named like {pattern}; expected an archive of the trace's files")


def _source(name: str, file_name: str, file: Any) -> Source:
    # A byte that is no text spoils its row, not the file.
    text = io.TextIOWrapper(bounded(file, name, _MOST_BYTES), encoding="utf-8-sig", errors="replace")
    return Source(name, NO_TEXT.sub("?", file_name.split(".")[0]).strip() or "trace", text)


def read_csv(
    source: Source,
    required: Sequence[str],
    job_of: Callable[[Cells], TracedJob],
    lines: Iterator[tuple[int, str]] | None = None,
) -> Iterator[TracedJob | Refusal]:
    """Read a table with a header; a line is a row, a blank line is none, columns not asked for are passed over.

    ``lines`` are those of the source from the header on, if the caller has begun to read it.

    Raises
    ------
    InputError
        A required column is not in the header.
    """
    lines = numbered_lines(source) if lines is None else lines
    header = [name.strip() for name in next(lines, (1, ""))[1].rstrip("\n").split(",")]
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
            job: TracedJob | Refusal = _numbered(job_of(row), number)
        except BadRowError as bad:
            job = Refusal(number, bad.reason, bad.detail)
        yield job


def _numbered(job: TracedJob, line: int) -> TracedJob:
    return job._replace(line=line, job_id=job.job_id or str(line))


def numbered_lines(source: Source) -> Iterator[tuple[int, str]]:
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


def json_elements(source: Source) -> Iterator[tuple[int, Any]]:
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
