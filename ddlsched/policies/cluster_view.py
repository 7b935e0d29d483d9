"""The cluster as placement policies see it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Literal, TypeAlias

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.network.topology import Network
from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import Columns, GpuId, ViewAtAnInstant, as_list, view
from ddlsched.units import MAX_NS


class _Changed:
    """A column of numbers to some of which amounts are added; what asks for none of them costs nothing."""

    def __init__(self, column: np.ndarray | _Changed, places: np.ndarray, amounts: np.ndarray) -> None:
        self._column, self._places, self._amounts = column, places, amounts
        self._sums: dict[int, int] | None = None

    def _added(self, place: int) -> int:
        if self._sums is None:
            self._sums = {}
            for each, amount in zip(self._places.tolist(), self._amounts.tolist(), strict=True):
                self._sums[each] = self._sums.get(each, 0) + amount
        return self._sums.get(place, 0)

    def item(self, place: int) -> int:
        """Return one of the numbers."""
        return int(self._column.item(place)) + self._added(place)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        whole = np.array(self._column)
        np.add.at(whole, self._places, self._amounts)
        return whole

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        return np.array([self.item(place) for place in places.tolist()], np.int64)

    def __ge__(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(np.asarray(self) >= other)

    def any(self) -> bool:
        """Return whether any is not 0."""
        return bool(np.asarray(self).any())


@view
class ClusterView(ViewAtAnInstant):
    """The GPUs as a placement policy sees them: memory, load, residents."""

    _what = "the cluster"

    _gpus: Columns
    _cluster: Cluster
    _loads: Callable[[np.ndarray], np.ndarray]
    _eligible: Callable[[int], np.ndarray]
    now_ns: int
    """Simulated time, nanoseconds."""
    network: Network
    """The links, and ``ring(servers)`` with those that an all-reduce between servers would cross."""
    _residents: Callable[[GpuId], list[JobView]]
    _all_reduce: Callable[[float, int], float]

    @property
    def num_gpus(self) -> int:
        """GPUs of the cluster."""
        return self._cluster.num_gpus

    @property
    def num_servers(self) -> int:
        """Servers of the cluster."""
        return self._cluster.num_servers

    @property
    def exclusive(self) -> bool:
        """Whether a GPU has one job at a time: one with a job is not eligible for another."""
        return self._cluster.exclusive

    @property
    def is_idle(self) -> bool:
        """Whether no job is on any GPU."""
        return not self._gpus.num_residents.any()

    def server_of(self, gpu: GpuId) -> int:
        """Return the server that holds a GPU."""
        return int(self._cluster.server_of_gpu.item(gpu))

    def gpus_of(self, server: int) -> range:
        """Return the GPUs of a server."""
        first = self._cluster.first_gpus
        return range(first.item(server), first.item(server + 1))

    def relative_speed(self, gpu: GpuId) -> float:
        """Return how many times as fast a GPU computes as the jobs' times say; who is a straggler is not known."""
        return float(self._cluster.relative_speed.item(gpu))

    def kind_of(self, gpu: GpuId) -> str | None:
        """Return the kind of a GPU, if the cluster has a table of throughputs."""
        kinds = self._cluster.kinds
        return kinds[self._cluster.kind_of_gpu.item(gpu)] if kinds else None

    def speed(self, job: JobView, gpu: GpuId) -> float:
        """Return how many times as fast a job computes on a GPU as its times say; who is a straggler is not known."""
        throughputs, kind = self._cluster.throughputs, self.kind_of(gpu)
        if throughputs is None or kind is None:
            return self.relative_speed(gpu)
        return self.relative_speed(gpu) * throughputs.speed(job.model, kind, f"job {job.job_id!r}")

    def eligible_gpus(self, job: JobView) -> list[GpuId]:
        """Return the GPUs with enough free memory for a worker of the job, ascending; if exclusive, without a job."""
        return as_list(self.eligible(job))

    def eligible(self, job: JobView) -> np.ndarray:
        """Return what :meth:`eligible_gpus` does, as an array."""
        return self._eligible(job.memory_bytes)

    def free(self, job: JobView) -> np.ndarray:
        """Return those of the :meth:`eligible` GPUs that no job is on."""
        gpus = self._eligible(job.memory_bytes)
        if self.exclusive:
            return gpus
        return np.array([gpu for gpu in gpus.tolist() if not self.num_residents(gpu)], np.int64)

    def room_for(self, memory_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each of some amounts of memory how many GPUs have it free, and how many on the best server."""
        fits = self._gpus.free_bytes >= memory_bytes[:, None]
        on_servers = np.add.reduceat(fits, self._cluster.first_gpus[:-1], axis=1, dtype=np.int64)
        return on_servers.sum(axis=1), on_servers.max(axis=1)

    def restricted_to(self, gpus: np.ndarray) -> ClusterView:
        """Return the cluster as if no GPU but these were eligible, for a policy that lets another choose among some."""

        def eligible(memory_bytes: int) -> np.ndarray:
            return np.intersect1d(self._eligible(memory_bytes), gpus)

        return replace(self, _eligible=eligible)

    def without(self, jobs: Iterable[JobView]) -> ClusterView:
        """Return the cluster as if some running jobs had left; loads and residents stay those of now."""
        leaving = [job for job in jobs if job.gpus]
        freed = np.array([gpu for job in leaving for gpu in job.gpus], np.int64)
        if self.exclusive:
            taken_bytes = self._cluster.gpu_memory_bytes[freed] + 1
        else:
            taken_bytes = np.array([job.memory_bytes for job in leaving for _ in job.gpus], np.int64)
        free_bytes = _Changed(self._gpus.free_bytes, freed, taken_bytes)
        num_residents = _Changed(self._gpus.num_residents, freed, np.full_like(freed, -1))

        def eligible(memory_bytes: int) -> np.ndarray:
            there = self._eligible(memory_bytes)
            if self.exclusive:  # one job a GPU
                large_enough = freed[self._gpus.free_bytes[freed] + taken_bytes >= memory_bytes]
                return np.sort(np.concatenate([there, large_enough]), kind="stable")  # which merges
            return np.union1d(there, freed[free_bytes[freed] >= memory_bytes])

        gpus = SimpleNamespace(free_bytes=free_bytes, num_residents=num_residents)
        return replace(self, _gpus=gpus, _eligible=cache(eligible))

    def all_reduce_s(self, message_bytes: float, num_servers: int) -> float:
        """Return the time of an all-reduce that shares no link, by the run's contention model, seconds.

        It is 0 on one server. The latency of cables is that between the cluster's first servers.
        """
        return self._all_reduce(message_bytes, num_servers) if num_servers > 1 else 0.0

    def fits(self, job: JobView, gpu: GpuId) -> bool:
        """Return whether a GPU is eligible for the job."""
        return bool(self._gpus.free_bytes.item(gpu) >= job.memory_bytes)

    def free_memory_mb(self, gpu: GpuId) -> float:
        """Return the free memory of a GPU, MB."""
        return max(float(self._gpus.free_bytes.item(gpu) / 1e6), 0.0)

    def is_up(self, gpu: GpuId) -> bool:
        """Return whether a GPU's server is there."""
        return bool(self._gpus.free_bytes.item(gpu) >= -1)  # -1 where a job has the GPU for itself

    def num_residents(self, gpu: GpuId) -> int:
        """Return how many jobs share a GPU."""
        return int(self._gpus.num_residents.item(gpu))

    def residents(self, gpu: GpuId) -> list[JobView]:
        """Return the jobs that share a GPU, by number."""
        return self._residents(gpu)

    def load_ns(self, gpu: GpuId) -> int:
        """Return a GPU's load: its residents' remaining compute and, across servers, communication, nanoseconds."""
        return int(self._loads(np.array([gpu], np.int64)).item())

    def loads_ns(self) -> list[int]:
        """Return the load of every GPU, nanoseconds."""
        return as_list(self.loads_of(np.arange(self.num_gpus)))

    def loads_of(self, gpus: np.ndarray) -> np.ndarray:
        """Return the loads of an array of GPUs, nanoseconds."""
        return self._loads(gpus)

    def least_loaded(self, gpus: np.ndarray, count: int) -> list[GpuId]:
        """Return the ``count`` least-loaded of an ascending array of GPUs, the least first; ties go to the lower."""
        loads_ns = self._loads(gpus)
        idlest = np.flatnonzero(loads_ns == loads_ns.min())
        if len(idlest) >= count:
            return as_list(gpus[idlest[:count]])
        most_ns = np.partition(loads_ns, count - 1)[count - 1]
        below = np.flatnonzero(loads_ns < most_ns)
        below = below[np.argsort(loads_ns[below], kind="stable")]
        equal = np.flatnonzero(loads_ns == most_ns)[: count - len(below)]
        return as_list(gpus[np.concatenate([below, equal])])

    def servers_of(self, gpus: np.ndarray) -> np.ndarray:
        """Return the servers of an array of GPUs."""
        servers: np.ndarray = self._cluster.server_of_gpu[gpus]
        return servers

    def units(self, level: str) -> np.ndarray:
        """Return the unit of a level of the topology that each GPU is in; ``network.levels`` has their names.

        Raises
        ------
        UnknownNameError
            The topology has no such level.
        """
        units: np.ndarray = np.array(self.network.units(level), np.int64)[self._cluster.server_of_gpu]
        return units

    def server_loads_ns(self) -> list[int]:
        """Return for every server a whole number that is proportional to the mean load of its GPUs, nanoseconds.

        Where servers have equally many GPUs it is the sum of their loads.
        """
        return as_list(self._exact_server_loads_ns(np.arange(self.num_servers)))

    def server_ranks(self, servers: np.ndarray) -> np.ndarray:
        """Return numbers that order an array of servers as the mean load of their GPUs does, equal for equal means.

        Only the GPUs of these servers are looked at.
        """
        is_other = np.ones(len(servers), bool)  # than the one before it: one that comes again is reckoned again
        np.not_equal(servers[1:], servers[:-1], out=is_other[1:])
        loads_ns = self._exact_server_loads_ns(servers[is_other])
        ranks: np.ndarray = np.searchsorted(np.sort(loads_ns), loads_ns)[np.cumsum(is_other) - 1]
        return ranks

    def _exact_server_loads_ns(self, servers: np.ndarray) -> np.ndarray:
        """Return the loads of an array of servers; of Python's whole numbers where 64 bits might overflow."""
        first, common = self._cluster.first_gpus, self._cluster.common_multiple
        counts = first[servers + 1] - first[servers]
        starts = np.cumsum(counts) - counts
        gpus = np.arange(int(counts.sum())) + np.repeat(first[servers] - starts, counts)
        loads_ns = self.loads_of(gpus)
        if float(loads_ns.max(initial=0)) * common > MAX_NS / 2:
            loads_ns = loads_ns.astype(object)
        weighted: np.ndarray = np.add.reduceat(loads_ns, starts) * (common // counts)
        return weighted


GpuKey: TypeAlias = Literal["load", "server", "server_load"]
"""What GPUs are ordered by, the least first: their load; their server's number; the mean load of that's GPUs."""


class TakesGpusInOrder:
    """A placement policy that only says by what eligible GPUs are ordered; a job waits until enough are eligible.

    What asks such a policy very often, as :class:`~ddlsched.envs.OrderVectorEnv` does, does the same in compiled code.
    A subclass with a ``place`` of its own is asked in Python.
    """

    @abstractmethod
    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        """Return by what the GPUs are ordered of a job of so many; what is equal in all goes by the GPU's number."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the first GPUs in the order."""
        gpus, num_gpus = cluster.eligible(job), job.num_gpus
        if len(gpus) < num_gpus:
            return None
        order = self.gpu_order(num_gpus)
        if order == ("load",):
            return cluster.least_loaded(gpus, num_gpus)
        if order:
            columns = [_column(key, gpus, cluster) for key in reversed(order)]
            gpus = gpus[np.lexsort((gpus, *columns))]
        return as_list(gpus[:num_gpus])


def _column(key: GpuKey, gpus: np.ndarray, cluster: ClusterView) -> np.ndarray:
    if key == "load":
        return cluster.loads_of(gpus)
    servers = cluster.servers_of(gpus)
    return servers if key == "server" else cluster.server_ranks(servers)


def is_gpu_order(policy: object) -> bool:
    """Return whether all that a placement policy does is to take GPUs in its order."""
    return isinstance(policy, TakesGpusInOrder) and type(policy).place is TakesGpusInOrder.place


def jobs_on(cluster: ClusterView, gpus: Iterable[GpuId]) -> dict[int, JobView]:
    """Return the jobs on some GPUs by number, if those that share a GPU share all of theirs: each is looked at once."""
    there, looked_at = dict[int, JobView](), set[GpuId]()
    for gpu in gpus:
        if gpu not in looked_at and cluster.num_residents(gpu):
            for job in cluster.residents(gpu):
                looked_at.update(job.gpus)
                there[job.number] = job
    return there


def looked_up_once(cluster: ClusterView) -> ClusterView:
    """Return a view that keeps the eligible GPUs by memory, for as long as nobody is given GPUs or gives them up."""
    return replace(cluster, _eligible=cache(cluster._eligible))
