"""Sets what is imported of public traces beside what pandas reads of them: ``import_table.py FOLDER [KINETO]``.

Prints ``docs/import_table.csv``. FOLDER is laid out as ``docs/traces.md`` says where to get each, KINETO holds traces
of ``torch.profiler``, each read as one rank that stands for all: there it is ``tests/data`` of
facebookresearch/HolisticTraceAnalysis (f4d0062), files below 5 MB. Ends with status 1 if anything differs.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlsched.errors import InputError
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.workload.traces.columns import FORMATS, reader_of
from ddlsched.workload.traces.trace_files import sources
from ddlsched.workload.traces.trace_import import import_trace
from ddlsched.workload.traces.traced import TracedJob

FILES = {
    "alibaba-dlrm": ("alibaba-clusterdata/disaggregated_DLRM_trace.csv",),
    "alibaba-openb": ("alibaba-clusterdata/openb_pod_list_*.csv",),
    "batsim": ("batsim/*.json",),
    "elasticflow": ("elasticflow/philly_*.csv", "microsoft-elasticflow-traces/elasticflow-traces.tar.gz"),
    "gavel": ("gavel-osdi20/msr-seed0/*.trace.gz", "gavel-osdi20/physical_cluster/*.trace"),
    "microsoft-itp": ("microsoft-elasticflow-traces/raw-traces.tar.gz",),
    "muri": ("muri-sigcomm22/trace*.csv",),
    "philly-csv": ("pollux-osdi21/philly.csv.gz",),
    "pollux": ("pollux-osdi21/workloads/*.csv",),
    "sia": ("sia-sosp23/*/workload-*.csv",),
    "swf": ("swf/*.swf*",),
    "tiresias": ("tiresias-nsdi19/*_job.csv",),
}
# Which columns, or numbers of columns, tell an arrival and GPUs, and which a duration.
_COLUMNS: dict[str, tuple[Any, Any, list[Any]]] = {
    "alibaba-dlrm": ("creation_time", "gpu_request", ["scheduled_time", "deletion_time"]),
    "alibaba-openb": ("creation_time", "num_gpu", ["scheduled_time", "deletion_time"]),
    "batsim": ("subtime", "res", ["delay", "walltime"]),
    "elasticflow": ("submit_time", "num_gpu", ["duration"]),
    "gavel": ("arrival", "gpus", ["type", "steps", "gpus"]),
    "microsoft-itp": ("submission_time", "num_gpu", ["duration"]),
    "muri": ("submit_time", "num_gpu", ["duration"]),
    "philly-csv": ("timestamp", "num_gpus", ["duration"]),
    "pollux": ("time", "num_replicas", []),
    "sia": ("time", "num_replicas", []),
    "swf": (1, 4, [3]),
    "tiresias": ("submit_time", "num_gpu", ["duration"]),
}
_GAVEL = {7: {0: "type", 4: "steps", 5: "arrival", 6: "gpus"}, 10: {0: "type", 5: "steps", 6: "gpus", 9: "arrival"}}
COMPARED = ("rows", "jobs", "gpus", "first_arrival_s", "last_arrival_s", "duration_s", "gpu_hours")
_CLOSE = {"gavel": 1e-4}
"""Its throughputs are kept here to five digits; sums of others differ by rounding alone."""
_WHOLE_ITERATIONS = 1e-3
"""By what share jobs of whole iterations may hold their GPUs longer or shorter; pandas reads no iterations."""


def _frame(kind: str, path: Path, folder: Path) -> pd.DataFrame:
    """Return the columns arrival, GPUs and duration of every row, as pandas reads them; NaN where there is none."""
    table = _table(kind, path)
    arrival, gpus, told = _COLUMNS[kind]
    start, *rest = [table[name] for name in told] or [pd.Series(math.nan, table.index)]
    duration = start
    if kind.startswith("alibaba"):
        duration = rest[0] - start
    elif kind == "batsim":
        duration = pd.concat([start, rest[0]], axis=1).min(axis=1)
    elif kind == "gavel":
        measured = _rates(folder)
        jobs = zip(start, *rest, strict=True)
        duration = pd.Series([n / max(r for r in measured[name] if r[0] <= gpus)[1] for name, n, gpus in jobs])
    arrived = table[arrival]
    if kind == "philly-csv":
        arrived = (pd.to_datetime(arrived) - pd.Timestamp(0)).dt.total_seconds()
    unit_s = 0.001 if kind == "muri" else 1.0
    return pd.DataFrame({"arrival": arrived * unit_s, "gpus": table[gpus], "duration": duration * unit_s})


def _table(kind: str, path: Path) -> pd.DataFrame:
    if kind == "batsim":
        found = json.loads(path.read_text())
        delays = {name: profile["delay"] for name, profile in found["profiles"].items()}
        return pd.DataFrame(found["jobs"]).assign(delay=lambda jobs: jobs["profile"].map(delays))
    if kind == "gavel":
        table = pd.read_csv(path, sep="\t", header=None)
        return table.rename(columns=_GAVEL[table.shape[1]])
    if kind == "swf":
        return pd.read_csv(path, sep=r"\s+", header=None, comment=";")
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            files: list[Any] = [archive.extractfile(name) for name in archive.getnames() if name.endswith(".csv")]
            table = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    else:
        table = pd.read_csv(path)
    return table.rename(columns={"submission_time": "submit_time"}) if kind == "elasticflow" else table


def _rates(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return how many GPUs Gavel measured each job type on, and its steps a second there."""
    with gzip.open(folder / "gavel-osdi20/simulation_throughputs.json.gz") as file:
        measured = json.load(file)["v100"]
    rates: dict[str, list[tuple[int, float]]] = {}
    for (kind, gpus), entry in ((ast.literal_eval(name), entry) for name, entry in measured.items()):
        rates.setdefault(kind, []).append((gpus, entry["null"]))
    return rates


def by_pandas(kind: str, path: Path, folder: Path) -> list[float]:
    """Return what is compared, of the rows that are jobs: those that arrive, have a GPU and last."""
    rows = _frame(kind, path, folder)
    jobs = rows[rows["arrival"].notna() & (rows["gpus"] >= 1)]
    if rows["duration"].notna().any():
        jobs = jobs[jobs["duration"] > 0]
    return [len(rows), *_sums(jobs["gpus"], jobs["arrival"], jobs["duration"])]


def imported(kind: str, path: Path) -> list[float]:
    """Return the same of what was imported, and the GPU-hours of the jobs that were made, of whole iterations."""
    trace = import_trace(kind, [path])
    traced = [row for each in sources(path, FORMATS[kind].members) for row in reader_of(kind)(each)]
    told = pd.DataFrame([row for row in traced if isinstance(row, TracedJob)])
    found = _sums(told["num_gpus"], told["arrival_s"], told["duration_s"])
    # Of the workload itself what it tells: its clock begins at the first arrival.
    found[:2] = len(trace.jobs), trace.jobs["gpus"].sum()
    found[3] = found[2] + trace.jobs["arrival_s"].max()
    return [trace.report["rows"], *found, trace.report["gpu_hours"]]


def _sums(gpus: Any, arrival_s: Any, duration_s: Any) -> list[float]:
    length = [duration_s.sum(), (duration_s * gpus).sum() / 3600] if duration_s.notna().any() else [math.nan] * 2
    return [len(gpus), gpus.sum(), arrival_s.min(), arrival_s.max(), *length]


def _compared(kind: str, path: Path, folder: Path) -> dict[str, Any]:
    *found, made = imported(kind, path)
    pairs = list(zip(COMPARED, by_pandas(kind, path, folder), found, strict=True))
    close = _CLOSE.get(kind, 1e-9)
    wrong = [name for name, theirs, ours in pairs if not np.isclose(theirs, ours, close, equal_nan=True)]
    if abs(made - pairs[-1][1]) > _WHOLE_ITERATIONS * made:
        wrong.append("gpu_hours_of_jobs")
    sums = {f"{name}_{who}": n for name, *both in pairs for who, n in zip(("pandas", "imported"), both, strict=True)}
    return {"differs": " ".join(wrong), **sums, "gpu_hours_of_jobs": made}


def _recorded(path: Path) -> dict[str, Any]:
    """Return how many events a trace of ``torch.profiler`` has, and of collectives, and why it is refused."""
    content = path.read_bytes()
    events = pd.DataFrame(json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["traceEvents"])
    collectives = int(events["name"].astype(str).str.contains("nccl|c10d::|gloo:", case=False).sum())
    row = {"rows_pandas": len(events), "collective_events_pandas": collectives}
    try:
        read_iteration([path])
    except InputError as error:
        wrong = collectives and "holds no collective" in str(error)
        return row | {"differs": "collectives" if wrong else "", "refused": _reason(path, error)}
    return row | {"differs": "" if collectives else "collectives"}


def _reason(path: Path, error: InputError) -> str:
    return str(error).removeprefix(str(path)).lstrip(":, ")


def table(folder: Path, kineto: Path | None) -> Iterator[dict[str, Any]]:
    """Yield a row a file."""
    for kind, path in [(k, path) for k, globs in FILES.items() for glob in globs for path in sorted(folder.glob(glob))]:
        row = {"format": kind, "file": str(path.relative_to(folder))}
        try:
            yield row | _compared(kind, path, folder)
        except InputError as error:
            yield row | {"differs": "", "refused": _reason(path, error)}
    seen = set()
    for file in sorted(kineto.rglob("*.json*")) if kineto else ():
        if file.read_bytes() not in seen:
            yield {"format": "kineto", "file": file.as_posix().removeprefix(f"{kineto}/")} | _recorded(file)
        seen.add(file.read_bytes())


def main(folder: Path, kineto: Path | None = None) -> int:
    """Print the table; return 1 if anything differs, or there is no file."""
    found = pd.DataFrame(table(folder, kineto))
    found["refused"] = found.get("refused", math.nan)
    found.to_csv(sys.stdout, index=False, lineterminator="\n", float_format="%.12g")
    wrong = found["differs"] != ""
    print(f"{len(found)} files, {found['refused'].notna().sum()} refused, {wrong.sum()} that differ", file=sys.stderr)
    return int(found.empty or wrong.any())


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
