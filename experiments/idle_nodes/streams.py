"""Streams of short jobs with different scaling: architecture search and hyper-parameter search, made from a seed.

A job on n nodes trains n B / (c B + s (n - 1) / n + l log2 n) samples/s: the time to compute a share of B samples, to
reduce gradients in a ring, and to start that.
"""

from __future__ import annotations

import numpy as np
from replay import TrainingJob

MOST_NODES = 32
MEAN_NODE_S = 6 * 3600.0
"""Of a job, on one node."""


def architecture_search(seed: int, num_jobs: int) -> list[TrainingJob]:
    """Return child networks: each computes and communicates as its own size has it."""
    rng = np.random.default_rng([seed, 1])
    compute_s = 0.1 * rng.lognormal(0.0, 0.8, num_jobs)
    reduce_s = 0.1 * rng.lognormal(0.0, 1.0, num_jobs)
    return _jobs("nas", rng, np.full(num_jobs, 64.0), compute_s, reduce_s)


def hyperparameter_search(seed: int, num_jobs: int) -> list[TrainingJob]:
    """Return trials of one network that differ in their batch: small ones communicate the more for a sample."""
    rng = np.random.default_rng([seed, 2])
    batch = rng.choice([16.0, 32.0, 64.0, 128.0, 256.0], num_jobs)
    return _jobs("hpo", rng, batch, 0.1 * batch / 64.0, np.full(num_jobs, 0.1))


def _jobs(
    name: str, rng: np.random.Generator, batch: np.ndarray, compute_s: np.ndarray, reduce_s: np.ndarray
) -> list[TrainingJob]:
    nodes = np.arange(1, MOST_NODES + 1)
    work_s = MEAN_NODE_S * rng.exponential(1.0, len(batch)).clip(0.1, 4.0)
    jobs = []
    for j, (b, c, s) in enumerate(zip(batch, compute_s, reduce_s, strict=True)):
        rates = nodes * b / (c + s * (nodes - 1) / nodes + 0.1 * s * np.log2(nodes))
        jobs.append(
            TrainingJob(
                job_id=f"{name}{j:04d}",
                submit_s=0.0,
                samples=float(round(work_s[j] * rates[0])),
                rates=np.append(0.0, rates),
                scale_up_s=18.0,
                scale_down_s=12.0,
            )
        )
    return jobs
