"""The jobs: a short stream for 128 GPUs, with limits in whole minutes as Slurm keeps them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

CLUSTER = Cluster(num_servers=32, gpus_per_server=4, exclusive=True)
SIZES = {1: 0.30, 2: 0.15, 3: 0.05, 4: 0.20, 8: 0.15, 12: 0.03, 16: 0.08, 32: 0.04}
"""GPUs of a job, and its share of the jobs."""
WHOLE_NODES = {4: 0.60, 8: 0.20, 12: 0.05, 16: 0.10, 32: 0.05}
"""The same of jobs that leave no node in parts, so that Slurm has no choice of how many GPUs on which."""
LOAD = 2.5
"""GPU-seconds that arrive each second, as a share of the GPUs: queues grow as long as jobs come."""
ITERATION_S = 0.05
ARRIVES, ENDS = 0.5, 0.65
"""When jobs come and end, in parts of the time between two looks of the agent, if none is to do so at a look."""


def stream(num_jobs: int, seed: int, sizes: Mapping[int, float], between_looks_s: float | None = None) -> Workload:
    """Return jobs of 5 to 45 s that arrive as a Poisson process, each with a limit of one minute to four.

    Parameters
    ----------
    num_jobs, seed, sizes
        How many, of which draws, and GPUs with their shares.
    between_looks_s
        If given, the time from one look to the next, seconds: all jobs then arrive and end in the middle of it, so that
        it does not matter whether that is a little earlier or later.
    """
    rng = np.random.default_rng(seed)
    num_gpus = rng.choice(list(sizes), p=list(sizes.values()), size=num_jobs)
    run_s = np.round(np.exp(rng.uniform(math.log(5.0), math.log(45.0), size=num_jobs)), 1)
    gap_s = float(np.mean(num_gpus * run_s)) / (LOAD * CLUSTER.num_gpus)
    arrivals_s = np.round(np.cumsum(rng.exponential(gap_s, size=num_jobs)), 3)
    if between_looks_s is not None:
        run_s = np.round((np.floor(run_s / between_looks_s) + ENDS) * between_looks_s, 3)
        arrivals_s = np.round((np.floor(arrivals_s / between_looks_s) + ARRIVES) * between_looks_s, 3)
    minutes = np.ceil(run_s / 60) + rng.integers(0, 4, size=num_jobs)
    rows = zip(num_gpus.tolist(), run_s.tolist(), arrivals_s.tolist(), minutes.tolist(), strict=True)
    return Workload.of([_job(number, *row) for number, row in enumerate(rows)])


def _job(number: int, num_gpus: int, run_s: float, arrival_s: float, minutes: float) -> Job:
    return Job(
        job_id=f"j{number:03d}",
        arrival_s=arrival_s,
        num_gpus=num_gpus,
        iterations=round(run_s / ITERATION_S),
        iteration=DataParallelIteration(forward_s=ITERATION_S, backward_s=0.0, message_bytes=0.0),
        gpu_memory_mb=0.0,
        time_limit_s=minutes * 60.0,
    )
