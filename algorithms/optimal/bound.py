"""A lower bound of the average JCT that holds for every policy, on instances of any size."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from ddlsched.cluster.cluster import Cluster
from ddlsched.network.contention import Linear
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import AllReduceTask
from ddlsched.workload.job import Job, Workload

__all__ = ["average_jct_bound_s", "shortest_first_s"]


def average_jct_bound_s(workload: Workload, cluster: Cluster, contention: Linear) -> float:
    """Return a time (s) that no schedule's average JCT is below, overlapping or not.

    Jobs that do not fit on the largest server must send each message through at least
    ceil(GPUs / GPUs of a server) servers, whose cards carry 1 / b bytes a second each at most. So they take no less
    than (1) their compute and transfers alone, and than (2) one machine of all cards together that does the
    job with the least left first, which minimises the sum of completion times (SRPT). The other jobs take
    no less than (1) their compute alone and (2) all GPUs as one machine. Each group counts by its larger bound.

    Parameters
    ----------
    workload, cluster
        The instance; jobs without overlap of compute and communication within an iteration.
    contention
        The linear model, on a star.

    References
    ----------
    Schrage, "A proof of the optimality of the shortest remaining processing time discipline", 1968.
    """
    gpus = max(len(range(*pair)) for pair in zip(cluster.first_gpus[:-1], cluster.first_gpus[1:], strict=True))
    spanning = [job for job in workload if job.num_gpus > gpus]
    others = [job for job in workload if job.num_gpus <= gpus]
    speed = float(cluster.relative_speed.max())

    def compute_s(job: Job) -> float:
        return job.compute_ns * job.iterations / NS_PER_S / speed

    def sending_s(job: Job) -> float:
        message_bytes = sum(task.message_bytes for task in job.dag.tasks if isinstance(task, AllReduceTask))
        return message_bytes * job.iterations * contention.per_byte_s

    def cards_s(job: Job) -> float:
        return sending_s(job) * -(-job.num_gpus // gpus) / cluster.num_servers

    alone_s = sum(compute_s(job) + sending_s(job) for job in spanning)
    network_s = shortest_first_s((job.arrival_s, cards_s(job)) for job in spanning)
    own_s = sum(compute_s(job) for job in others)
    shared_s = shortest_first_s((job.arrival_s, compute_s(job) * job.num_gpus / cluster.num_gpus) for job in others)
    return (max(alone_s, network_s) + max(own_s, shared_s)) / len(workload)


def shortest_first_s(jobs: Iterable[tuple[float, float]]) -> float:
    """Return the sum of (completion - arrival) of (arrival, work) on one machine, the least left always first."""
    coming = sorted(jobs, reverse=True)
    left: list[tuple[float, float]] = []
    now_s = total_s = 0.0
    while coming or left:
        if not left:
            now_s = max(now_s, coming[-1][0])
        while coming and coming[-1][0] <= now_s:
            arrival_s, work_s = coming.pop()
            heappush(left, (work_s, arrival_s))
        work_s, arrival_s = heappop(left)
        until_s = min(now_s + work_s, coming[-1][0]) if coming else now_s + work_s
        if until_s < now_s + work_s:
            heappush(left, (work_s - (until_s - now_s), arrival_s))
        else:
            total_s += until_s - arrival_s
        now_s = until_s
    return total_s
