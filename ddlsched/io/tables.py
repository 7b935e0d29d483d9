"""Reading tables that people write: rows with their place in the file, cells checked one by one.

Files are parsed, never executed, and every fault is reported with its file, row, column, value and what was
expected.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ddlsched.errors import InputError, abbreviated, did_you_mean
from ddlsched.io.files import read_bytes
from ddlsched.units import MAX_NS, NS_PER_S

Made = TypeVar("Made")
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


def refuse_fields(where: str, fields: Collection[str], needed: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Refuse an object with a field that is neither needed nor optional, or without one that is needed."""
    for name in fields:
        if name not in (*needed, *optional):
            raise InputError(f"{where}: unknown field {name!r}.{did_you_mean(name, (*needed, *optional))}")
    for name in needed:
        if name not in fields:
            raise InputError(f"{where}: field {name!r} is missing; expected {', '.join(needed)}")


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
