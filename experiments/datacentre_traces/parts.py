"""Parts of the Philly and ITP traces as workload files, and the clusters that they run on."""

from __future__ import annotations

import math
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ddlsched import Cluster
from ddlsched.errors import InputError
from ddlsched.workload.traces.trace_import import Selection, import_trace, write_jobs

FILES = {
    "Philly": Path("traces/pollux-osdi21/philly.csv.gz"),
    "ITP": Path("traces/microsoft-elasticflow-traces/raw-traces.tar.gz"),
}
FORMATS = {"Philly": "philly-csv", "ITP": "microsoft-itp"}
GPUS_PER_SERVER = 8
ONE_JOB_MB, SEVERAL_JOBS_MB = 5_000.0, 32_768.0
"""Memory of a GPU that holds one of the four models (2,751 to 4,527 MB), and of one that holds up to eleven."""

DAY_S = 86_400.0
WINDOW_JOBS = 500
SCALE = 0.001
"""Of durations and arrivals."""
FIRST_CLUSTERS = ("cluster03", "cluster04")
"""The quick form's."""
ITP_CLUSTERS = (*FIRST_CLUSTERS, *(f"cluster{number:02d}" for number in (1, 2, 5, 6, 7, 8, 9, 10)))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a trace; ``seed`` draws its jobs' models, and pairs its runs."""

    trace: str
    name: str
    seed: int
    member: str = ""
    from_day: float = 0.0
    limit: int | None = None
    scale: float = SCALE


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A part's workload file and what sizes its cluster."""

    part: Part
    path: Path
    jobs: int
    several_gpus: int
    over_a_server: int
    days: float
    mean_gpus: float
    largest: int

    def cluster(self, load: float, *, shared: bool = False) -> Cluster:
        """Return enough servers for ``load`` = GPU time submitted / (GPUs x time of arrivals), and the largest job."""
        gpus = max(self.mean_gpus / load, self.largest)
        memory_mb = SEVERAL_JOBS_MB if shared else ONE_JOB_MB
        servers = math.ceil(gpus / GPUS_PER_SERVER)
        return Cluster(num_servers=servers, gpus_per_server=GPUS_PER_SERVER, gpu_memory_mb=memory_mb)


def windows(*, full: bool) -> list[Part]:
    """Return the first jobs from six days of Philly on, and after ten days of each cluster of ITP; else two of each."""
    philly = [
        Part(trace="Philly", name=f"day {day}", seed=seed, from_day=day, limit=WINDOW_JOBS)
        for seed, day in enumerate(range(25, 97, 12), start=1)
    ]
    itp = [
        Part(trace="ITP", name=member, seed=seed, member=member, from_day=10, limit=WINDOW_JOBS)
        for seed, member in enumerate(ITP_CLUSTERS, start=1)
    ]
    return philly + itp if full else philly[:2] + itp[:2]


def missing(data: Path) -> list[Path]:
    """Return the traces that are not there."""
    return [data / file for file in FILES.values() if not (data / file).exists()]


def imported(part: Part, data: Path, folder: Path) -> Imported:
    """Import a part of a trace, and write its workload file."""
    folder.mkdir(parents=True, exist_ok=True)
    selection = Selection(from_s=part.from_day * DAY_S, limit=part.limit, scale=part.scale)
    file = data / FILES[part.trace]
    if not file.exists():
        raise InputError(f"{file}: no such file; docs/traces.md says where to get it, --data where it is")
    if part.member:
        file = _extracted(file, part.member, folder)
    trace = import_trace(
        FORMATS[part.trace], [file], selection=selection, gpus_per_server=GPUS_PER_SERVER, seed=part.seed
    )
    path = folder / f"{part.trace}-{part.name}-{part.scale:g}.parquet".replace(" ", "_").replace(",", "")
    write_jobs(trace, path)
    gpus, span_s = trace.jobs["gpus"], trace.report["span_s"]
    return Imported(
        part=part,
        path=path,
        jobs=len(gpus),
        several_gpus=int((gpus > 1).sum()),
        over_a_server=int((gpus > GPUS_PER_SERVER).sum()),
        days=span_s / part.scale / DAY_S,
        mean_gpus=trace.report["gpu_hours"] * 3600 / span_s,
        largest=int(gpus.max()),
    )


def _extracted(archive: Path, member: str, folder: Path) -> Path:
    """Write one cluster's file of the archive; all in one import would share a clock."""
    with tarfile.open(archive) as tar:
        (found,) = (info for info in tar.getmembers() if Path(info.name).stem == member and info.isfile())
        content = tar.extractfile(found)
        assert content is not None
        (folder / f"{member}.csv").write_bytes(content.read())
    return folder / f"{member}.csv"


def table(parts: list[Imported]) -> pd.DataFrame:
    """Return a row a part: what is in it."""
    return pd.DataFrame(
        {
            "trace": p.part.trace,
            "part": p.part.name,
            "seed": p.part.seed,
            "scale": p.part.scale,
            "days": p.days,
            "jobs": p.jobs,
            "jobs_of_several_gpus": p.several_gpus,
            "jobs_over_a_server": p.over_a_server,
            "largest_gpus": p.largest,
            "mean_gpus": p.mean_gpus,
        }
        for p in parts
    )
