"""Steps of language models on up to 131,072 GPUs: ``llm_steps.py`` ``scale``, ``agreement``, ``many``, ``sampled``.

``scale``: CPU and memory of a first and of a further step of Llama-3-405B (TP 8, PP 16), what
1,000 iterations of it take beside 3. A process of its own for each; compiling, starting and writing the job apart.
``agreement``: steps by the closed form and simulated, on equal links; ``--algorithm`` of collectives.
``many``: CPU and memory of many jobs of 64 to 4,096 GPUs on 16,384, each of 100,000 iterations: ``--placement levels``
in blocks where they fit, so that few meet, ``whole-servers`` on the first free ones, where many do.
``sampled``: how far sampled runs of such jobs are from exact ones.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import typer
from benchmark_tables import Table, say
from sampling_error import measured, table_of

import ddlsched
from ddlsched.comparisons.sweeps.stored_runs import run_bytes
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked
from ddlsched.workload.dag import CollectiveTask, IterationDag

app = typer.Typer(help=__doc__, result_callback=print)
MANY_ITERATIONS = 100_000
RAILS = "rail-optimised:nvlink_gbps=3600"
PLAIN = {"tensor": 8, "pipeline": 16}
VARIANTS = {
    "Llama-3-405B, DP 128": ("llama-3-405b", {**PLAIN, "data": 128, "global_batch": 2048}),
    "Llama-3-405B, CP 16, DP 8": ("llama-3-405b", {**PLAIN, "context": 16, "data": 8, "global_batch": 128}),
    "Qwen3-235B, EP 64, DP 2048": (
        "qwen3-235b-a22b",
        {"tensor": 4, "pipeline": 2, "data": 2048, "expert": 64, "global_batch": 4096},
    ),
    "Llama-3-405B, DP 1024, 131,072 GPUs": ("llama-3-405b", {**PLAIN, "data": 1024, "global_batch": 16384}),
    "Llama-3-405B, DP 128, 8 chunks": ("llama-3-405b", {**PLAIN, "interleave": 8, "data": 128, "global_batch": 2048}),
}
AGREEING = """
llama-3-8b       data=64 global_batch=128
llama-3-8b       data=64 global_batch=256 zero=3
llama-3-8b       tensor=2 context=4 data=16 global_batch=64
llama-3-8b       data=128 shards=16 global_batch=256 zero=3
qwen3-30b-a3b    data=64 expert=8 global_batch=128
mixtral-8x7b     tensor=2 pipeline=4 data=8 expert=8 global_batch=128
mixtral-8x22b    tensor=2 pipeline=8 data=16 expert=8 global_batch=128
llama-3-70b      tensor=8 pipeline=4 data=4 global_batch=128
llama-3-70b      tensor=8 pipeline=4 data=4 interleave=5 global_batch=128
llama-3-70b      tensor=8 data=32 global_batch=32 zero=3
qwen3-235b-a22b  tensor=2 pipeline=2 data=64 expert=32 global_batch=512 recompute=full
llama-3-70b      tensor=8 pipeline=8 data=8 global_batch=256
llama-3-70b      tensor=4 pipeline=4 data=64 interleave=5 global_batch=2048
gpt3-175b        tensor=8 pipeline=8 data=16 global_batch=512
gpt3-175b        tensor=8 pipeline=12 data=16 global_batch=768
llama-3-70b      tensor=8 pipeline=8 data=32 interleave=2 global_batch=512
gpt3-175b        tensor=8 pipeline=16 data=32 interleave=3 global_batch=1536
llama-3-405b     tensor=8 pipeline=16 data=64 interleave=4 global_batch=1024
llama-3-405b     tensor=8 pipeline=16 data=128 interleave=8 global_batch=2048
llama-3-405b     tensor=8 pipeline=16 data=8 context=16 interleave=8 global_batch=128
"""
MANY = {
    64: ("llama-3-8b", {"data": 64, "global_batch": 128, "zero": 3}),
    128: ("llama-3-70b", {"tensor": 8, "pipeline": 4, "data": 4, "global_batch": 64}),
    512: ("llama-3-70b", {"tensor": 8, "pipeline": 8, "data": 8, "global_batch": 256}),
    1024: ("llama-3-70b", {"tensor": 8, "pipeline": 8, "data": 16, "global_batch": 512}),
    4096: ("llama-3-405b", {"tensor": 8, "pipeline": 16, "data": 32, "global_batch": 512}),
}
SHARED: dict[str, Any] = {"order": "fifo", "communication": "bounded-overlap:limit=1000000", "contention": "max-min"}
USUAL = {"micro_batch": 1, "zero": 1, "overlap": True}


def made(model: str, given: dict[str, Any], algorithm: str = "ring") -> tuple[ddlsched.Job, float, Machine]:
    """Return a step as a job, its time by the closed form in seconds, and the machine."""
    plan = Parallelism(**{**USUAL, "sequence_parallel": given.get("tensor", 1) > 1, **given})
    machine = parse_cluster("h200").machine(int(plan.num_gpus))
    job = job_of(MODELS[model], plan, machine, job_id=model, iterations=1, groups=True, algorithm=algorithm)
    return job, float(estimate_checked(MODELS[model], plan, machine, algorithm=algorithm).step_s), machine


def simulate(job: ddlsched.Job, machine: Machine, topology: str = RAILS) -> ddlsched.Result:
    """Return a run alone on servers with a card of 400 Gbit/s a GPU, or on another topology."""
    gpus, servers = (int(tier.size) for tier in machine.tiers)
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=gpus, gpu_memory_mb=142_000, topology=topology)
    return ddlsched.simulate(ddlsched.Workload.of([job]), cluster, placement="first-fit", **SHARED)


def agreement(rows: Iterable[str], algorithm: str = "ring") -> Table:
    """Return both times of each configuration, and how far the simulated one is off."""
    found = []
    for row in rows:
        model, *fields = row.split()
        given = dict(one.split("=") for one in fields)
        job, closed_s, machine = made(model, {k: int(v) if v.isdigit() else v for k, v in given.items()}, algorithm)
        inner, outer = (8 * float(tier.bytes_per_s) / 1e9 for tier in machine.tiers)
        topology = f"rail-optimised:rails={machine.tiers[0].size},rail_gbps={outer},nvlink_gbps={inner}"
        seconds = [simulate(one, machine, topology).jobs["jct_s"].item() for one in (job, _without_sends(job))]
        differences = [f"{100 * (simulated_s / closed_s - 1):+.1f}" for simulated_s in seconds]
        found.append((row, job.num_gpus, closed_s, seconds[0], *differences))
        say(row)
    columns = ("configuration", "GPUs", "closed form, s", "simulated, s", "difference, %", "sends at once, %")
    return Table(title="A step by the closed form and simulated", columns=columns, rows=found)


def _without_sends(job: ddlsched.Job) -> ddlsched.Job:
    """Return the job with sends between stages that take no time."""
    tasks = [
        replace(task, message_bytes=0.0) if isinstance(task, CollectiveTask) and task.kind == "send" else task
        for task in job.iteration.tasks
    ]
    return replace(job, iteration=IterationDag(tuple(tasks), job.iteration.groups))


def costs(model: str, given: dict[str, Any], iterations: Sequence[int]) -> tuple[list[float], float]:
    """Return the CPU seconds of runs of so many iterations, one after the other, and the peak memory they add, MB."""
    simulate(*made("llama-3-8b", {"data": 64, "global_batch": 64})[::2])  # compiles
    job, _, machine = made(model, given)
    before_kib, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for count in iterations:
        begin_s = time.process_time()
        simulate(replace(job, iterations=count), machine)
        seconds.append(time.process_time() - begin_s)
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) * 1024 / 1e6


@app.command()
def scale() -> Table:
    """Return what each variant takes, measured in a process of its own."""
    rows = []
    for name, (model, given) in VARIANTS.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            counts = (1, 3, 11) if given["data"] > 128 else (1, 3, 11, 1000)  # more GPU time than the clock holds
            seconds, memory_mb = pool.apply(costs, (model, given, counts))
        one, three, eleven, thousand = (*seconds, *[None] * (4 - len(seconds)))
        rows.append((name, one, memory_mb, (eleven - three) / 8 if three and eleven else None, three, thousand))
        say(name)
    columns = ("step", "first, CPU s", "MB more", "a further one, s", "3 iterations, s", "1,000 iterations, s")
    return Table(title="Steps simulated alone, by cost", columns=columns, rows=rows)


def drawn(shares: dict[int, float], count: int, length: int, gpus: int, seed: int, **given: Any) -> ddlsched.Workload:
    """Return jobs of so many iterations, of sizes in these shares, which arrive at random and keep 0.9 of GPUs busy."""
    rng, arrival_s, jobs = np.random.default_rng(seed), 0.0, []
    steps = {size: made(*kind) for size, kind in MANY.items()}
    picked = rng.choice([*shares], count, p=[*shares.values()]).tolist()
    busy_s = float(np.mean([size * steps[size][1] for size in picked])) * length
    for number, size in enumerate(picked):
        jobs.append(replace(steps[size][0], iterations=length, job_id=f"j{number}", arrival_s=arrival_s, **given))
        arrival_s += rng.exponential(busy_s / (gpus * 0.9))
    return ddlsched.Workload.of(jobs)


def shared(size: int, fabric: str) -> ddlsched.Cluster:
    """Return so many servers of 8 GPUs, which jobs have to themselves."""
    return ddlsched.Cluster(num_servers=size, gpus_per_server=8, gpu_memory_mb=142_000, topology=fabric, exclusive=True)


@app.command()
def sampled(path: str | None = None) -> str:
    """Return how far sampled runs are from exact ones at the same GPUs and starts; with paths to choose, on 1,024."""
    gpus, jobs, iterations = (1_024, 10, 300) if path else (2_048, 30, 3_000)
    rows, cluster, given = [], shared(gpus // 8, "rail-clos:nvlink_gbps=3600"), SHARED | {"path": path}
    for seed in range(101, 111):
        workload = drawn({64: 0.35, 128: 0.35, 512: 0.3}, jobs, iterations, gpus, seed)
        exact = ddlsched.simulate(workload, cluster, placement="whole-servers", **given)
        with TemporaryDirectory() as folder:
            (run := Path(folder) / "run.parquet").write_bytes(run_bytes(exact, {}, {}, stays=True))
            again = ddlsched.simulate(workload, cluster, replay=run, sample=True, **given)
        rows.append({"seed": seed} | measured(exact, again))
    leapt = pd.DataFrame(rows).query("leapt > 0")  # the others are exact
    return str(table_of(leapt, ["class"]).to_string(index=False))


@app.command()
def many(jobs: int = 300, placement: str = "levels", path: str | None = None, topology: str = RAILS) -> Table:
    """Return what a run of so many jobs takes."""
    simulate(*made("llama-3-8b", {"data": 64, "global_batch": 64})[::2])  # compiles
    begin_s = time.process_time()
    given = {"preferred_levels": "block"} if placement == "levels" else {}
    shares = {64: 0.35, 128: 0.3, 512: 0.2, 1024: 0.1, 4096: 0.05}
    workload = drawn(shares, jobs, MANY_ITERATIONS, 16_384, 0, **given)
    ready_s = time.process_time()
    cluster = shared(2_048, topology)
    result = ddlsched.simulate(workload, cluster, placement=placement, path=path, sample=True, **SHARED)
    met, computed = 100 * result.contended_iterations / (jobs * MANY_ITERATIONS), result.computed_iterations
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    row = (jobs, time.process_time() - ready_s, memory_mb, met, computed, ready_s - begin_s)
    columns = ("jobs", "CPU s", "MB in all", "iterations that met others, %", "computed", "the estimate, CPU s")
    return Table(title="Many jobs on 16,384 GPUs, sampled", columns=columns, rows=[row])


if __name__ == "__main__":
    app.command("agreement")(lambda algorithm="ring": agreement(AGREEING.strip().splitlines(), algorithm))
    app()
