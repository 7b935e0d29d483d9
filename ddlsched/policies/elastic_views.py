"""What an allocation policy sees, at one instant, by value: the elastic jobs, the GPUs, and which of these are near."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ddlsched.cluster.cluster import Cluster
from ddlsched.network.topology import Network
from ddlsched.policies.views import GpuId, JobView
from ddlsched.workload.elastic_job import ElasticJob

_Key = TypeVar("_Key")


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticJobView:
    """An elastic job that has arrived and is neither finished nor dropped.

    Attributes
    ----------
    job
        What was submitted: ``job_id, arrival_s, samples, min_gpus, max_gpus, smallest_batch(n), largest_batch(n),
        message_bytes, curve, model, user``. The curve is the truth; a policy that should not know it must not look.
    number
        Row in the workload, from 0.
    samples_left
        Samples of iterations that have not ended.
    gpus
        Those it holds, ascending; without any that left at this instant.
    batch
        Samples an iteration, of now or of when it ran last; 0 before its first start.
    lost_gpus
        How many GPUs left with their servers at this instant.
    rescaling_left_s
        For how long it still makes no progress after an earlier change, seconds.
    start_s
        When it first got GPUs, seconds, or None.
    """

    job: ElasticJob
    number: int
    samples_left: int
    gpus: tuple[GpuId, ...] = ()
    batch: int = 0
    lost_gpus: int = 0
    rescaling_left_s: float = 0.0
    start_s: float | None = None

    @property
    def job_id(self) -> str:
        """Its name in the workload."""
        return self.job.job_id

    @property
    def num_gpus(self) -> int:
        """GPUs it holds now; 0 while it is queued or stopped."""
        return len(self.gpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityView:
    """The GPUs as an allocation policy sees them.

    Attributes
    ----------
    num_gpus
        GPUs that elastic jobs can share out now: of servers that are there, without a job that is not elastic.
    free_gpus
        Those of them on which no job is, ascending.
    queued
        Jobs that are not elastic and wait for GPUs, in no order.
    cluster, network
        The whole cluster; its links, ``network.ring(servers)``.
    all_reduce
        From (message bytes, number of servers) to seconds; see :meth:`all_reduce_s`.
    """

    num_gpus: int
    free_gpus: tuple[GpuId, ...]
    cluster: Cluster
    queued: Sequence[JobView] = ()
    network: Network | None = None
    all_reduce: Callable[[float, int], float] | None = field(default=None, repr=False)

    def server_of(self, gpu: GpuId) -> int:
        """Return the server that holds a GPU."""
        return int(self.cluster.server_of_gpu.item(gpu))

    def all_reduce_s(self, message_bytes: float, num_servers: int) -> float:
        """Return the time of an all-reduce that shares no link, by the run's contention model, seconds.

        It is 0 on one server, and on more than the cluster has as on all. The latency of cables is that between the
        cluster's first servers.
        """
        servers = min(num_servers, self.cluster.num_servers)
        if servers < 2 or not message_bytes or self.all_reduce is None:
            return 0.0
        return self.all_reduce(message_bytes, servers)


def free_by_server(gpus: Iterable[int], server_of: Callable[[int], int]) -> dict[int, list[int]]:
    """Return GPUs by their server, ascending."""
    pool: dict[int, list[int]] = {}
    for gpu in sorted(gpus):
        pool.setdefault(server_of(gpu), []).append(gpu)
    return pool


def best_fit(sizes: Mapping[_Key, int], needed: int) -> _Key:
    """Return which has the least that suffices, or without such a one the most; of equal ones the first."""
    enough = [key for key, size in sizes.items() if size >= needed]
    return min(enough, key=sizes.__getitem__) if enough else max(sizes, key=sizes.__getitem__)


def on_one_server(free: Mapping[int, list[GpuId]], count: int) -> list[GpuId]:
    """Return so many free GPUs, by server, of the server with the fewest that suffice; nothing without such a one."""
    return min((gpus for gpus in free.values() if len(gpus) >= count), key=len, default=[])[:count]


def take_nearest(
    pool: dict[int, list[int]], count: int, mine: Iterable[int], server_of: Callable[[int], int]
) -> list[int]:
    """Take up to ``count`` free GPUs for a job out of the pool, and return them.

    On servers on which the job is, those with most of its GPUs first; then on the server with the fewest free GPUs that
    are enough, or else on the one with the most free. Ties go to lower servers.

    Parameters
    ----------
    pool
        Free GPUs by server, ascending; those taken are removed.
    count
        How many the job needs.
    mine
        Those that it has.
    server_of
        The server of a GPU.
    """
    added: list[int] = []
    on_server = Counter(server_of(gpu) for gpu in mine)
    for server in sorted(on_server, key=lambda server: (-on_server[server], server)):
        added += _take(pool, server, count - len(added))
    while pool and (left := count - len(added)):
        server = best_fit({server: len(pool[server]) for server in sorted(pool)}, left)
        added += _take(pool, server, left)
    return added


def _take(pool: dict[int, list[int]], server: int, count: int) -> list[int]:
    there = pool.get(server, [])
    taken, left = there[:count], there[count:]
    if left:
        pool[server] = left
    else:
        pool.pop(server, None)
    return taken
