"""Windows of real traces as workload files, cut to what the map's cluster holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from points import GPU_MEMORY_MB, GPUS, GPUS_PER_SERVER, Point

from ddlsched import Workload
from ddlsched.workload.traces.trace_import import Selection, import_trace
from ddlsched.workload.workload_files import write_workload

DATA = next(
    (path for parent in Path(__file__).parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data")
)
TRACES = {
    "Philly": ("philly-csv", "traces/pollux-osdi21/philly.csv.gz", 25.0, 0.0005),
    "ITP": ("microsoft-itp", "traces/microsoft-elasticflow-traces/raw-traces.tar.gz", 10.0, 0.0005),
    "Gavel": ("gavel", "traces/gavel-osdi20/msr-seed0/103959.trace.gz", 0.0, 0.0005),
    "Alibaba": ("alibaba-openb", "traces/alibaba-clusterdata/openb_pod_list_default.csv", 0.0, 0.02),
}
"""Of each its format, its file, the day from which on it is taken, and what durations are multiplied by."""
TRACED_JOBS = 3000
MOST_ITERATIONS = 200
"""A longer job is cut: one of weeks would be all of a window."""
BANDWIDTHS = (10.0, 100.0)


def imported(trace: str, data: Path, folder: Path) -> Path:
    """Write a trace's workload file, unless it is there, and return it: jobs of at most the cluster's GPUs, cut."""
    path = folder / f"{trace}.parquet"
    if not path.exists():
        kind, file, day, scale = TRACES[trace]
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
        for trace in TRACES
        for gbps in BANDWIDTHS
    ]
