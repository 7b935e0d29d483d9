"""The grounds of the arena: networks, clusters, the jobs that come, and what a stop costs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.engine.stop_prices import going_on_elsewhere_s
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.units import NS_PER_S
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, LinearCurve
from ddlsched.workload.generators.microsoft import microsoft_160
from ddlsched.workload.generators.monkeytree_mix import monkeytree_mix
from ddlsched.workload.generators.streams import LARGE_CLUSTER_GPUS, LARGE_CLUSTER_SHARES
from ddlsched.workload.traces.trace_import import Selection, import_trace, write_jobs
from ddlsched.workload.workload_files import read_workload
from experiments.arrivals import alone_gpu_s, drawn_once, poisson
from experiments.baseline import PRICES
from experiments.beyond_ada_srsf.mixes import second_mix
from experiments.language_models import language_model_jobs
from experiments.public_traces import MOST_ITERATIONS, PUBLIC_TRACES
from experiments.smaller_claims.jobs import helios_like

TRACES = {name.lower(): PUBLIC_TRACES[name] for name in ("Philly", "Alibaba")}
TRACED_JOBS = 8000
TUNING_SEED = 1001
"""From this seed on jobs are for tuning; those of traces are from the first quarter of it, all others from the rest."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A cluster and a network of cards of ``gbps``, and the jobs that come there.

    ``per_rack`` servers are a rack, ``per_pod`` a pod (0: none), ``spines`` those of two tiers (0: three);
    ``block_gpus`` is what MonkeyTree gives jobs whole. Where it is ``sampled``, runs of rivals who scatter jobs
    are; all others are exact.
    """

    name: str
    jobs: str
    num_jobs: int
    servers: int
    gpus_per_server: int
    topology: str
    gbps: float
    per_rack: int
    spines: int
    block_gpus: int
    per_pod: int = 0
    load: float = 0.9
    sampled: bool = False

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.servers * self.gpus_per_server

    @cached_property
    def network(self) -> Network:
        """Return its links."""
        return self.cluster().network(resolve("topology", self.topology))

    def cluster(self, *, exclusive: bool = True) -> Cluster:
        """Return the cluster."""
        return Cluster(
            num_servers=self.servers,
            gpus_per_server=self.gpus_per_server,
            gpu_memory_mb=80_000.0,
            topology=self.topology,
            exclusive=exclusive,
        )

    def workload(self, jobs: int, fixed_size: bool, folder: Path) -> str:
        """Return the text that names its jobs, ``jobs`` at most."""
        file = f",file={folder / self.jobs}.parquet" if self.jobs in TRACES else ""
        return (
            f"{Path(__file__)}:jobs_of:ground={self.jobs},jobs={min(jobs, self.num_jobs)},fixed_size={fixed_size}{file}"
        )


def _leaf_spine(name: str, jobs: str, **differs: float) -> Ground:
    """Return servers under leaves and spines, 2:1; by default 16 of 4 GPUs, four a leaf, four spines, 10 Gbit/s."""
    values = {"num_jobs": 280, "servers": 16, "gpus_per_server": 4, "gbps": 10.0, "per_rack": 4, "spines": 4}
    values |= {"block_gpus": 4} | differs
    topology = f"leaf-spine:servers_per_leaf={values['per_rack']},spines={values['spines']},oversubscription=2"
    topology += f",nic_gbps={values['gbps']:g}"
    return Ground(name=name, jobs=jobs, topology=topology, **values)  # type: ignore[arg-type]


GROUNDS = {
    ground.name: ground
    for ground in (
        _leaf_spine("64-GPU mix", "mix", sampled=True),
        _leaf_spine("Other models", "other"),
        Ground(
            name="MonkeyTree's mix",
            jobs="monkeytree",
            num_jobs=100,
            servers=256,
            gpus_per_server=1,
            topology="monkeytree:racks=4,servers_per_rack=64,spines=16",
            gbps=400.0,
            per_rack=64,
            spines=16,
            block_gpus=8,
        ),
        _leaf_spine("Philly", "philly", block_gpus=1, sampled=True),
        _leaf_spine("Helios-like", "helios", block_gpus=1, num_jobs=200),
        _leaf_spine("Alibaba", "alibaba", block_gpus=1, num_jobs=200),
        Ground(
            name="2,048-GPU Clos",
            jobs="clos",
            num_jobs=600,
            servers=256,
            gpus_per_server=8,
            topology="clos:servers_per_rack=8,racks_per_pod=4,rack_oversubscription=2,pod_oversubscription=2",
            gbps=3200.0,
            per_rack=8,
            per_pod=32,
            spines=0,
            block_gpus=8,
            sampled=True,
        ),
        _leaf_spine(
            "LLM cluster",
            "llm",
            num_jobs=200,
            servers=128,
            gpus_per_server=8,
            gbps=3200.0,
            per_rack=16,
            spines=8,
            block_gpus=8,
            load=0.8,
        ),
        _leaf_spine(
            "Fine-tuning",
            "fine-tuning",
            gpus_per_server=8,
            gbps=400.0,
            block_gpus=1,
            load=0.8,
        ),
    )
}


def imported(trace: str, data: Path, folder: Path) -> None:
    """Write a trace's workload file, unless it is there."""
    kind, file, day, _ = TRACES[trace]
    path = folder / f"{trace}.parquet"
    if not path.exists():
        if not (data / file).exists():
            raise InputError(f"{data / file}: no such file; docs/traces.md says where to get it, --data where it is")
        folder.mkdir(parents=True, exist_ok=True)
        selection = Selection(from_s=day * 86400, limit=TRACED_JOBS)
        write_jobs(import_trace(kind, [data / file], selection=selection, gpus_per_server=8, seed=1), path)


def jobs_of(*, seed: int, ground: str, jobs: int, file: str = "", fixed_size: bool = False) -> Workload:
    """Return the jobs of a ground, drawn anew by each seed.

    Parameters
    ----------
    ground
        The ``jobs`` of a ground; a trace's workload is in ``file``.
    jobs
        How many.
    fixed_size
        As jobs that an allocation policy gives their GPUs or none.
    """
    (of,) = (one for one in GROUNDS.values() if one.jobs == ground)
    rng = np.random.default_rng([seed, 2])
    if ground == "monkeytree":
        made = monkeytree_mix(seed=seed, jobs=jobs, gpus=of.gpus, load=of.load)
    elif ground == "helios":
        made = helios_like(seed=seed, jobs=jobs, load=of.load, gpus=of.gpus, longer=90.0)
    elif ground in TRACES:
        made = _window(of, file, seed, jobs)
    else:
        drawn = _drawn(of, seed, jobs, rng)
        made = poisson(drawn, load=of.load, gpus=of.gpus, gpus_per_server=of.gpus_per_server, gbps=of.gbps, rng=rng)
    return Workload.of([fixed_size_job(job, of) for job in made]) if fixed_size else made


def _drawn(ground: Ground, seed: int, jobs: int, rng: np.random.Generator) -> Sequence[Job]:
    """Return jobs without their arrivals."""
    if ground.jobs == "clos":
        return _clos(jobs, rng)
    if ground.jobs not in ("mix", "other"):
        return language_model_jobs(ground.jobs, jobs, rng)
    return drawn_once(microsoft_160 if ground.jobs == "mix" else second_mix, seed, jobs, rng)


def _window(ground: Ground, file: str, seed: int, jobs: int) -> Workload:
    """Return neighbours in a trace in its order, at the load; windows of other seeds have no job of it.

    Without jobs larger than the cluster; long ones are cut, or one of them would be all of it.
    """
    traced = [job for job in read_workload(file) if job.num_gpus <= ground.gpus]
    quarter = len(traced) // 4
    part = traced[:quarter] if seed >= TUNING_SEED else traced[quarter:]
    first = (seed - 1) % 1000 * jobs
    if first + jobs > len(part):
        raise InputError(f"seed is {seed}; expected at most {len(part) // jobs} windows of {jobs} jobs")
    most = round(MOST_ITERATIONS / TRACES[ground.jobs].scale)
    cut = [replace(job, iterations=min(job.iterations, most)) for job in part[first : first + jobs]]
    begin_s, end_s = cut[0].arrival_s, cut[-1].arrival_s
    alone_s = sum(alone_gpu_s(job, ground.gpus_per_server, ground.gbps) for job in cut)
    stretch = alone_s / (ground.load * ground.gpus * (end_s - begin_s))
    return Workload.of([replace(job, arrival_s=round((job.arrival_s - begin_s) * stretch, 9)) for job in cut])


def _clos(jobs: int, rng: np.random.Generator) -> list[Job]:
    """Return jobs of 1 to 512 GPUs that alone take 120 s to four hours."""
    gpus = rng.choice(LARGE_CLUSTER_GPUS, jobs, p=LARGE_CLUSTER_SHARES).tolist()
    compute_s = rng.choice([0.1, 0.25, 0.5, 1.0], jobs).tolist()
    run_s = (np.exp(rng.uniform(np.log(120), np.log(14_400), jobs))).tolist()
    message_bytes = rng.choice([1e9, 4e9, 13e9, 26e9], jobs).tolist()
    return [
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
            model=f"{message_bytes[number] / 1e9:g} GB",
        )
        for number in range(jobs)
    ]


def fixed_size_job(job: Job, ground: Ground) -> ElasticJob:
    """Return a job as one that an allocation policy gives all of its GPUs or none, which pays what stopped jobs pay.

    Raises
    ------
    InputError
        It has rings of its own.
    """
    if job.dag.groups:
        raise InputError(f"job {job.job_id!r}: has rings of its own; expected one all-reduce over all GPUs")
    going_on_s = going_on_elsewhere_s(PRICES, job, ground.network, ground.gpus_per_server)
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
        rescale_cost=ConstantRescaleCost.restart(going_on_s),
    )
