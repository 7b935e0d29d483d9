"""Workloads and a measure for the experiment, used by name: ``mixes.py:second_mix:scale=0.1``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import ddlsched
from ddlsched import DataParallelIteration, Job, Workload
from ddlsched.results.result import Result

SECOND_MODELS = {
    "MobileNet-V2": (14.0e6, 0.020, 0.030),
    "AlexNet": (244.4e6, 0.010, 0.020),
    "GPT-2-small": (497.8e6, 0.080, 0.160),
    "BERT-large": (1340.0e6, 0.110, 0.220),
}
"""Bytes of 32-bit gradients (parameters x 4); the times of forward and backward (s) are assumptions."""

SECOND_SIZES = {1: 60, 2: 30, 4: 30, 8: 25, 16: 12, 32: 3}


def second_mix(*, seed: int, scale: float = 1.0) -> Workload:
    """Return 160 jobs of other models, message sizes and GPU counts; 500..4000 iterations, arrivals over 1200 s."""
    rng = np.random.default_rng(seed)
    sizes = rng.permutation(np.repeat(list(SECOND_SIZES), list(SECOND_SIZES.values())))
    names = rng.choice(list(SECOND_MODELS), size=len(sizes))
    iterations = rng.integers(round(500 * scale), round(4000 * scale), size=len(sizes), endpoint=True)
    arrivals_s = np.sort(rng.uniform(0.0, 1200.0 * scale, size=len(sizes)))
    return Workload(
        tuple(
            Job(
                job_id=str(number),
                arrival_s=round(float(arrivals_s[number]), 9),
                num_gpus=int(sizes[number]),
                iterations=int(iterations[number]),
                iteration=_iteration(str(names[number])),
                gpu_memory_mb=4000.0,
                model=str(names[number]),
            )
            for number in range(len(sizes))
        )
    )


def _iteration(name: str) -> DataParallelIteration:
    message_bytes, forward_s, backward_s = SECOND_MODELS[name]
    return DataParallelIteration(forward_s=forward_s, backward_s=backward_s, message_bytes=message_bytes)


def bucketed(*, seed: int, scale: float = 1.0) -> Workload:
    """Return the paper's mix with backward and all-reduce in four overlapping parts."""
    jobs = ddlsched.microsoft_160(seed=seed, scale=scale)
    return Workload(tuple(replace(job, iteration=replace(job.iteration, buckets=4)) for job in jobs))


def capped(*, seed: int, jobs_per_gpu: int, scale: float = 1.0) -> Workload:
    """Return the paper's mix with jobs of which at most so many fit on a GPU of 32,768 MB."""
    memory_mb = ddlsched.Cluster().gpu_memory_mb / jobs_per_gpu
    return Workload(
        tuple(replace(job, gpu_memory_mb=memory_mb) for job in ddlsched.microsoft_160(seed=seed, scale=scale))
    )


def by_size(result: Result) -> dict[str, float]:
    """Return the average JCT (s) of jobs of 1, 2 to 4, and 8 or more GPUs."""
    jobs = result.jobs
    classes = {"jct_1_gpu_s": (1, 1), "jct_2_to_4_gpus_s": (2, 4), "jct_8_or_more_gpus_s": (5, 10**9)}
    return {name: float(jobs.loc[jobs["gpus"].between(*sizes), "jct_s"].mean()) for name, sizes in classes.items()}
