"""What is wrong with an answer about where jobs run: GPUs for a job, jobs that stop, jobs that move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddlsched.policies.views import ClusterView, JobView

__all__ = [
    "what_is_wrong_with_gpus",
    "what_is_wrong_with_move",
    "what_is_wrong_with_start",
    "what_is_wrong_with_stops",
]

_WHOLE = (int, np.integer)


def what_is_wrong_with_gpus(
    chosen: Any, job: JobView, cluster: ClusterView, own: frozenset[int] = frozenset()
) -> str | None:
    """Return why GPUs are no place for a job, or None; ``own`` are those that it leaves."""
    try:
        gpus = list(chosen)
    except TypeError:
        return f"answered {chosen!r}; expected {job.num_gpus} GPU numbers or None"
    num_gpus, exclusive = cluster.num_gpus, cluster.exclusive
    for gpu in gpus:
        if isinstance(gpu, bool) or not isinstance(gpu, _WHOLE) or not 0 <= gpu < num_gpus:
            return f"answered GPU {gpu!r}; expected whole numbers from 0 to {num_gpus - 1}"
    if len(gpus) != job.num_gpus:
        return f"answered {len(gpus)} GPUs {gpus[:8]}; expected {job.num_gpus}"
    seen: set[int] = set()
    for gpu in gpus:
        if gpu in seen:
            return f"answered GPU {gpu} twice; expected {job.num_gpus} different ones"
        seen.add(gpu)
        if gpu in own:
            continue
        if exclusive and cluster.num_residents(gpu):
            return f"answered GPU {gpu}, which has a job; expected a free one, as the cluster is exclusive"
        if not cluster.fits(job, gpu):
            free = f"{cluster.free_memory_mb(gpu):g} MB free"
            return f"answered GPU {gpu}, which has {free}; expected at least {job.gpu_memory_mb:g} MB"
    return None


def what_is_wrong_with_start(answer: Any, waiting: set[int], cluster: ClusterView) -> str | None:
    """Return why an answer is no job that waits and its GPUs, or None; ``waiting`` are the numbers of jobs."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], JobView):
        return f": place_round answered {answer!r}; expected pairs of a job that waits and its GPUs"
    job, gpus = answer
    if job.number not in waiting:
        return f", job {job.job_id!r}: place_round answered a job that does not wait, or twice; expected one that waits"
    wrong = what_is_wrong_with_gpus(gpus, job, cluster)
    return None if wrong is None else f", job {job.job_id!r}: place_round {wrong}"


def what_is_wrong_with_stops(answer: Sequence[Any], running: Sequence[JobView]) -> str | None:
    """Return why an answer is no list of running jobs, each once, or None."""
    left = {id(job) for job in running}
    for job in answer:
        if not isinstance(job, JobView):
            return f"stops answered {job!r}; expected some of the running jobs that it was given"
        if id(job) not in left:
            again = any(job is other for other in running)
            why = "twice; expected each job once" if again else "which does not run; expected some of the running jobs"
            return f"stops answered job {job.job_id!r}{' ' if again else ', '}{why}"
        left.discard(id(job))
    return None


def what_is_wrong_with_move(answer: Any, movable: set[int], cluster: ClusterView) -> str | None:
    """Return why an answer is no job and its new GPUs, or None; ``movable`` are the ids of the views of jobs."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], JobView):
        return f": moves answered {answer!r}; expected pairs of a running job and its new GPUs"
    job, gpus = answer
    if id(job) not in movable:
        return f", job {job.job_id!r}: moves answered a job that it was not given, or twice; expected jobs that run"
    wrong = what_is_wrong_with_gpus(gpus, job, cluster, frozenset(job.gpus))
    if wrong is None and set(gpus) == set(job.gpus):
        wrong = f"answered the GPUs {list(job.gpus)} that the job has; expected others"
    return None if wrong is None else f", job {job.job_id!r}: moves {wrong}"
