"""The grounds of the arena: networks, clusters, and the jobs that come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ddlsched import Cluster, Job, Workload
from ddlsched.errors import InputError
from ddlsched.network.contention import TEN_GBE
from ddlsched.units import NS_PER_S
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.generators.monkeytree_mix import monkeytree_mix
from ddlsched.workload.generators.streams import gpu_seconds, stream
from ddlsched.workload.scaling_curves import LinearCurve
from ddlsched.workload.traces.trace_import import Selection, import_trace, write_jobs
from ddlsched.workload.workload_files import read_workload
from experiments.public_traces import MOST_ITERATIONS, PUBLIC_TRACES

TRACES = {name.lower(): PUBLIC_TRACES[name] for name in ("Philly", "Alibaba")}
TRACED_JOBS = 2000
LOAD = 0.9
MIX_SCALE = 0.02
MONKEYTREE_SCALE = 0.03


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A cluster and a network, and the name of the jobs that come there.

    ``per_rack`` servers are a rack, under ``spines``; ``restart_s`` is what a stop costs, scaled as the jobs are;
    ``round_s`` how often those look again that work in rounds: some iterations at least; ``block_gpus`` is what
    MonkeyTree gives jobs whole: what they are multiples of, or else of a GPU and a server what has the lower average
    JCT there.
    """

    name: str
    jobs: str
    servers: int
    gpus_per_server: int
    topology: str
    per_rack: int
    spines: int
    restart_s: float
    round_s: float
    block_gpus: int

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.servers * self.gpus_per_server

    def cluster(self, *, exclusive: bool = True) -> Cluster:
        """Return the cluster."""
        return Cluster(
            num_servers=self.servers,
            gpus_per_server=self.gpus_per_server,
            topology=self.topology,
            exclusive=exclusive,
        )


def _leaf_spine(name: str, jobs: str, gbps: float, restart_s: float, round_s: float, block_gpus: int) -> Ground:
    """Return 16 servers of 4 GPUs, four a leaf, four spines, 2:1."""
    topology = f"leaf-spine:servers_per_leaf=4,spines=4,oversubscription=2,nic_gbps={gbps:g}"
    return Ground(
        name=name,
        jobs=jobs,
        servers=16,
        gpus_per_server=4,
        topology=topology,
        per_rack=4,
        spines=4,
        restart_s=restart_s,
        round_s=round_s,
        block_gpus=block_gpus,
    )


GROUNDS = {
    ground.name: ground
    for ground in (
        _leaf_spine("64 GPUs, 10G", "mix", 10, restart_s=30 * MIX_SCALE, round_s=360 * MIX_SCALE, block_gpus=4),
        Ground(
            name="MonkeyTree's mix, 256 GPUs",
            jobs="monkeytree",
            servers=256,
            gpus_per_server=1,
            topology="monkeytree:racks=4,servers_per_rack=64,spines=16",
            per_rack=64,
            spines=16,
            restart_s=9.02 * MONKEYTREE_SCALE,
            round_s=120.0,
            block_gpus=8,
        ),
        *(
            _leaf_spine(
                f"{trace.capitalize()}, {gbps}G",
                trace,
                gbps,
                restart_s=30 * TRACES[trace].scale,
                round_s=5.0,
                block_gpus=1,
            )
            for trace in TRACES
            for gbps in (10, 100, 400)
        ),
    )
}


def imported(trace: str, data: Path, folder: Path) -> Path:
    """Write a trace's workload file, unless it is there; return it."""
    kind, file, day, scale = TRACES[trace]
    path = folder / f"{trace}.parquet"
    if not path.exists():
        if not (data / file).exists():
            raise InputError(f"{data / file}: no such file; docs/traces.md says where to get it, --data where it is")
        folder.mkdir(parents=True, exist_ok=True)
        selection = Selection(from_s=day * 86400, limit=TRACED_JOBS, scale=scale)
        write_jobs(import_trace(kind, [data / file], selection=selection, gpus_per_server=8, seed=1), path)
    return path


def jobs_of(*, seed: int, ground: str, jobs: int, gpus: int = 64, file: str = "", fixed_size: bool = False) -> Workload:
    """Return the jobs of a ground.

    Parameters
    ----------
    ground
        ``mix``, ``monkeytree``, or a trace, whose workload is in ``file``.
    jobs
        How many.
    fixed_size
        As jobs that an allocation policy gives their GPUs or none.
    """
    if ground == "mix":
        made = stream(seed=seed, num_jobs=jobs, load=LOAD, scale=MIX_SCALE)
    elif ground == "monkeytree":
        made = monkeytree_mix(seed=seed, jobs=jobs, gpus=gpus, load=LOAD, scale=MONKEYTREE_SCALE)
    else:
        made = _window(file, seed, jobs, gpus)
    return Workload.of([fixed_size_job(job) for job in made]) if fixed_size else made


def _window(file: str, seed: int, jobs: int, gpus: int) -> Workload:
    """Return neighbours in a trace, from a place that the seed draws, at a load of 0.9.

    Without jobs larger than the cluster; long ones are cut to ``MOST_ITERATIONS``, or one of them would be all of it.
    """
    traced = [job for job in read_workload(file) if job.num_gpus <= gpus]
    first = int(np.random.default_rng(seed).integers(len(traced) - jobs))
    chosen = [replace(job, iterations=min(job.iterations, MOST_ITERATIONS)) for job in traced[first : first + jobs]]
    work_s = sum(gpu_seconds(job, per_byte_s=TEN_GBE["per_byte_s"], gpus_per_server=4) for job in chosen)
    begin_s, end_s = chosen[0].arrival_s, chosen[-1].arrival_s
    stretch = work_s / (LOAD * gpus * (end_s - begin_s))
    return Workload.of([replace(job, arrival_s=round((job.arrival_s - begin_s) * stretch, 9)) for job in chosen])


def fixed_size_job(job: Job) -> ElasticJob:
    """Return a job as one that an allocation policy gives all of its GPUs or none.

    Raises
    ------
    InputError
        It has rings of its own.
    """
    if job.dag.groups:
        raise InputError(f"job {job.job_id!r}: has rings of its own; expected one all-reduce over all GPUs")
    return ElasticJob(
        job_id=job.job_id,
        arrival_s=job.arrival_s,
        samples=job.iterations * job.num_gpus,
        curve=LinearCurve(fixed_s=job.compute_ns / NS_PER_S, sample_s=0.0),
        gpu_batch=1,
        min_gpus=job.num_gpus,
        max_gpus=job.num_gpus,
        message_bytes=job.dag.message_bytes,
        gpu_memory_mb=job.gpu_memory_mb,
        model=job.model,
    )
