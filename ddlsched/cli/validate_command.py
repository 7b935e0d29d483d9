"""``ddlsched validate``: is a file what it should be, and what is in it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.output import emit
from ddlsched.errors import InputError
from ddlsched.io.reading import opened
from ddlsched.io.tables import cell_whole, csv_rows

if TYPE_CHECKING:
    from ddlsched.cluster.cluster import Cluster
    from ddlsched.workload.job import Workload

__all__ = ["validate"]

_KINDS = (
    "a workload (.csv, .parquet, .json), a table of servers, of outages or of when servers are there (.csv), "
    "a comparison (.yaml), a training trace of a rank (.et, .recording.json, Kineto's .json; also .gz)"
)
_LONGEST_HEADER = 65_536
_MOST_TRACE_BYTES = 1 << 32


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"What to check: {_KINDS}.", readable=False)],
    server_table: Annotated[
        Path | None,
        typer.Option(
            help="The cluster on which a workload's jobs must fit (else 16 servers of 4 GPUs), or whose servers fail, "
            "join and leave.",
            metavar="FILE.csv",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is in the file as one JSON object.")] = False,
) -> None:
    """Check an input file and say what is in it, or what is wrong and where."""
    from ddlsched.cluster.server_tables import read_cluster

    cluster = None if server_table is None else read_cluster(server_table)
    kind = _kind(file)
    found = _READERS[kind](file, cluster)
    if as_json:
        emit(json.dumps({"file": str(file), "kind": kind, **found}, indent=2) + "\n")
    else:
        lines = [f"{file}: valid ({kind})", *(f"  {name.replace('_', ' '):<28}{_text(found[name])}" for name in found)]
        emit("\n".join(lines) + "\n")


def _kind(path: Path) -> str:
    """Return what a file is meant to be, by its suffix and, of a CSV, its header, of a JSON text its first words."""
    if _is_training_trace(path):
        return "training trace"
    if path.suffix.lower() != ".csv":
        return "comparison" if path.suffix.lower() in (".yaml", ".yml") else "workload"
    try:
        with opened(path) as file:
            first = file.readline(_LONGEST_HEADER).decode("utf-8-sig")
        header = {name.strip() for name in next(csv.reader([first]), [])}
    except (OSError, UnicodeDecodeError, csv.Error):
        return "workload"  # whose reader says what is wrong
    if "from_s" in header or "to_s" in header:
        return "outages"
    if "join_s" in header or "leave_s" in header:
        return "capacity"
    return "servers" if "gpus" in header and not header & {"job_id", "iterations", "arrival_s"} else "workload"


def _is_training_trace(path: Path) -> bool:
    name = path.name.lower()
    if name.removesuffix(".gz").endswith((".et", ".recording.json")) or name.endswith(".json.gz"):
        return True
    if not name.endswith(".json"):
        return False
    try:
        with opened(path, _MOST_TRACE_BYTES) as file:
            begin = file.read(_LONGEST_HEADER)
        return b'"schemaVersion"' in begin or b'"traceEvents"' in begin
    except (OSError, InputError):
        return False  # whose reader says what is wrong


def _training_trace(path: Path, _: Cluster | None) -> dict[str, Any]:
    from ddlsched.workload.recorded.reading import reader_of

    trace = reader_of(path)(path)
    communications = [each for step in trace.steps.values() for each in step.communications]
    return {
        "rank": "not told" if trace.rank is None else trace.rank,
        "ranks": trace.num_ranks or "not told",
        "nodes": trace.nodes,
        "steps": len(trace.steps),
        "collectives": len(communications),
        "bytes_of_them": sum(each.input_bytes for each in communications),
        "groups": len({each.group for each in communications}),
        "computing_s": _quantiles([step.compute_ns / 1e9 for step in trace.steps.values()]),
        **trace.notes,
    }


def _workload(path: Path, cluster: Cluster | None) -> dict[str, Any]:
    import numpy as np

    from ddlsched.cluster.cluster import Cluster
    from ddlsched.workload.workload_files import read_workload

    workload = read_workload(path)
    gpus = np.array([job.num_gpus for job in workload])
    arrivals_s = np.array([job.arrival_s for job in workload])
    service_s = sum(job.service_ns for job in workload) / 1e9
    grouped = sum(bool(job.dag.groups) for job in workload)
    return {
        "jobs": len(workload),
        "gpus_of_a_job": _quantiles(gpus),
        "jobs_of_1_gpu": int((gpus == 1).sum()),
        "jobs_of_2_to_4_gpus": int(((gpus >= 2) & (gpus <= 4)).sum()),
        "jobs_of_8_or_more_gpus": int((gpus >= 8).sum()),
        "arrivals_s": [float(arrivals_s.min()), float(arrivals_s.max())],
        "gpu_hours_of_compute": round(service_s / 3600, 3),
        "jobs_that_never_fit": _misfits(workload, cluster or Cluster()),
    } | ({"jobs_with_groups": grouped} if grouped else {})


def _misfits(workload: Workload, cluster: Cluster) -> int:
    """Return how many jobs can never be placed on the cluster."""
    import numpy as np

    from ddlsched.engine.build import num_large_enough

    ascending_bytes = np.sort(cluster.gpu_memory_bytes)
    return sum(job.num_gpus > num_large_enough(job, ascending_bytes) for job in workload)


def _quantiles(values: Any) -> list[float]:
    import numpy as np

    return [float(value) for value in np.quantile(values, [0.0, 0.5, 1.0])]


def _servers(path: Path, _: Cluster | None) -> dict[str, Any]:
    from ddlsched.cluster.server_tables import read_cluster

    cluster = read_cluster(path)
    return {
        "servers": cluster.num_servers,
        "gpus": cluster.num_gpus,
        "gpu_memory_mb": _quantiles([server.gpu_memory_mb for server in cluster.servers]),
        "relative_speed": _quantiles([server.relative_speed for server in cluster.servers]),
        **({"gpu_kinds": kinds} if (kinds := len({server.gpu_kind for server in cluster.servers} - {None})) else {}),
        "exclusive": cluster.exclusive,
    }


def _outages(path: Path, cluster: Cluster | None) -> dict[str, Any]:
    from ddlsched.cluster.disturbances import read_outages

    outages = read_outages(path)
    last = max((outage.server for outage in outages), default=0)
    if cluster is not None and last >= cluster.num_servers:
        raise InputError(f"{path}: server {last} is down; expected servers from 0 to {cluster.num_servers - 1}")
    return {
        "outages": len(outages),
        "servers": len({outage.server for outage in outages}),
        "never_repaired": sum(outage.to_s == float("inf") for outage in outages),
    }


def _capacity(path: Path, cluster: Cluster | None) -> dict[str, Any]:
    from ddlsched.cluster.capacity import CapacityTrace

    trace = CapacityTrace.read(path)
    if cluster is not None:
        for where, row in csv_rows(path, ("server", "join_s", "leave_s"), ("warned",)):
            cell_whole(where, "server", row["server"], at_most=cluster.num_servers - 1, at_least=0)
    stays = trace.presences
    return {
        "stays": len(stays),
        "servers": len({stay.server for stay in stays}),
        "never_leave": sum(stay.leave_s == float("inf") for stay in stays),
        "leave_with_a_warning": sum(stay.warned for stay in stays),
        "joins_s": [min(stay.join_s for stay in stays), max(stay.join_s for stay in stays)],
    }


def _comparison(path: Path, _: Cluster | None) -> dict[str, Any]:
    from ddlsched.comparisons.compare import planned
    from ddlsched.comparisons.yaml_file import read_yaml

    plan = planned(*read_yaml(path))
    return {
        "policies": len(plan.policies),
        "workloads": len(plan.workloads),
        "clusters": len(plan.places),
        "seeds": len(plan.settings.seeds),
        "runs": len(plan.runs()),
    }


_READERS: dict[str, Callable[[Path, Cluster | None], dict[str, Any]]] = {
    "workload": _workload,
    "servers": _servers,
    "outages": _outages,
    "capacity": _capacity,
    "comparison": _comparison,
    "training trace": _training_trace,
}


def _text(value: Any) -> str:
    if isinstance(value, list):
        names = ("smallest", "median", "largest") if len(value) == 3 else ("first", "last")
        return ", ".join(f"{name} {number:g}" for name, number in zip(names, value, strict=True))
    return value if isinstance(value, str) else f"{value:,}"
