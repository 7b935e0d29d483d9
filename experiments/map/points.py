"""The points of the map: what a cluster, its network and its jobs are like, and the jobs of a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched import Cluster, Job, Workload
from ddlsched.engine.stop_prices import StopPrices
from ddlsched.errors import InputError
from ddlsched.workload.generators.microsoft import MODELS, microsoft_160
from ddlsched.workload.generators.streams import stream, trace_window
from ddlsched.workload.traces.trace_import import Selection, import_trace
from ddlsched.workload.workload_files import write_workload
from experiments.public_traces import MOST_ITERATIONS, PUBLIC_TRACES

BURST = "burst"
SIZES = ("powers of two", "any")
LEVELS: dict[str, tuple[Any, ...]] = {
    "gbps": (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0),
    "load": ("0.5", "0.6", "0.7", "0.8", "0.9", "0.95", BURST),
    "oversubscription": (1.0, 2.0, 4.0),
    "jobs_per_gpu": (1, 2, 4),
    "interference": (0.0, 0.15, 0.3, 0.45, 0.6),
    "sizes": SIZES,
}
"""The values of each axis, in order: neighbours differ by one step."""

SCALE = 0.01
"""Of iterations; arrivals follow from the load, and what stopping a job costs is scaled alike."""
PRICES = StopPrices(restart_s=30.0, state_mb=3500.0, scale=SCALE)
"""What going on after a stop costs: time on the GPUs, and what comes along from each of them if the servers change."""
ROUND_S = 300.0
GPU_MEMORY_MB = 16_000.0
GPUS, GPUS_PER_SERVER = 64, 4
WIRE_SHARE = 1.5
"""What a ring of four servers moves over a card, as a part of the message: 2 (n - 1) / n."""
JOBS = 120
"""Of a stream, and of a window of a trace."""
TRACED_JOBS = 3000


@dataclass(frozen=True, kw_only=True, order=True)
class Point:
    """A place on the map.

    Parameters
    ----------
    gbps
        Bandwidth of each server's card, Gbit/s.
    load
        Share of the GPUs that a steady stream asks for, or ``burst``: 160 jobs within a fifth of a job's time.
    oversubscription
        Of the leaf-spine network: 16 servers, four a leaf, four spines.
    jobs_per_gpu
        Each job takes 1 / so much of a GPU's memory; with 1, GPUs have one job at a time.
    interference
        Part of its own time that a compute task loses to each other job on its GPU.
    sizes
        Of jobs: ``powers of two``, as in microsoft-160, or ``any``: from half of that (not itself) to it.
    trace
        Windows of this trace in place of a stream, stretched to the load.
    """

    gbps: float
    load: str
    oversubscription: float
    jobs_per_gpu: int
    interference: float
    sizes: str
    trace: str = ""

    def __post_init__(self) -> None:
        if self.jobs_per_gpu == 1 and self.interference:
            raise InputError(f"interference is {self.interference} with one job a GPU; expected 0")

    @property
    def name(self) -> str:
        """What tables call it."""
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @property
    def axes(self) -> dict[str, Any]:
        """Its place on each axis."""
        return asdict(self)

    @property
    def per_byte_s(self) -> float:
        """Time of a byte of a message alone, seconds, for which the load is meant."""
        return 8e-9 * WIRE_SHARE / self.gbps

    @property
    def round_s(self) -> float:
        """A round: 300 s, scaled as the jobs are, but at least ten of the longest all-reduces."""
        return max(PRICES.scaled(ROUND_S), 10 * self.per_byte_s * max(model.message_bytes for model in MODELS))

    def cluster(self) -> Cluster:
        """Return the cluster and its network."""
        over = f"oversubscription={self.oversubscription:g},nic_gbps={self.gbps:g}"
        return Cluster(
            num_servers=GPUS // GPUS_PER_SERVER,
            gpus_per_server=GPUS_PER_SERVER,
            gpu_memory_mb=GPU_MEMORY_MB,
            topology=f"leaf-spine:servers_per_leaf=4,spines=4,{over}",
            exclusive=self.jobs_per_gpu == 1,
        )

    def options(self) -> dict[str, Any]:
        """Return the arguments of ``simulate`` that are the same for all policies."""
        shared = {"interference": f"uniform:share={self.interference:g}"} if self.interference else {}
        steady = {"steady": True} if self.load != BURST else {}
        return {"cluster": self.cluster(), "disturbances": PRICES.disturbances(), **steady, **shared}

    def workload(self, files: Mapping[str, Path]) -> str:
        """Return the text that names its jobs, which the seed makes."""
        given = {"load": self.load, "per_byte_s": f"{self.per_byte_s:g}", "jobs_per_gpu": self.jobs_per_gpu}
        given |= {"sizes": self.sizes} if not self.trace else {"file": files[self.trace]}
        return f"{Path(__file__).resolve()}:jobs_of:" + ",".join(f"{name}={value}" for name, value in given.items())


def jobs_of(
    *, seed: int, load: str, per_byte_s: float, jobs_per_gpu: int, sizes: str = SIZES[0], file: str = ""
) -> Workload:
    """Return the jobs of a point: of a burst, of a stream, or of a window of a trace's ``file``."""
    if file:
        made = trace_window(seed=seed, file=file, num_jobs=JOBS, load=float(load), per_byte_s=per_byte_s)
    elif load == BURST:
        made = microsoft_160(seed=seed, scale=SCALE)
    else:
        made = stream(seed=seed, num_jobs=JOBS, load=float(load), per_byte_s=per_byte_s, scale=SCALE)
    rng = np.random.default_rng([seed, 1])
    numbers = [_size(job, sizes, rng) for job in made]
    memory_mb = GPU_MEMORY_MB / jobs_per_gpu
    return Workload.of(
        [replace(job, num_gpus=gpus, gpu_memory_mb=memory_mb) for job, gpus in zip(made, numbers, strict=True)]
    )


def _size(job: Job, sizes: str, rng: np.random.Generator) -> int:
    """Return the GPUs of a job: its own, or from half of them, but not that, to its own."""
    least = job.num_gpus // 2 + 1 if sizes == "any" else job.num_gpus
    return int(rng.integers(least, job.num_gpus, endpoint=True))


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
