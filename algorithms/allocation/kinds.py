"""Kinds of GPUs as allocation policies see them: which GPU is of which, and how fast a job is on each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property, lru_cache

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView, free_by_server, take_nearest
from ddlsched.policies.views import GpuId


class Kinds:
    """The kinds of a cluster: those of its table of throughputs, or without one its different relative speeds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        speeds = cluster.relative_speed.tolist()
        of_gpu = [
            (cluster.kinds[cluster.kind_of_gpu.item(gpu)] if cluster.kinds else "", s) for gpu, s in enumerate(speeds)
        ]
        self._names = list(dict.fromkeys(of_gpu))
        places = {name: place for place, name in enumerate(self._names)}
        self.of_gpu = [places[name] for name in of_gpu]
        """The number of each GPU's kind."""

    @staticmethod
    @lru_cache(maxsize=8)
    def of(cluster: Cluster) -> Kinds:
        """Return the kinds of a cluster, those of the last few at once."""
        return Kinds(cluster)

    def __len__(self) -> int:
        return len(self._names)

    def speed(self, view: ElasticJobView, kind: int) -> float:
        """Return how many times as fast a job computes on a kind as its curve says.

        Raises
        ------
        InputError
            The table has no throughput of its model.
        """
        name, relative_speed = self._names[kind]
        throughputs = self._cluster.throughputs
        if throughputs is None:
            return float(relative_speed)
        return float(relative_speed * throughputs.speed(view.job.model, name, f"job {view.job_id!r}"))

    def counts(self, gpus: Iterable[GpuId]) -> list[int]:
        """Return how many of some GPUs are of each kind."""
        counts = Counter(map(self.of_gpu.__getitem__, gpus))
        return [counts[kind] for kind in range(len(self))]

    @cached_property
    def in_all(self) -> list[int]:
        """How many GPUs of each kind the cluster has."""
        return self.counts(range(len(self.of_gpu)))

    @cached_property
    def gpus_per_server(self) -> list[int]:
        """The most GPUs that a server of each kind has."""
        most = [0] * len(self)
        on_server: dict[int, int] = defaultdict(int)
        for gpu, kind in enumerate(self.of_gpu):
            on_server[server := self.server_of(gpu)] += 1
            most[kind] = max(most[kind], on_server[server])
        return most

    def server_of(self, gpu: GpuId) -> int:
        """Return the server that holds a GPU."""
        return int(self._cluster.server_of_gpu.item(gpu))

    def take(self, free: set[GpuId], kind: int, count: int) -> tuple[GpuId, ...]:
        """Take GPUs of a kind out of those that are free: near each other, the fullest server first."""
        pool = free_by_server({gpu for gpu in free if self.of_gpu[gpu] == kind}, self.server_of)
        taken = take_nearest(pool, count, [], self.server_of)
        free.difference_update(taken)
        return tuple(sorted(taken))


def servers_for(num_gpus: int, gpus_per_server: int) -> int:
    """Return on how many servers so many GPUs are at least."""
    return -(-num_gpus // gpus_per_server)


def iteration_s(
    view: ElasticJobView, num_gpus: int, speed: float, capacity: CapacityView, gpus_per_server: int
) -> float:
    """Return the time of an iteration with the largest batch on the fewest servers, without contention, seconds."""
    job = view.job
    compute_s = job.curve.iteration_s(num_gpus, job.largest_batch(num_gpus)) / speed
    return compute_s + capacity.all_reduce_s(job.message_bytes, servers_for(num_gpus, gpus_per_server))
