"""The grounds: networks, the jobs that come, and what policies are told of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ddlsched import Cluster, DataParallelIteration, Job, Result, Workload
from ddlsched.comparisons.alone import alone_s
from ddlsched.workload.generators.monkeytree_mix import monkeytree_mix
from ddlsched.workload.generators.streams import LARGE_CLUSTER_GPUS, LARGE_CLUSTER_SHARES, gpu_seconds, stream
from ddlsched.workload.traces.trace_import import Selection, import_trace, write_jobs
from ddlsched.workload.workload_files import read_workload, write_workload
from experiments.beyond_ada_srsf.mixes import second_mix
from experiments.public_traces import MOST_ITERATIONS, PUBLIC_TRACES

LOAD = 0.9
MIX_SCALE, MONKEYTREE_SCALE, CLOS_SCALE = 0.02, 0.03, 0.01
TRACES = {name.lower(): PUBLIC_TRACES[name] for name in ("Philly", "Alibaba")}
MOST_GPUS = 32


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Jobs on a cluster; ``servers_per_rack`` is 0 on a star, ``servers_per_pod`` without pods.

    ``restart_s`` is what going on after a stop takes; ``spines`` those of a network of racks under spines, else 0.
    ``block_gpus`` is what MonkeyTree gives jobs whole: what they are multiples of, or else of a GPU and a server what
    has the lower average JCT on the tuning seeds.
    """

    name: str
    jobs: str
    num_jobs: int
    servers: int
    gpus_per_server: int
    topology: str
    servers_per_rack: int
    restart_s: float
    block_gpus: int
    contention: str = "max-min"
    servers_per_pod: int = 0
    spines: int = 0

    @property
    def cluster(self) -> Cluster:
        """One job a GPU."""
        return Cluster(
            num_servers=self.servers,
            gpus_per_server=self.gpus_per_server,
            topology=self.topology,
            exclusive=True,
        )


def _star(name: str, jobs: str, num_jobs: int, restart_s: float, block_gpus: int = 4) -> Ground:
    return Ground(
        name=name,
        jobs=jobs,
        num_jobs=num_jobs,
        servers=16,
        gpus_per_server=4,
        topology="star",
        servers_per_rack=0,
        restart_s=restart_s,
        block_gpus=block_gpus,
        contention="10gbe",
    )


GROUNDS = {
    ground.name: ground
    for ground in (
        _star("64-GPU mix", "microsoft", 400, 30 * MIX_SCALE),
        _star("Other models", "second", 400, 30 * MIX_SCALE),
        Ground(
            name="MonkeyTree's mix",
            jobs="monkeytree",
            num_jobs=200,
            servers=256,
            gpus_per_server=1,
            topology="monkeytree:racks=4,servers_per_rack=64,spines=16",
            servers_per_rack=64,
            restart_s=9.02 * MONKEYTREE_SCALE,
            block_gpus=8,
            spines=16,
        ),
        Ground(
            name="2,048-GPU Clos",
            jobs="clos",
            num_jobs=5000,
            servers=256,
            gpus_per_server=8,
            topology="clos:servers_per_rack=8,racks_per_pod=4,rack_oversubscription=2,pod_oversubscription=2",
            servers_per_rack=8,
            servers_per_pod=32,
            restart_s=30 * CLOS_SCALE,
            block_gpus=8,
        ),
        _star("Philly", "philly", 1000, 30 * TRACES["philly"].scale),
        _star("Alibaba", "alibaba", 1000, 30 * TRACES["alibaba"].scale, block_gpus=1),
    )
}


def jobs_of(*, seed: int, jobs: str, num_jobs: int, folder: str) -> Workload:
    """Return the jobs of a ground; ``folder`` is where workload files are kept that jobs are drawn from.

    The limit that a job states is the mean time alone of all jobs of its GPUs, model and user in the workload.
    """
    drawn = _drawn(seed, jobs, num_jobs, folder)
    ground = next(ground for ground in GROUNDS.values() if ground.jobs == jobs)
    took_s = pd.Series(alone_s(drawn, ground.cluster, ground.contention))
    means_s = took_s.groupby([repr(_kind(job)) for job in drawn]).transform("mean").tolist()
    return Workload.of([replace(job, time_limit_s=mean_s) for job, mean_s in zip(drawn, means_s, strict=True)])


def _kind(job: Job) -> tuple[object, ...]:
    return job.num_gpus, job.model, job.user


def _drawn(seed: int, jobs: str, num_jobs: int, folder: str) -> Workload:
    if jobs == "microsoft":
        return stream(seed=seed, num_jobs=num_jobs, load=LOAD, scale=MIX_SCALE)
    if jobs == "monkeytree":
        return monkeytree_mix(seed=seed, jobs=num_jobs, gpus=256, load=LOAD, scale=MONKEYTREE_SCALE)
    if jobs == "clos":
        return _clos(seed, num_jobs)
    scale = MIX_SCALE if jobs == "second" else 1.0
    return stream(seed=seed, of=str(Path(folder) / f"{jobs}.csv"), num_jobs=num_jobs, load=LOAD, scale=scale)


def prepare(folder: Path, data: Path) -> None:
    """Write the workload files that jobs are drawn from, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "second.csv").exists():
        write_workload(second_mix(seed=1), folder / "second.csv")
    for trace, (kind, file, day, scale) in TRACES.items():
        path = folder / f"{trace}.csv"
        if path.exists():
            continue
        selection = Selection(from_s=day * 86400, limit=2000, scale=scale)
        whole = folder / f"{trace}.parquet"
        write_jobs(import_trace(kind, [data / file], selection=selection, gpus_per_server=8, seed=1), whole)
        fitting = [job for job in read_workload(whole) if job.num_gpus <= MOST_GPUS]
        cut = [replace(job, iterations=min(job.iterations, MOST_ITERATIONS)) for job in fitting]
        write_workload(Workload.of(cut), path)


def _clos(seed: int, num_jobs: int) -> Workload:
    """Return jobs of 1 to 512 GPUs that alone take 1.2 to 144 s, at the load on 2,048 GPUs of 400 Gbit/s."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice(LARGE_CLUSTER_GPUS, num_jobs, p=LARGE_CLUSTER_SHARES).tolist()
    compute_s = rng.choice([0.1, 0.25, 0.5, 1.0], num_jobs).tolist()
    run_s = (np.exp(rng.uniform(np.log(120), np.log(14_400), num_jobs)) * CLOS_SCALE).tolist()
    message_bytes = rng.choice([1e9, 4e9, 13e9, 26e9], num_jobs).tolist()
    jobs = [
        Job(
            job_id=str(number),
            arrival_s=0.0,
            num_gpus=gpus[number],
            iterations=max(int(run_s[number] / compute_s[number]), 1),
            iteration=DataParallelIteration(
                forward_s=compute_s[number] / 3,
                backward_s=compute_s[number] * 2 / 3,
                message_bytes=message_bytes[number],
            ),
            gpu_memory_mb=1.0,
        )
        for number in range(num_jobs)
    ]
    work_s = sum(gpu_seconds(job, per_byte_s=8 / 3200e9, gpus_per_server=8) for job in jobs)
    arrivals_s = np.cumsum(rng.exponential(work_s / (LOAD * 2048 * num_jobs), num_jobs)).round(9).tolist()
    return Workload.of([replace(job, arrival_s=at_s) for job, at_s in zip(jobs, arrivals_s, strict=True)])


def measures(result: Result) -> dict[str, float]:
    """Return the 99th percentile of JCT, and how often a job is stopped."""
    return {
        "p99_jct_s": float(np.quantile(result.jobs["jct_s"], 0.99)),
        "stops_a_job": float(result.jobs["restarts"].mean()),
    }
