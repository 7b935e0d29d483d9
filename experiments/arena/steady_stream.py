"""A steady stream of jobs that have their GPUs to themselves, with time limits as users give them: too long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.alone import alone_s
from ddlsched.errors import InputError
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.generators.microsoft import JOBS_OF_SIZE, MODELS
from ddlsched.workload.job import Job, Workload

CLUSTER = Cluster(topology="star:nic_gbps=100")
"""64 GPUs on a fast network, for which limits and load are meant."""
CONTENTION = "max-min"


def steady_stream(*, seed: int, num_jobs: int = 400, load: float = 0.7, scale: float = 0.1) -> Workload:
    """Return jobs of the sizes and models of microsoft-160 that arrive as a Poisson process.

    A job takes the whole memory of its GPUs. Its time limit is its time alone x a factor uniform from 1 to 5.

    Parameters
    ----------
    seed
        Of numpy's PCG64.
    num_jobs
        Jobs in all.
    load
        GPU-seconds that arrive each second, without contention, as a share of the 64 GPUs.
    scale
        Multiplies iterations, 1000 to 6000, and the times between arrivals.

    Raises
    ------
    InputError
        A load that is not from 0.01 to 2, or fewer than one job.
    """
    if not 0.01 <= load <= 2 or num_jobs < 1:
        raise InputError(f"load is {load}, num_jobs {num_jobs}; expected a load from 0.01 to 2 and at least one job")
    rng = np.random.default_rng(seed)
    shares = np.array(list(JOBS_OF_SIZE.values())) / sum(JOBS_OF_SIZE.values())
    sizes = rng.choice(list(JOBS_OF_SIZE), p=shares, size=num_jobs).tolist()
    models = rng.integers(len(MODELS), size=num_jobs).tolist()
    iterations = rng.integers(round(1000 * scale), round(6000 * scale), size=num_jobs, endpoint=True).tolist()
    jobs = [_job(*number_and_job) for number_and_job in enumerate(zip(sizes, models, iterations, strict=True))]
    run_s = alone_s(Workload.of(jobs), CLUSTER, CONTENTION)
    gap_s = float(np.mean(run_s * np.array(sizes))) / (load * CLUSTER.num_gpus)
    arrivals_s = np.round(np.cumsum(rng.exponential(gap_s, size=num_jobs)), 9).tolist()
    limits_s = np.round(run_s * rng.uniform(1.0, 5.0, size=num_jobs), 9).tolist()
    times = zip(jobs, arrivals_s, limits_s, strict=True)
    return Workload.of([replace(job, arrival_s=arrival, time_limit_s=limit) for job, arrival, limit in times])


def _job(number: int, chosen: tuple[int, int, int]) -> Job:
    num_gpus, model, iterations = chosen
    times = MODELS[model]
    return Job(
        job_id=str(number),
        arrival_s=0.0,
        num_gpus=num_gpus,
        iterations=iterations,
        iteration=DataParallelIteration(
            forward_s=times.forward_s, backward_s=times.backward_s, message_bytes=times.message_bytes
        ),
        gpu_memory_mb=float(CLUSTER.gpu_memory_bytes[0]) / 1e6,
        model=times.name,
    )
