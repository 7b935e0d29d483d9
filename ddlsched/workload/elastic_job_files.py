"""Elastic jobs and scaling curves in files: a job as an object of a JSON workload, a curve as a CSV table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError, did_you_mean
from ddlsched.io.tables import (
    abbreviated,
    cell_number,
    cell_text,
    cell_time_s,
    cell_whole,
    csv_rows,
    located,
    read_text,
    readable,
)
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.scaling_curves import BatchCurve, LinearCurve, ScalingCurve, ThroughputCurve

__all__ = ["OPTIONAL", "REQUIRED", "elastic_job_of", "json_of", "read_curve"]

REQUIRED = ("job_id", "arrival_s", "samples", "curve", "gpu_batch", "max_gpus")
_COUNTS = ("min_gpus", "min_batch", "max_batch")
_AMOUNTS = ("message_bytes", "gpu_memory_mb")
OPTIONAL = (*_COUNTS, *_AMOUNTS, "model", "user")

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
    job_id = cell_text(where, "job_id", row["job_id"])
    if job_id is None:
        raise InputError(f"{where}, column job_id: is empty; expected a unique id")
    fields: dict[str, Any] = {"job_id": job_id, "arrival_s": cell_time_s(where, "arrival_s", row["arrival_s"])}
    fields |= {name: cell_whole(where, name, row[name]) for name in ("samples", "gpu_batch", "max_gpus")}
    fields |= {name: cell_whole(where, name, row[name]) for name in _COUNTS if row.get(name) is not None}
    fields |= {name: cell_number(where, name, row[name]) for name in _AMOUNTS if row.get(name) is not None}
    fields |= {name: cell_text(where, name, row.get(name)) for name in ("model", "user")}
    fields["curve"] = _curve_of(f"{where}, field curve", row["curve"])
    return located(where, lambda: ElasticJob(**fields))


def _curve_of(where: str, given: Any) -> ScalingCurve:
    kind = given.get("kind") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str) or kind not in _CURVES:
        shown = abbreviated(kind if isinstance(given, dict) else given)
        raise InputError(f"{where}: its kind is {shown}; expected an object with the kind throughput, batch or linear")
    needed = _POINTS.get(kind, ("fixed_s", "sample_s"))
    for name in given:
        if name not in (*needed, "kind"):
            raise InputError(f"{where}: unknown field {name!r}.{did_you_mean(name, needed)}")
    for name in needed:
        if name not in given:
            raise InputError(f"{where}: field {name!r} is missing; expected {', '.join(needed)}")
    if kind == "linear":
        linear = {name: cell_time_s(where, name, given[name]) for name in needed}
        return located(where, lambda: LinearCurve(**linear))
    for name in needed:
        if not isinstance(given[name], list):
            raise InputError(f"{where}, field {name}: is {abbreviated(given[name])}; expected a list of numbers")
    first = tuple(cell_whole(where, needed[0], value) for value in given[needed[0]])
    second = tuple(cell_number(where, needed[1], value) for value in given[needed[1]])
    curve: ScalingCurve = located(where, lambda: _CURVES[kind](**{needed[0]: first, needed[1]: second}))
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
    row = {name: getattr(job, name) for name in (*REQUIRED, *OPTIONAL) if name != "curve"}
    curve = {"kind": kinds[type(job.curve)], **asdict(job.curve)}  # type: ignore[call-overload]
    return {name: value for name, value in row.items() if value is not None} | {"curve": curve}


def read_curve(path: str | Path) -> ScalingCurve:
    """Read a measured curve from CSV: columns gpus, samples_per_s, or gpu_batch, seconds (of one GPU).

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    return readable(Path(path), "a measured scaling curve (CSV)", _read_curve)


def _read_curve(path: Path) -> ScalingCurve:
    first = "gpu_batch" if "gpu_batch" in read_text(path).partition("\n")[0] else "gpus"
    kind, second = _TABLES[first]
    rows = [
        (cell_whole(where, first, row[first]), cell_number(where, second, row[second]))
        for where, row in csv_rows(path, (first, second), ())
    ]
    names = _POINTS[kind]
    columns = zip(names, zip(*rows, strict=True), strict=True) if rows else ((name, ()) for name in names)
    curve: ScalingCurve = located(str(path), lambda: _CURVES[kind](**dict(columns)))
    return curve
