"""The jobs of the smaller claims, and what is measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ddlsched import Job, Result, Workload
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.generators.microsoft import MODELS
from ddlsched.workload.generators.streams import gpu_seconds, stream

SIZES = {1: 0.68, 2: 0.06, 4: 0.06, 8: 0.12, 16: 0.05, 32: 0.03}
"""Shares of jobs by GPUs: as in Helios the median is 1 and the mean 3.7; how they are spread above 1 is assumed."""
USERS = 100
BETWEEN_SIGMA, WITHIN_SIGMA = 2.6, 0.5
"""Of the logarithm of durations: between users, each of whom trains one model, and between jobs of one (assumed).

Helios' GPU jobs take 206 s in the median and 6,652 s on average: 32 times as long, as if log-normal with 2.64 in all.
"""
MEDIAN_ITERATIONS = 30.0
MOST_ITERATIONS = 9000
"""A job 300 times as long as the median: a longer one would outlast a stream of so few jobs."""
MEMBERS = 8


def helios_like(*, seed: int, jobs: int = 1000, load: float = 0.95, gpus: int = 64, longer: float = 1.0) -> Workload:
    """Return jobs that recur: a user's jobs train one model for about as long, users differ by orders of magnitude.

    Median, mean and sizes are those published for the 1,580,464 GPU jobs of Helios' four clusters, at about 1/90 of the
    durations, times ``longer``; the tail is cut at ``MOST_ITERATIONS``.

    References
    ----------
    Hu et al., "Characterization and prediction of deep learning workloads in large-scale GPU datacenters", SC 2021, and
    its artifact's helios_cluster_summary.csv.
    """
    rng = np.random.default_rng(seed)
    medians = MEDIAN_ITERATIONS * np.exp(BETWEEN_SIGMA * rng.standard_normal(USERS))
    made = []
    for number in range(jobs):
        user = int(rng.integers(USERS))
        model = MODELS[user % len(MODELS)]
        iterations = medians[user] * np.exp(WITHIN_SIGMA * rng.standard_normal())
        made.append(
            Job(
                job_id=str(number),
                arrival_s=0.0,
                num_gpus=int(rng.choice(list(SIZES), p=list(SIZES.values()))),
                iterations=int(np.clip(round(iterations * longer), 1, round(MOST_ITERATIONS * longer))),
                iteration=DataParallelIteration(
                    forward_s=model.forward_s, backward_s=model.backward_s, message_bytes=model.message_bytes
                ),
                gpu_memory_mb=model.gpu_memory_mb,
                model=model.name,
                user=f"user-{user}",
            )
        )
    mean_s = sum(map(gpu_seconds, made)) / (load * gpus * jobs)
    arrivals_s = np.cumsum(rng.exponential(mean_s, size=jobs)).tolist()
    return Workload.of([replace(job, arrival_s=round(at, 9)) for job, at in zip(made, arrivals_s, strict=True)])


def hidden(
    *, seed: int, load: float = 0.7, per_byte_s: float = 1.2e-9, hides: bool = False, buckets: int = 1
) -> Workload:
    """Return a stream whose jobs send gradients in ``buckets``, all but the last beside the backward pass.

    With ``hides`` a job sends the gradients of one iteration while it computes the next.
    """
    plain = stream(seed=seed, num_jobs=120, load=load, per_byte_s=per_byte_s)
    sent = [_side_by_side(job) if hides else replace(job.iteration, buckets=buckets) for job in plain]
    return Workload.of([replace(job, iteration=one) for job, one in zip(plain, sent, strict=True)])


def _side_by_side(job: Job) -> IterationDag:
    """Return the iteration of a job in which compute and all-reduce begin together, as in the middle of such a run."""
    compute = ComputeTask(name="compute", duration_ns=job.compute_ns)
    return IterationDag((compute, AllReduceTask(name="all-reduce", message_bytes=job.dag.message_bytes)))


def ensembles(*, seed: int, ensembles: int = 30, load: float = 0.8, gpus: int = 64) -> Workload:
    """Return ensembles, each a user's eight jobs of one GPU that arrive together and differ in length."""
    rng = np.random.default_rng(seed)
    base = stream(seed=seed, num_jobs=ensembles * MEMBERS, load=load, gpus=gpus)
    jobs = [replace(job, num_gpus=1, user=f"ensemble-{place // MEMBERS}") for place, job in enumerate(base)]
    mean_s = sum(map(gpu_seconds, jobs)) / (load * gpus * ensembles)
    arrivals_s = np.cumsum(rng.exponential(mean_s, size=ensembles))
    return Workload.of(
        [replace(job, arrival_s=round(float(arrivals_s[place // MEMBERS]), 9)) for place, job in enumerate(jobs)]
    )


def ensemble_times(result: Result) -> Mapping[str, float]:
    """Return the mean time of an ensemble, from its arrival to the last of its jobs, seconds."""
    jobs = result.jobs.groupby("user")
    return {"ensemble_s": float((jobs["finish_s"].max() - jobs["arrival_s"].min()).mean())}
