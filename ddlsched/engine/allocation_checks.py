"""Says what is wrong with an allocation policy's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddlsched.policies.doors import DROP, Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.units import is_whole

__all__ = ["what_is_wrong_with"]


def what_is_wrong_with(answer: Any, jobs: Sequence[ElasticJobView], capacity: CapacityView) -> str | None:
    """Return why an answer cannot be carried out, or None."""
    if not isinstance(answer, Mapping):
        return f"allocate answered {answer!r}; expected a mapping from job_id to Allocation"
    by_id = {view.job_id: view for view in jobs}
    in_all = 0
    for job_id, given in answer.items():
        view = by_id.get(job_id)
        if view is None:
            return f"allocate answered job {job_id!r}; expected elastic jobs that it was given"
        wrong = _what_is_wrong_with_one(given, view)
        if wrong:
            return f"job {job_id!r}: {wrong}"
        in_all += 0 if given is DROP else given.num_gpus
    if in_all > capacity.num_gpus:
        return f"allocate answered {in_all} GPUs in all; expected at most the {capacity.num_gpus} that there are"
    return _what_is_wrong_with_named(answer, by_id, capacity)


def _what_is_wrong_with_one(given: Any, view: ElasticJobView) -> str | None:
    if given is DROP:
        return f"is dropped while it holds {view.num_gpus} GPUs; expected one that holds none" if view.gpus else None
    if not isinstance(given, Allocation):
        return f"is given {given!r}; expected an Allocation, or DROP"
    job, num_gpus, batch = view.job, given.num_gpus, given.batch
    if not is_whole(num_gpus, job.min_gpus, job.max_gpus):
        return f"is given {num_gpus!r} GPUs; expected {job.min_gpus} to {job.max_gpus}"
    least, most = job.smallest_batch(num_gpus), job.largest_batch(num_gpus)
    if batch is not None and not is_whole(batch, least, most):
        return f"is given a batch of {batch!r} on {num_gpus} GPUs; expected {least} to {most}"
    if given.gpus is not None and len(set(given.gpus)) != num_gpus:
        return f"is given the GPUs {tuple(given.gpus)[:8]}; expected {num_gpus} different ones"
    return None


def _what_is_wrong_with_named(
    answer: Mapping[str, Any], by_id: Mapping[str, ElasticJobView], capacity: CapacityView
) -> str | None:
    """Check the GPUs that an answer names: there, free or those of a job that changes, and given once.

    A job whose GPUs are not named keeps those that it has, if the number stays the same.
    """
    named = {job_id: given.gpus for job_id, given in answer.items() if given is not DROP and given.gpus is not None}
    if not named:
        return None
    usable = set(capacity.free_gpus).union(*(view.gpus for view in by_id.values()))
    taken = {
        gpu
        for job_id, given in answer.items()
        if given is not DROP and given.gpus is None and _stays_as_it_is(given, by_id[job_id])
        for gpu in by_id[job_id].gpus
    }
    for job_id, gpus in named.items():
        for gpu in gpus:
            if gpu not in usable or gpu in taken:
                return f"job {job_id!r}: is given GPU {gpu!r}; expected free ones, each once"
            taken.add(gpu)
    return None


def _stays_as_it_is(given: Allocation, view: ElasticJobView) -> bool:
    batch = view.job.largest_batch(given.num_gpus) if given.batch is None else given.batch
    return (given.num_gpus, batch, 0) == (view.num_gpus, view.batch, view.lost_gpus)
