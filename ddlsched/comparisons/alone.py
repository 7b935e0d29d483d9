"""The time that each job would take alone on the empty cluster, and a run's jobs measured by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.deferred import pd
from ddlsched.plugins import DEFAULT_CONTENTION
from ddlsched.plugins.names import resolve
from ddlsched.results.metrics import finish_time_fairness, size_class
from ddlsched.simulation import simulate
from ddlsched.units import MAX_NS, NS_PER_S
from ddlsched.workload.dag import DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload

if TYPE_CHECKING:
    from ddlsched.network.contention import ContentionModel
    from ddlsched.results.result import Result

_LONGEST_RUN_S = MAX_NS / NS_PER_S / 4


class _Kind(NamedTuple):
    """What the simulated part of an iteration depends on."""

    iteration: DataParallelIteration | IterationDag
    num_gpus: int
    gpu_memory_mb: float
    model: str | None = None


def job_metrics(result: Result) -> pd.DataFrame:
    """Return a run's table of jobs with columns for slowdown and fairness.

    Columns added to those of :attr:`Result.jobs`: alone_s (:func:`alone_s`); slowdown
    (jct_s / alone_s); finish_time_fairness (ρ of :func:`ddlsched.results.metrics.finish_time_fairness`);
    size_class ("1", "2-4", "5-7" or "8+" GPUs; of an elastic job by the most that it can use, which no policy
    changes). Slowdown and ρ are NaN for a job that did not finish, and for one that has no work, whose alone_s is 0.
    """
    jobs = result.jobs
    alone = alone_s(result.workload, result.cluster, result.contention)
    jct_s, arrival_s, finish_s = (jobs[name].to_numpy() for name in ("jct_s", "arrival_s", "finish_s"))
    gpus = np.array([job.num_gpus for job in result.workload])
    return jobs.assign(
        alone_s=alone,
        slowdown=np.divide(jct_s, alone, out=np.full(len(alone), np.nan), where=alone > 0.0),
        finish_time_fairness=finish_time_fairness(arrival_s, finish_s, alone, gpus, result.cluster.num_gpus),
        size_class=size_class(gpus),
    )


def alone_s(workload: Workload, cluster: Cluster, contention: ContentionModel | str = DEFAULT_CONTENTION) -> np.ndarray:
    """Return how long each job would take if it were the only one, seconds (float64, in the workload's order).

    The job is placed at once by first-fit, so on as few servers as can be where all are alike; its
    all-reduces go one at a time, in the order of its tasks; nothing jitters and nothing fails. So it is a
    property of the job and the cluster, and the same for all policies that are compared.

    Iterations are alike and follow each other without a gap, so this is iterations x the time of one, exact to
    the nanosecond. Those of all different jobs come from one run of the engine, in which each job arrives after
    the one before has left. Of a forward pass, a backward pass and one all-reduce, which follow each other,
    only the all-reduce is simulated, and of passes on a server whose inside costs nothing but that it ends, so that a
    workload whose jobs all differ in duration takes no longer.

    A contention model whose rates depend on how far the job is has iterations that are not alike: it is asked about the
    first one.

    On servers of different speeds this is the time on the first servers that have the memory, so a job that a
    policy places on faster ones may take less than its ``alone_s``.

    Parameters
    ----------
    workload, cluster, contention
        Of a run, as a :class:`~ddlsched.results.result.Result` holds them.
    """
    parts = list(_parts(workload, cluster))
    kinds = list(dict.fromkeys(kind for _, kind in parts))
    simulated_ns = dict(zip(kinds, _one_by_one_ns(kinds, cluster, contention), strict=True))
    iteration_ns = [fixed_ns + simulated_ns[kind] for fixed_ns, kind in parts]
    return np.array([job.iterations * ns for job, ns in zip(workload, iteration_ns, strict=True)], np.int64) / NS_PER_S


def _parts(workload: Workload, cluster: Cluster) -> Iterator[tuple[int, _Kind]]:
    """Yield, of each job's iteration, the nanoseconds that need no simulation, and what the others depend on."""
    one_memory = np.ptp(cluster.gpu_memory_bytes) == 0
    smallest = int(np.diff(cluster.first_gpus).min())
    one_speed = (cluster.relative_speed == 1.0).all() and cluster.throughputs is None
    free_inside = getattr(resolve("topology", cluster.topology), "inside", None) is None
    for job in workload:
        memory_mb, iteration = 0.0 if one_memory else job.gpu_memory_mb, job.iteration
        model = None if cluster.throughputs is None else job.model
        silent = free_inside and job.num_gpus <= smallest
        if one_speed and isinstance(iteration, DataParallelIteration) and (silent or iteration.buckets == 1):
            reduce = replace(iteration, forward_s=0.0, backward_s=0.0)
            if silent:
                reduce = DataParallelIteration(forward_s=0.0, backward_s=0.0, message_bytes=0.0)
            yield job.compute_ns, _Kind(reduce, job.num_gpus, memory_mb)
        else:
            yield 0, _Kind(iteration, min(job.num_gpus, cluster.num_gpus), memory_mb, model)


def _one_by_one_ns(kinds: Sequence[_Kind], cluster: Cluster, contention: ContentionModel | str) -> list[int]:
    """Return the time of an iteration of each kind, in one run if the clock holds it."""
    gaps_s = np.array([_gap_s(kind) for kind in kinds])
    if gaps_s.sum() > _LONGEST_RUN_S and len(kinds) > 1:
        half = len(kinds) // 2
        return [ns for part in (kinds[:half], kinds[half:]) for ns in _one_by_one_ns(part, cluster, contention)]
    while True:
        arrivals_s = np.cumsum(gaps_s) - gaps_s
        jobs = [_job(number, kind, s) for number, (kind, s) in enumerate(zip(kinds, arrivals_s.tolist(), strict=True))]
        jct_s = _jct_s(Workload.of(jobs), cluster, contention)
        if (jct_s <= gaps_s / 2).all():  # none has met another
            return [round(s * NS_PER_S) for s in jct_s.tolist()]
        gaps_s = np.maximum(gaps_s, 2 * jct_s)


def _jct_s(workload: Workload, cluster: Cluster, contention: ContentionModel | str) -> np.ndarray:
    result = simulate(
        workload,
        cluster,
        placement="first-fit",
        order="fifo",
        communication="bounded-overlap:limit=1",
        contention=contention,
    )
    return result.jobs["jct_s"].to_numpy()


def _gap_s(kind: _Kind) -> float:
    """Return a first guess of twice an iteration's time: at 0.8 Gbit/s for its messages."""
    dag = kind.iteration.dag() if isinstance(kind.iteration, DataParallelIteration) else kind.iteration
    return 1.0 + 2 * (dag.compute_ns / NS_PER_S + 1e-8 * dag.message_bytes)


def _job(number: int, kind: _Kind, arrival_s: float) -> Job:
    return Job(job_id=str(number), arrival_s=arrival_s, iterations=1, **kind._asdict())
