"""Path policies on the network that MonkeyTree was evaluated on: ``monkeytree_paths.py``.

1,024 GPUs in 16 racks under 16 spines, jobs of whole servers, one at a time on a GPU. Models with the step times and
bytes that the paper's code has for data-parallel rings, 16 to 64 GPUs, 100 to 1,000 iterations, Poisson arrivals. A
slowdown is a job's time on its GPUs over what it takes there alone.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
from benchmark_tables import Table, say

import ddlsched

MODELS = {"gpt-7b": (0.113, 13e9, 100), "gpt-13b": (0.215, 26e9, 1), "llama2-70b-fsdp": (2.378, 137.43e9, 25)}
"""Compute seconds and all-reduce bytes of a step, and weight in the mix."""
GPUS = (16, 24, 32, 40, 48, 56, 64)
CARD_BYTES_PER_S = 50e9
PATHS = (None, "ecmp", "least-congested", "sglb")


def alone_s(job: ddlsched.Job) -> float:
    """Return what a job takes on whole servers that it shares no cable with."""
    compute_s, message_bytes, _ = MODELS[str(job.model)]
    servers = -(-job.num_gpus // 8)
    return job.iterations * (compute_s + message_bytes * 2 * (servers - 1) / servers / CARD_BYTES_PER_S)


def jobs(count: int, load: float, seed: int) -> ddlsched.Workload:
    """Return jobs that arrive as fast as the GPUs can just serve, times ``load``, if none slows another down."""
    rng = np.random.default_rng(seed)
    weights = np.array([weight for *_, weight in MODELS.values()], float)
    names = rng.choice(list(MODELS), count, p=weights / weights.sum())
    made = [_job(number, str(name), rng) for number, name in enumerate(names)]
    gap_s = np.mean([alone_s(job) * job.num_gpus for job in made]) / (1024 * load)
    arrivals_s = np.cumsum(rng.exponential(gap_s, count))
    return ddlsched.Workload.of([replace(job, arrival_s=float(s)) for job, s in zip(made, arrivals_s, strict=True)])


def _job(number: int, name: str, rng: np.random.Generator) -> ddlsched.Job:
    compute_s, message_bytes, _ = MODELS[name]
    return ddlsched.Job(
        job_id=str(number),
        arrival_s=0.0,
        num_gpus=int(rng.choice(GPUS)),
        iterations=int(rng.integers(100, 1000, endpoint=True)),
        iteration=ddlsched.DataParallelIteration(forward_s=0.0, backward_s=compute_s, message_bytes=message_bytes),
        gpu_memory_mb=1.0,
        model=name,
    )


def slowdowns(workload: ddlsched.Workload, path: str | None, seed: int) -> np.ndarray:
    """Return each job's slowdown."""
    result = ddlsched.simulate(
        workload,
        ddlsched.Cluster(num_servers=128, gpus_per_server=8, topology="monkeytree", exclusive=True),
        placement="first-fit",
        order="fifo",
        communication="bounded-overlap:limit=1000",
        contention="max-min",
        path=path,
        seed=seed,
    )
    on_gpus_s = (result.jobs["jct_s"] - result.jobs["queueing_s"]).to_numpy()
    return on_gpus_s / np.array([alone_s(job) for job in workload])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    rows = []
    for load in (0.6, 1.0):
        for path in PATHS:
            say(f"load {load}, {path or 'route'}")
            begin_s = time.process_time()
            runs = [slowdowns(jobs(given.jobs, load, seed), path, seed) for seed in range(given.seeds)]
            cpu_s = time.process_time() - begin_s
            every = np.concatenate(runs)
            means = [run.mean() for run in runs]
            spread = f"{min(means):.3f} to {max(means):.3f}"
            rows.append([f"{load} {path or 'route'}", every.mean(), spread, np.quantile(every, 0.99), cpu_s])
    columns = ("load and paths", "mean slowdown", "of a seed", "99th percentile", "CPU, s")
    note = "One ring a job, so at most 8 flows leave a rack for 16 spines: with a path each, nothing slows down."
    print(Table(title="MonkeyTree's network, 1,024 GPUs", columns=columns, rows=rows, notes=[note]))


if __name__ == "__main__":
    main()
