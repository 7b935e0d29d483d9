"""Elastic jobs that a category, an arrival pattern and a cluster's size describe: openly stated, not after a trace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.errors import InputError, did_you_mean
from ddlsched.ranges import check_arguments
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve
from ddlsched.workload.job import Workload


class Category(NamedTuple):
    """What a job of a category does in the mean.

    One GPU takes ``fixed_s`` and ``sample_s`` a sample and has room for ``gpu_batch`` samples; an iteration's gradients
    are ``message_bytes``.
    """

    fixed_s: float
    sample_s: float
    gpu_batch: int
    message_bytes: float


CATEGORIES = {
    "compute-bound": Category(fixed_s=0.02, sample_s=0.005, gpu_batch=128, message_bytes=100e6),
    "balanced": Category(fixed_s=0.02, sample_s=0.0015, gpu_batch=128, message_bytes=250e6),
    "communication-bound": Category(fixed_s=0.02, sample_s=0.0006, gpu_batch=256, message_bytes=530e6),
}
"""With a full GPU and 10 Gbit/s an all-reduce takes 0.13, 1.0 and 2.6 times as long as the compute."""

ARRIVALS = {"low": 0.3, "high": 0.9, "bursty": 0.6}
"""Work that arrives, in the mean, over what all GPUs together do if every job ran on one."""

_BURST_S, _PERIOD_S = 600.0, 3600.0
_SIGMA_WORK, _SIGMA_TIMES = 1.0, 0.3
_LEAST_BATCH, _MOST_BATCH = 0.25, 8


def elastic_mix(
    *,
    seed: int,
    category: str = "balanced",
    arrivals: str = "high",
    gpus: int = 40,
    hours: float = 8.0,
    work_hours: float = 1.0,
    most_gpus: int = 10,
) -> Workload:
    """Return elastic jobs that arrive over some hours.

    Work is log-normal (σ = 1) with a mean of ``work_hours`` on one GPU with a full batch; a job's times and gradients
    are those of its category, each times a log-normal factor (σ = 0.3). Batches go from a quarter of one GPU's room to
    8 times as much. Arrivals are a Poisson process; bursty ones all come in the first 10 minutes of each hour.

    Parameters
    ----------
    seed
        Of numpy's PCG64.
    category
        ``compute-bound``, ``balanced`` or ``communication-bound``.
    arrivals
        ``low``, ``high`` or ``bursty``: 0.3, 0.9 and 0.6 of what the GPUs can do.
    gpus
        Of the cluster: with more, more jobs arrive.
    hours
        For how long jobs arrive.
    work_hours
        Mean work of a job.
    most_gpus
        The most GPUs that a job can use.

    Raises
    ------
    InputError
        A name or number that is none of these.
    """
    _check(category, arrivals, gpus, hours, work_hours)
    rng = np.random.default_rng(seed)
    kind = CATEGORIES[category]
    arrivals_s = _arrivals_s(rng, ARRIVALS[arrivals] * gpus / work_hours / 3600, hours * 3600, arrivals == "bursty")
    jobs = []
    for number, arrival_s in enumerate(arrivals_s.tolist()):
        slower, larger, work = np.exp(rng.normal(0, [_SIGMA_TIMES, _SIGMA_TIMES, _SIGMA_WORK])).tolist()
        curve = LinearCurve(fixed_s=kind.fixed_s * slower, sample_s=kind.sample_s * slower)
        room = kind.gpu_batch
        work_s = work_hours * 3600 * work * np.exp(-(_SIGMA_WORK**2) / 2)
        jobs.append(
            ElasticJob(
                job_id=f"job-{number}",
                arrival_s=arrival_s,
                samples=max(1, round(work_s * room / curve.iteration_s(1, room))),
                curve=curve,
                max_gpus=most_gpus,
                gpu_batch=room,
                min_batch=round(_LEAST_BATCH * room),
                max_batch=_MOST_BATCH * room,
                message_bytes=float(round(kind.message_bytes * larger)),
                model=category,
            )
        )
    return Workload.of(jobs)


def _arrivals_s(rng: np.random.Generator, per_s: float, until_s: float, bursty: bool) -> np.ndarray:
    """Return arrivals of a Poisson process, at least one; if bursty, those of each period in its first part."""
    times_s = np.sort(rng.random(max(1, rng.poisson(per_s * until_s))) * until_s)
    if bursty:
        period, rest_s = np.divmod(times_s, _PERIOD_S)
        times_s = period * _PERIOD_S + rest_s * (_BURST_S / _PERIOD_S)
    return times_s


def _check(category: str, arrivals: str, gpus: int, hours: float, work_hours: float) -> None:
    for name, value, known in (("category", category, CATEGORIES), ("arrivals", arrivals, ARRIVALS)):
        if value not in known:
            raise InputError(f"elastic-mix: {name} is {value!r}.{did_you_mean(value, known)}")
    check_arguments(
        "elastic-mix", gpus=(gpus, 1, 1_000_000), hours=(hours, 1e-3, 1e4), work_hours=(work_hours, 1e-3, 1e4)
    )
