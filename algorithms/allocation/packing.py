"""On which GPUs, for policies that stop and start jobs anyway: close together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddlsched.cluster.packing import free_by_server, take_nearest
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView

__all__ = ["packed"]


def packed(
    sizes: Mapping[str, Allocation], jobs: Sequence[ElasticJobView], capacity: CapacityView
) -> dict[str, Allocation]:
    """Return the allocations with GPUs named.

    Jobs that change are placed anew, those with most GPUs first, each on as few servers as the free GPUs allow. One
    that does not change keeps its GPUs, unless it can move to fewer servers afterwards.

    Parameters
    ----------
    sizes
        GPUs and batch of each job that is to have some.
    jobs
        All elastic jobs.
    capacity
        The GPUs.
    """
    views = {view.job_id: view for view in jobs}
    stay = [job_id for job_id, size in sizes.items() if _is_as_now(size, views[job_id])]
    answer = {job_id: replace(sizes[job_id], gpus=views[job_id].gpus) for job_id in stay}
    usable = {*capacity.free_gpus, *(gpu for view in jobs for gpu in view.gpus)}
    pool = free_by_server(usable.difference(*(views[job_id].gpus for job_id in stay)), capacity.server_of)
    start = [job_id for job_id in sizes if job_id not in answer]
    for job_id in sorted(start, key=lambda job_id: (-sizes[job_id].num_gpus, views[job_id].number)):
        gpus = take_nearest(pool, sizes[job_id].num_gpus, (), capacity.server_of)
        answer[job_id] = replace(sizes[job_id], gpus=tuple(gpus))
    for job_id in stay:
        answer[job_id] = replace(sizes[job_id], gpus=_gathered(views[job_id].gpus, pool, capacity))
    return answer


def _is_as_now(size: Allocation, view: ElasticJobView) -> bool:
    return (size.num_gpus, size.batch, 0) == (view.num_gpus, view.batch, view.lost_gpus)


def _gathered(gpus: tuple[int, ...], pool: dict[int, list[int]], capacity: CapacityView) -> tuple[int, ...]:
    """Return the GPUs of a job, or others on fewer servers if they are free."""
    servers = {capacity.server_of(gpu) for gpu in gpus}
    if len(servers) == 1:
        return gpus
    free = [gpu for here in pool.values() for gpu in here]
    wider = free_by_server([*free, *gpus], capacity.server_of)
    nearer = take_nearest(wider, len(gpus), (), capacity.server_of)
    if len({capacity.server_of(gpu) for gpu in nearer}) >= len(servers):
        return gpus
    pool.clear()
    pool.update(wider)
    return tuple(nearer)
