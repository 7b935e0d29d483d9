"""Reads a matrix of throughputs.

From a CSV file with a row a model (column ``model``) and a column a kind of GPU, or from a JSON file with an object a
model, in it a number a kind.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from math import inf
from pathlib import Path

from ddlsched.cluster.throughputs import Throughputs
from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, check_columns, first_line, read_text, readable

__all__ = ["read_throughputs", "throughputs_of"]


def read_throughputs(path: str | Path, reference_kind: str | None = None) -> Throughputs:
    """Read a matrix of throughputs; an empty cell is a pair that is missing.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    read = _read_json if Path(path).suffix.lower() == ".json" else _read_csv
    values = readable(Path(path), "a table of throughputs (CSV or JSON)", read)
    return Throughputs(values=tuple(values), reference_kind=reference_kind, source=str(path))


def throughputs_of(given: Throughputs | str | Path | None, reference_kind: str | None) -> Throughputs | None:
    """Return the throughputs that are given, or of a file, with the reference kind in place of their own.

    Raises
    ------
    InputError
        A reference kind without throughputs; or as :func:`read_throughputs`.
    """
    if given is None:
        if reference_kind is not None:
            raise InputError(f"reference_kind is {reference_kind!r}; expected throughputs as well")
        return None
    if not isinstance(given, Throughputs):
        return read_throughputs(given, reference_kind)
    return given if reference_kind is None else replace(given, reference_kind=reference_kind)


def _read_csv(path: Path) -> list[tuple[str, str, float]]:
    rows = [row for row in csv.reader(io.StringIO(read_text(path), newline="")) if row]
    if len(rows) < 2 or len(rows[0]) < 2:
        raise InputError(f"{path}: has no throughputs; expected a header with model and kinds, and a row a model")
    header = [name.strip() for name in rows[0]]
    check_columns(path, header, ("model",), [name for name in header if name != "model"])
    values = []
    for number, cells in enumerate(rows[1:], 1):
        where = f"{path}, row {number}"
        if len(cells) != len(header):
            raise InputError(f"{where}: has {len(cells)} values; expected {len(header)}, one for each column")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        model = row.pop("model")
        values += [(model, kind, _throughput(where, kind, cell)) for kind, cell in row.items() if cell]
    return values


def _throughput(where: str, kind: str, cell: str) -> float:
    value = cell_number(where, kind, cell)
    if not 0 < value < inf:
        raise InputError(f"{where}, column {kind}: is {cell}; expected a throughput > 0")
    return value


def _read_json(path: Path) -> list[tuple[str, str, float]]:
    try:
        table = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({first_line(error)}); expected an object a model") from None
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise InputError(f"{path}: expected an object with an object a model, in it a number a kind")
    values = []
    for model, row in table.items():
        for kind, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
                raise InputError(f"{path}, model {model!r}, kind {kind!r}: is {value!r}; expected a throughput > 0")
            values.append((model, kind, float(value)))
    return values
