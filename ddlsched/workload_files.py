"""Workload files: CSV and Parquet for data-parallel jobs, JSON for jobs of any iteration DAG.

Columns: ``job_id, arrival_s, gpus, iterations, forward_s, backward_s, message_bytes, gpu_memory_mb`` and
optionally ``model``, ``user``, ``buckets``. Files are parsed, never executed, and every fault is reported
with its file, row, column, value and what was expected.
"""

from __future__ import annotations

import csv
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

__all__ = ["read_workload", "to_frame", "write_workload"]

REQUIRED = ("job_id", "arrival_s", "gpus", "iterations", "forward_s", "backward_s", "message_bytes", "gpu_memory_mb")
OPTIONAL = ("model", "user", "buckets")
Made = TypeVar("Made")
_LIMIT_S = MAX_NS / NS_PER_S
_SUFFIXES = (".csv", ".parquet", ".json")
_JSON_FIELDS = ("job_id", "arrival_s", "gpus", "iterations", "gpu_memory_mb")


def read_workload(path: Path) -> Workload:
    """Read a workload; see :meth:`ddlsched.jobs.Workload.read`."""
    readers: dict[str, Callable[[Path], list[Job]]] = {".csv": _read_csv, ".parquet": _read_parquet, ".json": _read_json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: the suffix is {path.suffix!r}; expected one of {', '.join(_SUFFIXES)}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected a workload file")
    try:
        jobs = reader(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a workload file (see 'ddlsched workload --help')") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); expected a readable file") from None
    return Workload(tuple(jobs), source=path)


def _read_csv(path: Path) -> list[Job]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if not header:
                raise InputError(f"{path}: is empty; expected a header row with the columns {', '.join(REQUIRED)}")
            _check_columns(path, header)
            return _jobs_of_rows(path, _csv_rows(path, header, reader))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8 text; expected a CSV file in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is no CSV ({error}); expected comma-separated values") from None


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
            raise InputError(f"{path}: column {name!r} is missing; expected the columns {', '.join(REQUIRED)}")
    for name in header:
        if name not in REQUIRED + OPTIONAL:
            raise InputError(f"{path}: unknown column {name!r}.{did_you_mean(name, REQUIRED + OPTIONAL)}")
        if header.count(name) > 1:
            raise InputError(f"{path}: column {name!r} occurs {header.count(name)} times; expected once")


def _read_parquet(path: Path) -> list[Job]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise InputError(f"{path}: is no Parquet file ({str(error).splitlines()[0]}); expected Parquet") from None
    _check_columns(path, table.column_names)
    rows = ((f"{path}, row {number}", row) for number, row in enumerate(table.to_pylist(), start=1))
    return _jobs_of_rows(path, rows)


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
    job_id = row.get("job_id")
    text = "" if job_id is None or (isinstance(job_id, float) and math.isnan(job_id)) else str(job_id)
    if not text:
        raise InputError(f"{where}, column job_id: is empty; expected a unique id")
    return {
        "job_id": text,
        "arrival_s": _time_s(where, "arrival_s", row["arrival_s"]),
        "num_gpus": _whole(where, "gpus", row["gpus"]),
        "iterations": _whole(where, "iterations", row["iterations"]),
        "gpu_memory_mb": _number(where, "gpu_memory_mb", row["gpu_memory_mb"]),
        "model": _label(row.get("model")),
        "user": _label(row.get("user")),
    }


def _located(where: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _label(value: Any) -> str | None:
    return str(value) if value not in (None, "") and value == value else None


def _number(where: str, column: str, value: Any) -> float:
    """Return a finite number >= 0, from text or from a number."""
    expected = "expected a finite number >= 0"
    number = _parsed(value)
    if number is None:
        shown = "is empty" if value in (None, "") else f"{value!r} is no number"
        raise InputError(f"{where}, column {column}: {shown}; {expected}")
    if not 0 <= number < math.inf:
        raise InputError(f"{where}, column {column}: {value} is out of range; {expected}")
    return number


def _parsed(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or (isinstance(value, str) and "_" in value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _time_s(where: str, column: str, value: Any) -> float:
    number = _number(where, column, value)
    if number >= _LIMIT_S:
        raise InputError(
            f"{where}, column {column}: {value} s is too large for the clock; expected less than {_LIMIT_S:.6g} s"
        )
    return number


def _whole(where: str, column: str, value: Any, at_most: int = MAX_NS) -> int:
    number = _number(where, column, value)
    if not number.is_integer() or not 1 <= number <= at_most:
        raise InputError(f"{where}, column {column}: {value} is not a whole number from 1 to {at_most}; expected one")
    return int(value) if isinstance(value, str) and value.isdecimal() else int(number)


def _read_json(path: Path) -> list[Job]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8 text; expected JSON in UTF-8") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({error}); expected {{'jobs': [...]}}") from None
    rows = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: holds no jobs; expected {{'jobs': [...]}} with at least one job")
    return [_job_of_json(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)]


def _job_of_json(where: str, row: Any) -> Job:
    if not isinstance(row, dict):
        raise InputError(f"{where}: is {row!r}; expected an object with the fields {', '.join(_JSON_FIELDS)}")
    known = (*REQUIRED, *OPTIONAL, "tasks")
    for name in row:
        if name not in known:
            raise InputError(f"{where}: unknown field {name!r}.{did_you_mean(name, known)}")
    needed = _JSON_FIELDS if "tasks" in row else REQUIRED
    for name in needed:
        if name not in row:
            raise InputError(f"{where}: field {name!r} is missing; expected {', '.join(needed)}")
    if "tasks" not in row:
        return _job_of_row(where, row)
    if not isinstance(row["tasks"], list) or not all(isinstance(task, dict) for task in row["tasks"]):
        raise InputError(f"{where}, field tasks: expected a list of objects with name, kind and after")
    dag = _located(where, lambda: IterationDag.from_dicts(row["tasks"]))
    fields = _common_fields(where, row) | {"iteration": dag}
    return _located(where, lambda: Job(**fields))


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload; see :meth:`ddlsched.jobs.Workload.write`."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        path.write_text(json.dumps({"jobs": [_json_of_job(job) for job in workload]}, indent=1) + "\n", encoding="utf-8")
    elif suffix == ".csv":
        to_frame(workload).to_csv(path, index=False)
    elif suffix == ".parquet":
        to_frame(workload).to_parquet(path, index=False)
    else:
        raise InputError(f"{path}: the suffix is {suffix!r}; expected one of {', '.join(_SUFFIXES)}")


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
    row: dict[str, Any] = {"job_id": job.job_id, "arrival_s": job.arrival_s, "gpus": job.num_gpus, "iterations": job.iterations}
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
