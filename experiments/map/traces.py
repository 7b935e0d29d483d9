"""Windows of real traces as workload files, cut to what the map's cluster holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from points import GPU_MEMORY_MB, GPUS, GPUS_PER_SERVER, Point

from ddlsched import Workload
from ddlsched.workload.traces.trace_import import Selection, import_trace
from ddlsched.workload.workload_files import write_workload

sys.path.append(str(Path(__file__).parents[1]))
from public_traces import MOST_ITERATIONS, PUBLIC_TRACES

DATA = next(
    (path for parent in Path(__file__).parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data")
)
TRACED_JOBS = 3000
BANDWIDTHS = (10.0, 100.0)


def imported(trace: str, data: Path, folder: Path) -> Path:
    """Write a trace's workload file, unless it is there, and return it: jobs of at most the cluster's GPUs, cut."""
    path = folder / f"{trace}.parquet"
    if not path.exists():
        kind, file, day, scale = PUBLIC_TRACES[trace]
        folder.mkdir(parents=True, exist_ok=True)
        selection = Selection(from_s=day * 86_400, gpus_at_most=GPUS, limit=TRACED_JOBS, scale=scale)
        jobs = import_trace(kind, [data / file], selection=selection, gpus_per_server=GPUS_PER_SERVER).workload
        cut = [replace(job, iterations=min(job.iterations, MOST_ITERATIONS)) for job in jobs]
        write_workload(Workload.of([replace(job, gpu_memory_mb=GPU_MEMORY_MB) for job in cut]), path)
    return path


def trace_points() -> list[Point]:
    """Return the points of the traces: one job a GPU, at a load of 0.8, and an oversubscription of 4."""
    return [
        Point(
            gbps=gbps,
            load="0.8",
            oversubscription=4.0,
            jobs_per_gpu=1,
            interference=0.0,
            sizes="of the trace",
            trace=trace,
        )
        for trace in PUBLIC_TRACES
        for gbps in BANDWIDTHS
    ]
