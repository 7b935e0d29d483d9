"""Estimates as jobs of the simulator: the graph of a step's tasks, and rates at any number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.clusters import Plan
from ddlsched.training.estimate.collectives import Span, collective_s
from ddlsched.training.estimate.design_sweep import DesignSweep, design
from ddlsched.training.estimate.energy_costs import Costs, groups_of
from ddlsched.training.estimate.grouped_steps import grouped_step
from ddlsched.training.estimate.hardware import Machine, Precision
from ddlsched.training.estimate.models import Model
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.step_estimate import Estimate, estimate_checked
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, IterationDag, Task
from ddlsched.workload.elastic_job import BatchCurve, ElasticJob
from ddlsched.workload.job import Job


def job_of(
    model: Model,
    parallelism: Parallelism,
    machine: Machine,
    *,
    job_id: str,
    iterations: int,
    arrival_s: float = 0.0,
    buckets: int = 8,
    label: str | None = None,
    user: str | None = None,
    groups: bool = False,
    precision: Precision = "half",
    algorithm: str = "ring",
) -> Job:
    """Return a job whose iteration is the estimated step.

    Parameters
    ----------
    model, parallelism, machine
        As for :func:`~.estimate.estimate_checked`.
    job_id, iterations, arrival_s, user
        The job's.
    buckets
        Parts of the last micro-batch's backward behind which gradients are reduced, if the parallelism overlaps.
    label
        The job's ``model``, for tables.
    precision, algorithm
        As for :func:`~.estimate.estimate_checked`. The job's collectives are sent so, too.
    groups
        Whether tensor, context, expert, pipeline and data traffic are collectives over groups of workers
        (:mod:`.grouped_steps`), for a topology that states the inside of servers; by default all but the gradients
        between servers is computation at the estimate's time.

    Raises
    ------
    InputError
        A rule is broken, or the memory is not enough.
    """
    found = estimate_checked(model, parallelism, machine, precision=precision, algorithm=algorithm)
    if not found.fits:
        raise InputError(f"job {job_id!r}: does not fit by {float(found.missing_bytes) / 1e9:.2f} GB a GPU")
    if groups:
        costs = Costs(parallelism=parallelism, machine=machine, precision=precision, algorithm=algorithm)
        iteration = grouped_step(found, model.layers(parallelism), costs)
    else:
        iteration = step_dag(found, parallelism, machine, buckets=buckets, algorithm=algorithm)
    return Job(
        job_id=job_id,
        arrival_s=arrival_s,
        num_gpus=int(parallelism.num_gpus),
        iterations=iterations,
        iteration=iteration,
        gpu_memory_mb=float(np.minimum(found.memory.total_bytes, machine.gpu.memory_bytes)) / 1e6,
        model=label,
        user=user,
    )


def step_dag(
    found: Estimate, parallelism: Parallelism, machine: Machine, *, buckets: int = 8, algorithm: str = "ring"
) -> IterationDag:
    """Return the tasks of a step: forward, backward in buckets, an all-reduce beside each or after all, the optimiser.

    What stays inside the job at a fixed time is computation to the simulator: collectives of tensor and expert
    parallelism, sends between stages, bubbles, reductions inside a server. An all-reduce between servers is left to it,
    with as many bytes as make each server's card move what it does in the estimate.
    """
    parts = buckets if parallelism.overlap else 1
    hiding_s = float(found.backward_s * (parallelism.overlapped_passes / parallelism.micro_batches))
    last_s = hiding_s if parallelism.overlap else float(found.backward_s)
    bytes_between = _bytes_between_servers(found, parallelism, machine, algorithm)
    inside_s = 0.0 if bytes_between else float(found.data_s)
    # Computation is slowed while gradients are on their way: all the time, or by what they take in all.
    more_s = min(float(found.data_s) - inside_s, float(machine.gpu.efficiency.slowed_s(hiding_s)) - hiding_s)
    before_s = float(found.forward_s + found.backward_s + found.pipeline_s + found.bubble_s + found.offload_s) - last_s
    part_ns = ns_from_s((last_s + more_s) / parts)
    tasks: list[Task] = [ComputeTask(name="forward", duration_ns=ns_from_s(before_s))]
    named = partial(CollectiveTask, kind="all-reduce", algorithm=algorithm)
    all_reduce: Callable[..., Task] = AllReduceTask if algorithm == "ring" else named
    ready, reduced = "forward", []
    for number in range(1, parts + 1):
        before, ready = ready, f"backward-{number}"
        tasks.append(ComputeTask(name=ready, duration_ns=part_ns, after=(before,)))
        if bytes_between:
            name, begun = f"all-reduce-{number}", before if parallelism.overlap else ready
            tasks.append(all_reduce(name=name, message_bytes=bytes_between / parts, after=(begun,)))
            reduced.append(name)
    end_s = float(found.optimiser_s) + inside_s
    tasks.append(ComputeTask(name="optimiser", duration_ns=ns_from_s(end_s), after=(*reduced, ready)))
    return IterationDag(tuple(tasks))


def _bytes_between_servers(found: Estimate, parallelism: Parallelism, machine: Machine, algorithm: str) -> float:
    """Return the message of an all-reduce over all servers, 0 if every group lies inside a server.

    Each data-parallel group with members on a server brings its gradients there, and moves some of them over the cards,
    in a ring over r servers 2 (r - 1) / r; the simulator's all-reduce over all servers of the job is to move as many.
    """
    groups, total = groups_of(parallelism, machine), 0.0
    inside, *outside = (float(tier.size) for tier in machine.tiers)
    servers = math.prod(outside)

    def crossed(brought: Amount, members: float, joined: float) -> float:
        """Return the bytes that an all-reduce of so many on each of some servers moves over a card."""
        group = Span(members, np.inf), Span(joined, 1.0)
        return float(collective_s("all-reduce", brought, group, algorithm=algorithm))

    for name, brought in (("data", found.reduced_bytes), ("replicas", found.reduced_expert_bytes)):
        members, *spans = (float(span.size) for span in groups[name])
        joined = math.prod(spans)
        if joined > 1 and brought:
            ours, jobs = members * crossed(brought, members, joined), crossed(brought, 1.0, servers)
            total += float(brought) * inside / members * ours / jobs
    return total


def scaling_curve(
    model: Model, plan: Plan, *, gpus: Sequence[int], global_batches: Sequence[int], sweep: DesignSweep | None = None
) -> pd.DataFrame:
    """Return the best rate at each number of GPUs and batch: what an elastic policy decides by.

    Parameters
    ----------
    model
        To train.
    plan
        The cluster it gets GPUs of.
    gpus, global_batches
        All pairs are tried; those for which nothing fits are left out.
    sweep
        The parallelism to choose from; by default every valid one.

    Returns
    -------
    DataFrame
        Columns ``gpus, global_batch, samples_per_s, step_s`` and the plan's ``tensor, pipeline, data, micro_batch,
        recompute``.
    """
    columns = ["gpus", "global_batch", "samples_per_s", "step_s"]
    columns += ["tensor", "pipeline", "data", "micro_batch", "recompute"]
    rows = []
    for count in gpus:
        for batch in global_batches:
            found = design(model, plan, num_gpus=count, global_batch=batch, sweep=sweep or DesignSweep())
            fitting = found[found["fits"]]
            if len(fitting):
                best = fitting.iloc[0]
                rows.append({**best, "gpus": count, "global_batch": batch, "samples_per_s": batch / best["step_s"]})
    return pd.DataFrame(rows, columns=columns)


def elastic_job_of(
    model: Model,
    plan: Plan,
    *,
    job_id: str,
    samples: int,
    max_gpus: int,
    gpu_batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
) -> ElasticJob:
    """Return a data-parallel job that arrives at 0 s, with times estimated on one GPU of the plan's cluster.

    Parameters
    ----------
    model
        To train.
    plan
        The cluster whose GPUs it gets.
    job_id, samples, max_gpus
        The job's.
    gpu_batches
        Samples on one GPU for which the time is estimated; those that do not fit its memory are left out.

    Raises
    ------
    InputError
        None of the ``gpu_batches`` fits.
    """
    machine = plan.machine(1)
    machine = replace(machine, tiers=tuple(tier._replace(size=1) for tier in machine.tiers))
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
        arrival_s=0.0,
        samples=samples,
        curve=BatchCurve(gpu_batch=tuple(fitting), seconds=tuple(float(found.step_s) for found in fitting.values())),
        gpu_batch=largest,
        max_gpus=max_gpus,
        message_bytes=float(fitting[largest].reduced_bytes),
        gpu_memory_mb=float(fitting[largest].memory.total_bytes) / 1e6,
    )
