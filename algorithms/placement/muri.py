"""Muri: jobs that use different resources at a time share GPUs, grouped by matching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np

from algorithms.placement.lucid import refuse_exclusive
from ddlsched.cluster.cluster import Cluster
from ddlsched.deferred import nx
from ddlsched.policies.doors import Start
from ddlsched.policies.elastic_views import free_by_server, on_one_server
from ddlsched.policies.views import ClusterView, GpuId, JobQueue, JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S

Times = tuple[float, ...]
"""Seconds of an iteration on each resource."""


@dataclass(frozen=True, kw_only=True)
class Muri(Checked, who="muri"):
    """Jobs of equally many GPUs that wait are grouped so that their stages interleave best, and share a group's GPUs.

    Stages are compute on the GPU and the all-reduce; ddlsched's GPU runs one task at a time, so that the jobs of a
    group do interleave. Groups merge, by a matching of the largest sum of efficiencies, while they need more GPUs than
    are free, in at most four rounds; a group that is slower than its jobs one after another is taken apart.

    Deviations: running jobs are not stopped and grouped anew; of the four resources storage and CPU are not known. The
    measured overhead of sharing is left to ``--interference``. A GPU with jobs takes no others. For the order of
    Muri-S give ``srsf``, of Muri-L ``las``.

    Parameters
    ----------
    most
        How many jobs share a GPU, from 1 to 4.
    rounds
        Of matching.

    References
    ----------
    Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022.
    """

    most: int = ranged(4, 1, 4)
    rounds: int = ranged(4, 0, 100)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Muri:
        """Return the policy.

        Raises
        ------
        InputError
            The cluster lets nobody share a GPU.
        """
        refuse_exclusive("muri", cluster)
        return self

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[Start]:
        """Start the groups whose first job comes first in the queue."""
        free = [gpu for gpu in range(cluster.num_gpus) if cluster.is_up(gpu) and not cluster.num_residents(gpu)]
        if not free:
            return
        jobs = _admitted(queue, len(free), self.most)
        times = [(job.compute_ns / NS_PER_S, _network_s(job, cluster)) for job in jobs]
        sizes = [job.num_gpus for job in jobs]
        for group in sorted(grouped(times, sizes, len(free), self.most, self.rounds)):
            chosen = _nearest(free, sizes[group[0]], cluster)
            if not chosen:
                continue
            started = [member for member in group if _fits_beside(jobs, member, group, chosen, cluster)]
            for member in started:
                yield jobs[member], chosen
            if started:
                taken = set(chosen)
                free = [gpu for gpu in free if gpu not in taken]


def period_s(times: Sequence[Times]) -> float:
    """Return the period of jobs that interleave: the least, over their orders, of the sum of each stage's longest.

    In stage i the job at place q of the order is at resource (i - q) mod k.
    """
    resources = len(times[0])
    if len(times) > resources:
        return _packed_s(times)
    orders = permutations(range(len(times))) if len(times) > 1 else [(0,)]
    return min(
        sum(max(times[job][(i - place) % resources] for place, job in enumerate(order)) for i in range(resources))
        for order in orders
    )


def _packed_s(times: Sequence[Times]) -> float:
    """Return the period of more jobs than resources: that of the busiest resource, or of the longest job."""
    return max(max(map(sum, zip(*times, strict=True))), max(map(sum, times)))


def efficiency(times: Sequence[Times]) -> float:
    """Return which part of all resources' time jobs use together when they interleave."""
    total_s = len(times[0]) * period_s(times)
    return sum(map(sum, times)) / total_s if total_s else 0.0


def grouped(
    times: Sequence[Times], sizes: Sequence[int], free: int, most: int = 4, rounds: int = 4
) -> list[tuple[int, ...]]:
    """Return groups of jobs, each ascending; only jobs of equally many GPUs are in one.

    Parameters
    ----------
    times, sizes
        Of each job, in the order of the queue.
    free
        GPUs; while groups need more, they are merged.
    """
    groups: list[tuple[int, ...]] = [(j,) for j in range(len(times))]
    for _ in range(rounds):
        if sum(sizes[group[0]] for group in groups) <= free:
            break
        merges = _matched(groups, times, sizes, most)
        if not merges:
            break
        for one, other in merges:
            if sum(sizes[group[0]] for group in groups) > free:
                groups = [g for g in groups if g not in (one, other)] + [tuple(sorted(one + other))]
    return [part for group in groups for part in _worth_it(group, times)]


def _matched(
    groups: Sequence[tuple[int, ...]], times: Sequence[Times], sizes: Sequence[int], most: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return pairs of groups to merge, the most efficient first."""
    graph: nx.Graph[Any] = nx.Graph()
    for one, other in combinations(groups, 2):
        if sizes[one[0]] == sizes[other[0]] and len(one) + len(other) <= most:
            graph.add_edge(one, other, weight=efficiency([times[j] for j in one + other]))
    pairs = [tuple(sorted(pair)) for pair in nx.max_weight_matching(graph)]
    return sorted(pairs, key=lambda pair: (-graph.edges[pair]["weight"], pair))


def _worth_it(group: tuple[int, ...], times: Sequence[Times]) -> list[tuple[int, ...]]:
    """Return a group, or its jobs alone if they are as fast one after another."""
    alone_s = sum(sum(times[j]) for j in group)
    return [group] if len(group) == 1 or period_s([times[j] for j in group]) < alone_s else [(j,) for j in group]


def _admitted(queue: JobQueue, free: int, most: int) -> list[JobView]:
    """Return the jobs of the head of the queue that could be placed if each job's place took up to ``most`` alike."""
    places: dict[int, int] = {}
    admitted, left = [], free
    for job in queue:
        if places.get(job.num_gpus, 0) > 0:
            places[job.num_gpus] -= 1
        elif job.num_gpus <= left:
            left -= job.num_gpus
            places[job.num_gpus] = most - 1
        else:
            continue
        admitted.append(job)
    return admitted


def _network_s(job: JobView, cluster: ClusterView) -> float:
    """Return the time of an iteration's all-reduce alone, on the fewest servers."""
    per_server = max(len(cluster.gpus_of(server)) for server in range(cluster.num_servers))
    return cluster.all_reduce_s(job.message_bytes, -(-job.num_gpus // per_server))


def _nearest(free: Sequence[GpuId], count: int, cluster: ClusterView) -> list[GpuId]:
    """Return so many free GPUs on the fewest servers, none if there are too few."""
    if len(free) < count:
        return []
    room = free_by_server(free, cluster.server_of)
    if chosen := on_one_server(room, count):
        return chosen
    chosen = [gpu for gpus in sorted(room.values(), key=lambda gpus: (-len(gpus), gpus)) for gpu in gpus]
    return chosen[:count]


def _fits_beside(
    jobs: Sequence[JobView], member: int, group: tuple[int, ...], gpus: Sequence[GpuId], cluster: ClusterView
) -> bool:
    """Return whether the memory of a group's GPUs holds a member beside those of the group before it."""
    needed_mb = sum(jobs[j].gpu_memory_mb for j in group[: group.index(member) + 1])
    started_mb = sum(jobs[j].gpu_memory_mb for j in group[: group.index(member)] if jobs[j].gpus)
    return all(cluster.free_memory_mb(gpu) + started_mb >= needed_mb for gpu in gpus)
