"""Workload files: CSV and Parquet for data-parallel jobs, JSON for jobs of any iteration DAG and for elastic ones.

A text names a workload: its file, a registered generator or a function in a file of the user's (:func:`workload_of`).

Columns: ``job_id, arrival_s, gpus, iterations, forward_s, backward_s, message_bytes, gpu_memory_mb`` and
optionally ``model``, ``user``, ``buckets``, ``algorithm`` (of all-reduces), ``time_limit_s``, ``queue``, ``priority``,
``required_levels``, ``preferred_levels``, ``balanced_level``.
Files are parsed, never executed, and every fault is reported with its file, row, column, value and what was expected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlsched.deferred import pd
from ddlsched.errors import InputError, PluginError, UnknownNameError, abbreviated, did_you_mean, nearest_names
from ddlsched.io import tables
from ddlsched.io.files import from_parquet, writable
from ddlsched.network.traffic import collective_for
from ddlsched.plugins.names import Maker, maker, names
from ddlsched.workload.dag import DataParallelIteration, IterationDag
from ddlsched.workload.elastic_job import BatchCurve, ElasticJob, LinearCurve, ScalingCurve, ThroughputCurve
from ddlsched.workload.groups import checked_groups
from ddlsched.workload.job import MAX_PRIORITY, REQUIRED, TEXTS, Job, Workload

ELASTIC_REQUIRED = ("job_id", "arrival_s", "samples", "curve", "gpu_batch", "max_gpus")
_COUNTS = ("min_gpus", "min_batch", "max_batch")
_AMOUNTS = ("message_bytes", "gpu_memory_mb")
ELASTIC_OPTIONAL = (*_COUNTS, *_AMOUNTS, "model", "user")

_CURVES = {"throughput": ThroughputCurve, "batch": BatchCurve, "linear": LinearCurve}
_POINTS = {"throughput": ("num_gpus", "samples_per_s"), "batch": ("gpu_batch", "seconds")}
_TABLES = {"gpus": ("throughput", "samples_per_s"), "gpu_batch": ("batch", "seconds")}


def elastic_job_of(where: str, row: Mapping[str, Any]) -> ElasticJob:
    """Return the elastic job that an object of a JSON workload describes; its field names are known.

    Raises
    ------
    InputError
        With the place, the field, its value and what is expected.
    """
    fields = _id_and_arrival(where, row)
    fields |= {name: tables.cell_whole(where, name, row[name]) for name in ("samples", "gpu_batch", "max_gpus")}
    fields |= {name: tables.cell_whole(where, name, row[name]) for name in _COUNTS if row.get(name) is not None}
    fields |= {name: tables.cell_number(where, name, row[name]) for name in _AMOUNTS if row.get(name) is not None}
    fields |= {name: tables.cell_text(where, name, row.get(name)) for name in ("model", "user")}
    fields["curve"] = _curve_of(f"{where}, field curve", row["curve"])
    return tables.located(where, lambda: ElasticJob(**fields))


def _curve_of(where: str, given: Any) -> ScalingCurve:
    kind = given.get("kind") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str) or kind not in _CURVES:
        shown = abbreviated(kind if isinstance(given, dict) else given)
        raise InputError(f"{where}: its kind is {shown}; expected an object with the kind throughput, batch or linear")
    needed = _POINTS.get(kind, ("fixed_s", "sample_s"))
    tables.refuse_fields(where, given, needed, ("kind",))
    if kind == "linear":
        linear = {name: tables.cell_time_s(where, name, given[name]) for name in needed}
        return tables.located(where, lambda: LinearCurve(**linear))
    for name in needed:
        if not isinstance(given[name], list):
            raise InputError(f"{where}, field {name}: is {abbreviated(given[name])}; expected a list of numbers")
    first = tuple(tables.cell_whole(where, needed[0], value) for value in given[needed[0]])
    second = tuple(tables.cell_number(where, needed[1], value) for value in given[needed[1]])
    curve: ScalingCurve = tables.located(where, lambda: _CURVES[kind](**{needed[0]: first, needed[1]: second}))
    return curve


def json_of(job: ElasticJob) -> dict[str, Any]:
    """Return the object of a JSON workload that describes a job.

    Raises
    ------
    InputError
        Its curve is none of this package's, or it has a cost of changes of its own, which files do not hold.
    """
    kinds = {curve: kind for kind, curve in _CURVES.items()}
    if type(job.curve) not in kinds or job.rescale_cost is not None:
        raise InputError(f"job {job.job_id!r} has a curve or a rescale cost of its own, which a file cannot hold")
    row = {name: getattr(job, name) for name in (*ELASTIC_REQUIRED, *ELASTIC_OPTIONAL) if name != "curve"}
    curve = {"kind": kinds[type(job.curve)], **asdict(job.curve)}  # type: ignore[call-overload]
    return {name: value for name, value in row.items() if value is not None} | {"curve": curve}


def read_curve(path: str | Path) -> ScalingCurve:
    """Read a measured curve from CSV: columns gpus, samples_per_s, or gpu_batch, seconds (of one GPU).

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    return tables.readable(Path(path), "a measured scaling curve (CSV)", _read_curve)


def _read_curve(path: Path) -> ScalingCurve:
    first = "gpu_batch" if "gpu_batch" in tables.read_text(path).partition("\n")[0] else "gpus"
    kind, second = _TABLES[first]
    rows = [
        (tables.cell_whole(where, first, row[first]), tables.cell_number(where, second, row[second]))
        for where, row in tables.csv_rows(path, (first, second), ())
    ]
    names = _POINTS[kind]
    columns = zip(names, zip(*rows, strict=True), strict=True) if rows else ((name, ()) for name in names)
    curve: ScalingCurve = tables.located(str(path), lambda: _CURVES[kind](**dict(columns)))
    return curve


_FOR_ALL = (*TEXTS, "time_limit_s", "priority")
OPTIONAL = (*_FOR_ALL, "buckets", "algorithm")
_SUFFIXES = (".csv", ".parquet", ".json")
_JSON_FIELDS = ("job_id", "arrival_s", "gpus", "iterations", "gpu_memory_mb")


def read_workload(path: str | Path) -> Workload:
    """Read a workload from CSV, Parquet or JSON, told apart by the file's suffix.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    path = Path(path)
    jobs = tables.readable(path, "a workload file (see 'ddlsched workload --help')", _read)
    return Workload(tuple(jobs), source=path)


def _read(path: Path) -> list[Job]:
    refuse_suffix(path)
    return {".csv": _read_csv, ".parquet": _read_parquet, ".json": _read_json}[path.suffix.lower()](path)


def refuse_suffix(path: Path, suffixes: Sequence[str] = _SUFFIXES) -> None:
    """Raise InputError if a file's suffix is none of these, by default of those that can hold a workload."""
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{path}: the suffix is {path.suffix!r}; expected one of {', '.join(suffixes)}")


def _read_csv(path: Path) -> list[Job]:
    return _jobs_of_rows(path, tables.csv_rows(path, REQUIRED, OPTIONAL))


def _read_parquet(path: Path) -> list[Job]:
    names, columns = from_parquet(
        path, lambda table: (table.column_names, [each.to_pylist() for each in table.columns])
    )
    tables.check_columns(path, names, REQUIRED, OPTIONAL)
    rows = enumerate(zip(*columns, strict=True), start=1)
    return _jobs_of_rows(path, ((f"{path}, row {n}", dict(zip(names, cells, strict=True))) for n, cells in rows))


def _jobs_of_rows(path: Path, rows: Iterator[tuple[str, dict[str, Any]]]) -> list[Job]:
    jobs = [_job_of_row(where, row) for where, row in rows]
    if not jobs:
        raise InputError(f"{path}: has a header only; expected at least one job")
    return jobs


def _job_of_row(where: str, row: Mapping[str, Any]) -> Job:
    fields = _common_fields(where, row)
    buckets = row.get("buckets")
    fields["iteration"] = DataParallelIteration(
        forward_s=tables.cell_time_s(where, "forward_s", row["forward_s"]),
        backward_s=tables.cell_time_s(where, "backward_s", row["backward_s"]),
        message_bytes=tables.cell_number(where, "message_bytes", row["message_bytes"]),
        buckets=1 if buckets in (None, "") else tables.cell_whole(where, "buckets", buckets, at_most=10_000),
        algorithm=tables.cell_text(where, "algorithm", row.get("algorithm")) or "ring",
    )
    return tables.located(where, lambda: _with_known_collectives(Job(**fields)))


def _id_and_arrival(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    job_id = tables.cell_text(where, "job_id", row["job_id"])
    if job_id is None:
        raise InputError(f"{where}, column job_id: is empty; expected a unique id")
    return {"job_id": job_id, "arrival_s": tables.cell_time_s(where, "arrival_s", row["arrival_s"])}


def _common_fields(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    limit, priority = row.get("time_limit_s"), row.get("priority")
    return _id_and_arrival(where, row) | {
        "num_gpus": tables.cell_whole(where, "gpus", row["gpus"]),
        "iterations": tables.cell_whole(where, "iterations", row["iterations"]),
        "gpu_memory_mb": tables.cell_number(where, "gpu_memory_mb", row["gpu_memory_mb"]),
        **{name: tables.cell_text(where, name, row.get(name)) for name in TEXTS},
        "time_limit_s": None if limit in (None, "") else tables.cell_time_s(where, "time_limit_s", limit),
        "priority": 0 if priority in (None, "") else _priority(where, priority),
    }


def _priority(where: str, value: Any) -> int:
    """Return a priority, which may be below 0."""
    number = tables.cell_number(
        where, "priority", str(value).removeprefix("-") if isinstance(value, str) else abs(value)
    )
    if not (number.is_integer() and number <= MAX_PRIORITY):
        expected = f"a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        raise InputError(f"{where}, column priority: is {abbreviated(value)}; expected {expected}")
    return -int(number) if str(value).startswith("-") else int(number)


def _read_json(path: Path) -> list[Job]:
    text = tables.read_text(path)
    document = tables.parsed_json(text, str(path), "{'jobs': [...]}", object_pairs_hook=_unique_fields)
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
        raise InputError(f"{where}: is {abbreviated(row)}; expected an object with {', '.join(_JSON_FIELDS)}")
    kinds = {"tasks": (_JSON_FIELDS, ("tasks", "groups", *_FOR_ALL)), "samples": (ELASTIC_REQUIRED, ELASTIC_OPTIONAL)}
    needed, optional = next((kinds[name] for name in kinds if name in row), (REQUIRED, OPTIONAL))
    tables.refuse_fields(where, row, needed, optional)
    if "tasks" in row:
        return _dag_job(where, row)
    return elastic_job_of(where, row) if "samples" in row else _job_of_row(where, row)


def _is_task(task: Any) -> bool:
    return isinstance(task, dict) and not isinstance(task.get("kind"), list | dict)


def _dag_job(where: str, row: dict[str, Any]) -> Job:
    tasks = row["tasks"]
    if not isinstance(tasks, list) or not all(map(_is_task, tasks)):
        expected = "expected a list of objects with name, kind and after"
        raise InputError(f"{where}, field tasks: is {abbreviated(tasks)}; {expected}")
    groups = tables.located(f"{where}, field groups", lambda: checked_groups(row.get("groups", {})))
    dag = tables.located(f"{where}, field tasks", lambda: IterationDag.from_dicts(tasks, groups))
    fields = _common_fields(where, row) | {"iteration": dag}
    return tables.located(where, lambda: _with_known_collectives(Job(**fields)))


def _with_known_collectives(job: Job) -> Job:
    """Return a job; raise InputError for an algorithm that nobody has registered, or that has no such kind."""
    for kind, algorithm in job.dag.collectives:
        collective_for(kind, algorithm)
    return job


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write a workload to CSV, Parquet or JSON, told apart by the suffix.

    Raises
    ------
    InputError
        The suffix is unknown, the file cannot be written, or it cannot hold a job: a table none that is elastic
        or whose iteration is a general DAG, JSON no curve or cost of changes of the user's own.
    """
    path = Path(path)
    refuse_suffix(path)
    suffix = path.suffix.lower()
    with writable(path):
        if suffix == ".json":
            document = {"jobs": [_json_of_job(job) for job in workload]}
            path.write_text(json.dumps(document, indent=1, default=float) + "\n", encoding="utf-8")
        elif suffix == ".csv":
            workload_table(workload).to_csv(path, index=False, lineterminator="\n")
        else:
            workload_table(workload).to_parquet(path, index=False)


def workload_table(workload: Workload) -> pd.DataFrame:
    """Return a table with a row a job, in the columns of a workload file; optional ones only where a job uses them.

    Raises
    ------
    InputError
        A job is elastic, or its iteration is a general DAG, which a table cannot hold.
    """
    for job in workload:
        if isinstance(job, ElasticJob):
            raise InputError(f"job {job.job_id!r} is elastic, which a table cannot hold; write it as .json")
        if not isinstance(job.iteration, DataParallelIteration):
            raise InputError(f"job {job.job_id!r} has a general DAG, which a table cannot hold; write it as .json")
    frame = pd.DataFrame([_row_of_job(job) for job in workload])
    unused = [name for name in _FOR_ALL if frame[name].isna().all()]
    unused += [name for name, usual in (("buckets", 1), ("algorithm", "ring")) if (frame[name] == usual).all()]
    return frame.drop(columns=unused)


def _row_of_job(job: Job) -> dict[str, Any]:
    iteration = job.iteration
    row: dict[str, Any] = {"job_id": job.job_id, "arrival_s": job.arrival_s}
    row |= {"gpus": job.num_gpus, "iterations": job.iterations}
    if isinstance(iteration, IterationDag):
        further: dict[str, Any] = {"tasks": iteration.to_dicts(), "groups": iteration.groups or None}
    else:
        row |= {name: getattr(iteration, name) for name in ("forward_s", "backward_s", "message_bytes")}
        further = {"buckets": iteration.buckets, "algorithm": iteration.algorithm}
    row |= {"gpu_memory_mb": job.gpu_memory_mb, "model": job.model, "user": job.user} | further
    texts = {name: getattr(job, name) for name in TEXTS}
    return row | {"time_limit_s": job.time_limit_s} | texts | {"priority": job.priority or None}


def _json_of_job(job: Job) -> dict[str, Any]:
    if isinstance(job, ElasticJob):
        return json_of(job)
    return {name: value for name, value in _row_of_job(job).items() if value is not None}


def workload_of(text: str, seed: int) -> Workload:
    """Return the workload that a text names, made from ``seed`` if a generator makes it.

    ==========================================  ===================================================
    ``jobs.csv``                                a workload file: .csv, .parquet or .json
    ``microsoft-160:scale=0.01``                a name from entry points (group ``ddlsched.workload``)
    ``path/to/gen.py:poisson:rate_per_s=0.1``   a function in a file, with parameters
    ==========================================  ===================================================

    A generator returns a :class:`~ddlsched.workload.job.Workload`. If it has a parameter ``seed``, that is the run's.

    Raises
    ------
    InputError
        No such file, generator or parameter, or a file or parameter that cannot be used.
    PluginError
        The generator raised, or returned no workload.
    """
    if not is_generator(text):
        return read_workload(text)
    make = _generator(text)
    workload = make(seed=seed)
    if not isinstance(workload, Workload):
        raise PluginError(f"workload {make.label} returned {type(workload).__name__}; expected a ddlsched.Workload")
    return workload


def draws_from_seed(text: str) -> bool:
    """Return whether the seed makes the jobs."""
    return is_generator(text) and "seed" in _generator(text).supplied


def is_generator(text: str) -> bool:
    """Return whether a text names a generator; if not, it is a file.

    Raises
    ------
    UnknownNameError
        It looks like neither.
    """
    if ".py:" in text or text.partition(":")[0] in names("workload"):
        return True
    try:
        refuse_suffix(Path(text))
    except InputError:
        if os.path.exists(text):  # noqa: PTH110 (which raises if it is too long); what reads it says what is wrong
            return False
        hint = did_you_mean(text.partition(":")[0], names("workload"))
        yours = "A file: jobs.csv, .parquet or .json. A function of your own: path/to/file.py:function"
        raise UnknownNameError(f"no workload is named {text!r}.{hint} {yours}") from None
    return False


def nearest_generators(text: str) -> list[str]:
    """Return the names of generators that a text which names none could mean."""
    return nearest_names(text.partition(":")[0], names("workload"))


def _generator(text: str) -> Maker:
    return maker("workload", text, supplied=("seed",))
