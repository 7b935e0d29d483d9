"""Elastic jobs from the training-time model: one GPU's time by its samples, and the bytes of an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddlsched.errors import InputError
from ddlsched.training.estimate.clusters import Plan
from ddlsched.training.estimate.models import Model
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.step_estimate import estimate_checked
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.scaling_curves import BatchCurve

__all__ = ["elastic_job_of"]


def elastic_job_of(
    model: Model,
    plan: Plan,
    *,
    job_id: str,
    samples: int,
    max_gpus: int,
    gpu_batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    arrival_s: float = 0.0,
    min_batch: int = 1,
    max_batch: int | None = None,
    label: str | None = None,
) -> ElasticJob:
    """Return a data-parallel job whose times are estimated on one GPU of the plan's cluster.

    Parameters
    ----------
    model
        To train.
    plan
        The cluster whose GPUs it gets.
    job_id, samples, max_gpus, arrival_s, min_batch, max_batch
        The job's.
    gpu_batches
        Samples on one GPU for which the time is estimated; those that do not fit its memory are left out.
    label
        The job's ``model``, for tables.

    Raises
    ------
    InputError
        None of the ``gpu_batches`` fits.
    """
    machine = plan.machine(1)
    machine = replace(machine, tiers=tuple(replace(tier, size=1) for tier in machine.tiers))
    fitting = {}
    for size in sorted(set(gpu_batches)):
        found = estimate_checked(model, Parallelism(micro_batch=size, global_batch=size), machine)
        if found.fits:
            fitting[size] = found
    if not fitting:
        raise InputError(f"job {job_id!r}: does not fit one GPU with any batch of {list(gpu_batches)}")
    largest = max(fitting)
    return ElasticJob(
        job_id=job_id,
        arrival_s=arrival_s,
        samples=samples,
        curve=BatchCurve(gpu_batch=tuple(fitting), seconds=tuple(float(found.step_s) for found in fitting.values())),
        gpu_batch=largest,
        max_gpus=max_gpus,
        min_batch=min_batch,
        max_batch=max_batch,
        message_bytes=float(fitting[largest].reduced_bytes),
        gpu_memory_mb=float(fitting[largest].memory.total_bytes) / 1e6,
        model=label,
    )
