"""Workload files: CSV and Parquet for data-parallel jobs, JSON for jobs of any iteration DAG.

Columns: ``job_id, arrival_s, gpus, iterations, forward_s, backward_s, message_bytes, gpu_memory_mb`` and
optionally ``model``, ``user``, ``buckets``. Files are parsed, never executed, and every fault is reported
with its file, row, column, value and what was expected.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddlsched.dag import DataParallelIteration, IterationDag
from ddlsched.errors import InputError, did_you_mean
from ddlsched.jobs import Job, Workload
from ddlsched.units import MAX_NS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_workload", "refuse_suffix", "to_frame", "write_workload"]

REQUIRED = ("job_id", "arrival_s", "gpus", "iterations", "forward_s", "backward_s", "message_bytes", "gpu_memory_mb")
OPTIONAL = ("model", "user", "buckets")
Made = TypeVar("Made")
_LIMIT_S = MAX_NS / NS_PER_S
_SHOWN = 80
_SUFFIXES = (".csv", ".parquet", ".json")
_JSON_FIELDS = ("job_id", "arrival_s", "gpus", "iterations", "gpu_memory_mb")


def read_workload(path: Path) -> Workload:
    """Read a workload; see :meth:`ddlsched.jobs.Workload.read`."""
    readers: list[Callable[[Path], list[Job]]] = [_read_csv, _read_parquet, _read_json]
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected a workload file")
        refuse_suffix(path)
        jobs = dict(zip(_SUFFIXES, readers, strict=True))[path.suffix.lower()](path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a workload file (see 'ddlsched workload --help')") from None
    except OSError as error:
        why = error.strerror or _first_line(error)
        raise InputError(f"{path}: cannot be read ({why}); expected a readable file") from None
    return Workload(tuple(jobs), source=path)


def refuse_suffix(path: Path) -> None:
    """Raise InputError if a file's suffix is of no format that can hold a workload."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path}: the suffix is {path.suffix!r}; expected one of {', '.join(_SUFFIXES)}")


def _read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark."""
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        text, bad = data.decode("utf-8"), data.find(b"\0")
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    if bad >= 0:
        line = data.count(b"\n", 0, bad) + 1
        raise InputError(f"{path}, line {line}: byte 0x{data[bad]:02x} is no text; expected a file in UTF-8")
    return text


def _read_csv(path: Path) -> list[Job]:
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next((cells for cells in reader if cells), [])]
        if not header:
            raise InputError(f"{path}: is empty; expected a header row with the columns {', '.join(REQUIRED)}")
        _check_columns(path, header)
        return _jobs_of_rows(path, _csv_rows(path, header, reader))
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise InputError(f"{where}: is no CSV ({error}); expected comma-separated values") from None


def _csv_rows(path: Path, header: Sequence[str], reader: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    for cells in reader:
        if not cells:
            continue
        number += 1
        where = f"{path}, row {number} (line {reader.line_num})"
        if len(cells) != len(header):
            raise InputError(f"{where}: has {len(cells)} values; expected {len(header)}, one for each column")
        yield where, dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _check_columns(path: Path, header: Sequence[str]) -> None:
    for name in REQUIRED:
        if name not in header:
            unknown = [repr(found) for found in header if found not in REQUIRED + OPTIONAL]
            instead = f" (there is {', '.join(unknown)})" if unknown else ""
            raise InputError(f"{path}: column {name!r} is missing{instead}; expected the columns {', '.join(REQUIRED)}")
    for name in header:
        if name not in REQUIRED + OPTIONAL:
            raise InputError(f"{path}: unknown column {name!r}.{did_you_mean(name, REQUIRED + OPTIONAL)}")
        if header.count(name) > 1:
            raise InputError(f"{path}: column {name!r} occurs {header.count(name)} times; expected once")


def _read_parquet(path: Path) -> list[Job]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
        names, columns = table.column_names, [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{path}: is no Parquet file ({_first_line(error)}); expected Parquet") from None
    _check_columns(path, names)
    rows = enumerate(zip(*columns, strict=True), start=1)
    return _jobs_of_rows(path, ((f"{path}, row {n}", dict(zip(names, cells, strict=True))) for n, cells in rows))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _jobs_of_rows(path: Path, rows: Iterator[tuple[str, dict[str, Any]]]) -> list[Job]:
    jobs = [_job_of_row(where, row) for where, row in rows]
    if not jobs:
        raise InputError(f"{path}: has a header only; expected at least one job")
    return jobs


def _job_of_row(where: str, row: Mapping[str, Any]) -> Job:
    fields = _common_fields(where, row)
    buckets = row.get("buckets")
    fields["iteration"] = DataParallelIteration(
        forward_s=_time_s(where, "forward_s", row["forward_s"]),
        backward_s=_time_s(where, "backward_s", row["backward_s"]),
        message_bytes=_number(where, "message_bytes", row["message_bytes"]),
        buckets=1 if buckets in (None, "") else _whole(where, "buckets", buckets, at_most=10_000),
    )
    return _located(where, lambda: Job(**fields))


def _common_fields(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    job_id = _text(where, "job_id", row["job_id"])
    if job_id is None:
        raise InputError(f"{where}, column job_id: is empty; expected a unique id")
    return {
        "job_id": job_id,
        "arrival_s": _time_s(where, "arrival_s", row["arrival_s"]),
        "num_gpus": _whole(where, "gpus", row["gpus"]),
        "iterations": _whole(where, "iterations", row["iterations"]),
        "gpu_memory_mb": _number(where, "gpu_memory_mb", row["gpu_memory_mb"]),
        "model": _text(where, "model", row.get("model")),
        "user": _text(where, "user", row.get("user")),
    }


def _located(where: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _text(where: str, column: str, value: Any) -> str | None:
    """Return a text without the space around it, or None if nothing is left; a number is its own text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise InputError(f"{where}, column {column}: {_shown(value)} is no text; expected a text")
    text = "" if value is None or value != value else str(value).strip()
    return text or None


def _number(where: str, column: str, value: Any, expected: str = "expected a finite number >= 0") -> float:
    """Return a finite number >= 0, from text or from a number."""
    number = _parsed(value)
    if number is None:
        shown = "is empty" if value in (None, "") else f"{_shown(value)} is no number"
        raise InputError(f"{where}, column {column}: {shown}; {expected}")
    if not 0 <= number < math.inf:
        raise InputError(f"{where}, column {column}: {_shown(value)} is out of range; {expected}")
    return abs(number)  # Of -0.0 too.


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _parsed(value: Any) -> float | None:
    # Python reads b"1" and "1_000" as numbers, nobody else does.
    if isinstance(value, bool | bytes | None) or (isinstance(value, str) and "_" in value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _time_s(where: str, column: str, value: Any) -> float:
    number = _number(where, column, value)
    if number >= _LIMIT_S:
        shown, limit = _shown(value), f"expected less than {_LIMIT_S:.6g} s"
        raise InputError(f"{where}, column {column}: {shown} s is too large for the clock; {limit}")
    return number


def _whole(where: str, column: str, value: Any, at_most: int = MAX_NS) -> int:
    expected = f"expected a whole number from 1 to {'9.2e18' if at_most == MAX_NS else at_most}"
    number = _number(where, column, value, expected)
    if not number.is_integer() or not 1 <= number <= at_most:
        raise InputError(f"{where}, column {column}: {_shown(value)} is out of range or not whole; {expected}")
    # A float holds no whole number beyond 2**53 exactly.
    exact = isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
    return int(value) if exact else int(number)


def _read_json(path: Path) -> list[Job]:
    text = _read_text(path)
    try:
        document = json.loads(text, object_pairs_hook=_unique_fields)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({error}); expected {{'jobs': [...]}}") from None
    rows = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: holds no jobs; expected {{'jobs': [...]}} with at least one job")
    return [_job_of_json(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)]


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} occurs twice in an object")
    return fields


def _job_of_json(where: str, row: Any) -> Job:
    if not isinstance(row, dict):
        raise InputError(f"{where}: is {_shown(row)}; expected an object with the fields {', '.join(_JSON_FIELDS)}")
    needed, optional = (_JSON_FIELDS, ("tasks", "model", "user")) if "tasks" in row else (REQUIRED, OPTIONAL)
    for name in row:
        if name not in needed + optional:
            raise InputError(f"{where}: unknown field {name!r}.{did_you_mean(name, needed + optional)}")
    for name in needed:
        if name not in row:
            raise InputError(f"{where}: field {name!r} is missing; expected {', '.join(needed)}")
    return _dag_job(where, row) if "tasks" in row else _job_of_row(where, row)


def _is_task(task: Any) -> bool:
    return isinstance(task, dict) and not isinstance(task.get("kind"), list | dict)


def _dag_job(where: str, row: dict[str, Any]) -> Job:
    tasks = row["tasks"]
    if not isinstance(tasks, list) or not all(map(_is_task, tasks)):
        expected = "expected a list of objects with name, kind and after"
        raise InputError(f"{where}, field tasks: is {_shown(tasks)}; {expected}")
    dag = _located(f"{where}, field tasks", lambda: IterationDag.from_dicts(tasks))
    fields = _common_fields(where, row) | {"iteration": dag}
    return _located(where, lambda: Job(**fields))


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload; see :meth:`ddlsched.jobs.Workload.write`."""
    refuse_suffix(path)
    suffix = path.suffix.lower()
    try:
        if suffix == ".json":
            document = {"jobs": [_json_of_job(job) for job in workload]}
            path.write_text(json.dumps(document, indent=1, default=float) + "\n", encoding="utf-8")
        elif suffix == ".csv":
            to_frame(workload).to_csv(path, index=False, lineterminator="\n")
        else:
            to_frame(workload).to_parquet(path, index=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); expected a writable file") from None


def to_frame(workload: Workload) -> pd.DataFrame:
    """Return the workload's table; optional columns only where a job uses them."""
    import pandas as pd

    for job in workload:
        if not isinstance(job.iteration, DataParallelIteration):
            raise InputError(f"job {job.job_id!r} has a general DAG, which a table cannot hold; write it as .json")
    frame = pd.DataFrame([_row_of_job(job) for job in workload])
    unused = [name for name in ("model", "user") if frame[name].isna().all()]
    if (frame["buckets"] == 1).all():
        unused.append("buckets")
    return frame.drop(columns=unused)


def _row_of_job(job: Job) -> dict[str, Any]:
    row: dict[str, Any] = {"job_id": job.job_id, "arrival_s": job.arrival_s}
    row |= {"gpus": job.num_gpus, "iterations": job.iterations}
    if isinstance(job.iteration, DataParallelIteration):
        iteration = job.iteration
        row |= {"forward_s": iteration.forward_s, "backward_s": iteration.backward_s}
        row["message_bytes"] = iteration.message_bytes
    row |= {"gpu_memory_mb": job.gpu_memory_mb, "model": job.model, "user": job.user}
    if isinstance(job.iteration, DataParallelIteration):
        row["buckets"] = job.iteration.buckets
    else:
        row["tasks"] = job.iteration.to_dicts()
    return row


def _json_of_job(job: Job) -> dict[str, Any]:
    return {name: value for name, value in _row_of_job(job).items() if value is not None}
