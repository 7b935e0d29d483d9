"""What policies see: read-only views of jobs, cluster, transfers and network at one instant.

A view is live: it reads the engine's records when asked, so it costs nothing to hand out. Keep what you
need of it by value; do not keep the view itself from one decision to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import did_you_mean
from ddlsched.network.topology import Link, Network
from ddlsched.policies.transfer_states import TransferState
from ddlsched.units import MAX_NS, s_from_ns
from ddlsched.workload.dag import AllReduceTask, IterationDag
from ddlsched.workload.job import Job

__all__ = ["ClusterView", "GpuId", "JobView", "NetworkView", "TransferView"]

GpuId: TypeAlias = int
"""A GPU's number, counted server by server."""

Columns: TypeAlias = Any
"""An attribute a field, each an array with an entry a job, transfer or GPU: what the engine keeps."""


def _refuse_attribute(what: str, view: object, name: str) -> NoReturn:
    known = [attribute for attribute in dir(type(view)) if not attribute.startswith("_")]
    raise AttributeError(f"{what} has no attribute {name!r}.{did_you_mean(name, known)}", name=name, obj=view)


class JobView:
    """A job, and how far it has come."""

    __slots__ = ("_columns", "_gpus", "_job", "_place", "_servers", "number")

    def __init__(self, job: Job, number: int, columns: Columns, place: int) -> None:
        self._job = job
        self._columns = columns
        self._place = place
        self._gpus: tuple[GpuId, ...] = ()
        self._servers: tuple[int, ...] = ()
        self.number = number
        """Row in the workload file, from 0; every tie is broken by it."""

    def __repr__(self) -> str:
        return f"<job {self._job.job_id} of {self.num_gpus} GPUs>"

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_attribute("a job", self, name)

    @property
    def job_id(self) -> str:
        """Its name in the workload file."""
        return self._job.job_id

    @property
    def model(self) -> str | None:
        """The model it trains, if the workload says."""
        return self._job.model

    @property
    def user(self) -> str | None:
        """Who submitted it, if the workload says."""
        return self._job.user

    @property
    def time_limit_s(self) -> float | None:
        """How long its user said that it runs at most, seconds, if the workload says."""
        return self._job.time_limit_s

    @property
    def num_gpus(self) -> int:
        """Workers, one a GPU; of an elastic job as many as it has or had last, before its first start its most."""
        return int(self._columns.num_gpus.item(self._place))

    @property
    def gpu_memory_mb(self) -> float:
        """Memory taken on each of its GPUs, MB."""
        return float(self._job.gpu_memory_mb)

    @property
    def memory_bytes(self) -> int:
        """Memory taken on each of its GPUs, bytes."""
        return int(self._columns.memory_bytes.item(self._place))

    @property
    def iterations(self) -> int:
        """Iterations in all."""
        return self._job.iterations

    @property
    def iterations_left(self) -> int:
        """Iterations not ended yet."""
        return int(self._columns.iterations_left.item(self._place))

    @property
    def arrival_s(self) -> float:
        """Time of submission, seconds."""
        return float(self._job.arrival_s)

    @property
    def arrival_ns(self) -> int:
        """Time of submission, nanoseconds."""
        return int(self._columns.arrival_ns.item(self._place))

    @property
    def start_s(self) -> float | None:
        """Time of placement, seconds; None while it is queued."""
        return s_from_ns(int(self._columns.start_ns.item(self._place))) if self._servers else None

    def _placed(self, gpus: tuple[GpuId, ...], servers: tuple[int, ...]) -> None:
        self._gpus, self._servers = gpus, servers

    @property
    def gpus(self) -> tuple[GpuId, ...]:
        """GPUs it runs on, in placement order; empty while it is queued."""
        return self._gpus

    @property
    def servers(self) -> tuple[int, ...]:
        """Servers it runs on, in placement order; empty while it is queued."""
        return self._servers

    @property
    def dag(self) -> IterationDag:
        """The tasks of its iteration."""
        return self._job.dag

    @property
    def compute_ns(self) -> int:
        """Compute time of one iteration on one worker, nanoseconds."""
        return int(self._columns.compute_ns.item(self._place))

    @property
    def message_bytes(self) -> float:
        """Bytes of all all-reduces of one iteration."""
        return float(sum(task.message_bytes for task in self._job.dag.tasks if isinstance(task, AllReduceTask)))

    @property
    def service_ns(self) -> int:
        """Compute time x iterations x GPUs of the whole job, nanoseconds."""
        return int(self._columns.service_ns.item(self._place))

    @property
    def remaining_service_ns(self) -> int:
        """What is left of the service; falls by a task's time as each worker ends it, nanoseconds."""
        return int(self._columns.remaining_service_ns.item(self._place))

    @property
    def attained_service_ns(self) -> int:
        """What has been done of the service, nanoseconds."""
        return self.service_ns - self.remaining_service_ns

    @property
    def remaining_service_per_gpu_ns(self) -> tuple[int, float]:
        """Remaining service / GPUs: whole nanoseconds, and the rest as a fraction of one; as exact as a fraction."""
        num_gpus = self.num_gpus
        whole_ns, rest = divmod(self.remaining_service_ns, num_gpus)
        return whole_ns, rest / num_gpus

    @property
    def remaining_time_ns(self) -> tuple[int, float]:
        """:attr:`remaining_service_per_gpu_ns` plus the remaining all-reduces without contention."""
        whole_ns, rest = self.remaining_service_per_gpu_ns
        return whole_ns + self.iterations_left * self.communication_ns, rest

    @property
    def communication_ns(self) -> int:
        """Time of an iteration's all-reduces without contention; 0 while queued and on one server."""
        return int(self._columns.communication_ns.item(self._place))

    @property
    def remaining_communication_ns(self) -> int:
        """Iterations left x :attr:`communication_ns` x GPUs, nanoseconds."""
        return self.iterations_left * self.communication_ns * self.num_gpus


class ClusterView:
    """The GPUs as a placement policy sees them: memory, load, residents."""

    __slots__ = ("_all_reduce", "_cluster", "_eligible", "_gpus", "_loads", "_residents", "network", "now_ns")

    def __init__(
        self,
        gpus: Columns,
        cluster: Cluster,
        loads: Callable[[np.ndarray], np.ndarray],
        eligible: Callable[[int], np.ndarray],
        now_ns: int,
        network: Network,
        residents: Callable[[GpuId], list[JobView]],
        all_reduce: Callable[[float, int], float],
    ) -> None:
        self._gpus = gpus
        self._cluster = cluster
        self._loads = loads
        self._eligible = eligible
        self._residents = residents
        self._all_reduce = all_reduce
        self.now_ns = now_ns
        """Simulated time, nanoseconds."""
        self.network = network
        """The links, and ``ring(servers)`` with those that an all-reduce between servers would cross."""

    @property
    def now_s(self) -> float:
        """Simulated time, seconds."""
        return s_from_ns(self.now_ns)

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

    def eligible_gpus(self, job: JobView) -> list[GpuId]:
        """Return the GPUs with enough free memory for a worker of the job, ascending; if exclusive, without a job."""
        eligible: list[GpuId] = self.eligible(job).tolist()
        return eligible

    def eligible(self, job: JobView) -> np.ndarray:
        """Return what :meth:`eligible_gpus` does, as an array."""
        eligible: np.ndarray = self._eligible(job.memory_bytes)
        return eligible

    def restricted_to(self, gpus: np.ndarray) -> ClusterView:
        """Return the cluster as if no GPU but these were eligible, for a policy that lets another choose among some."""

        def eligible(memory_bytes: int) -> np.ndarray:
            return np.intersect1d(self._eligible(memory_bytes), gpus)

        return ClusterView(
            self._gpus,
            self._cluster,
            self._loads,
            eligible,
            self.now_ns,
            self.network,
            self._residents,
            self._all_reduce,
        )

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
        loads: list[int] = self.loads_of(np.arange(self.num_gpus)).tolist()
        return loads

    def loads_of(self, gpus: np.ndarray) -> np.ndarray:
        """Return the loads of an array of GPUs, nanoseconds."""
        return self._loads(gpus)

    def least_loaded(self, gpus: np.ndarray, count: int) -> list[GpuId]:
        """Return the ``count`` least-loaded of an ascending array of GPUs, the least first; ties go to the lower."""
        loads_ns = self._loads(gpus)
        idlest = np.flatnonzero(loads_ns == loads_ns.min())
        if len(idlest) >= count:
            first: list[GpuId] = gpus[idlest[:count]].tolist()
            return first
        most_ns = np.partition(loads_ns, count - 1)[count - 1]
        below = np.flatnonzero(loads_ns < most_ns)
        below = below[np.argsort(loads_ns[below], kind="stable")]
        equal = np.flatnonzero(loads_ns == most_ns)[: count - len(below)]
        chosen: list[GpuId] = gpus[np.concatenate([below, equal])].tolist()
        return chosen

    def servers_of(self, gpus: np.ndarray) -> np.ndarray:
        """Return the servers of an array of GPUs."""
        servers: np.ndarray = self._cluster.server_of_gpu[gpus]
        return servers

    def server_loads_ns(self) -> list[int]:
        """Return for every server a whole number that is proportional to the mean load of its GPUs, nanoseconds.

        Where servers have equally many GPUs it is the sum of their loads.
        """
        loads_ns: list[int] = self._exact_server_loads_ns(np.arange(self.num_servers)).tolist()
        return loads_ns

    def server_ranks(self, servers: np.ndarray) -> np.ndarray:
        """Return numbers that order an array of servers as the mean load of their GPUs does, equal for equal means.

        Only the GPUs of these servers are looked at.
        """
        different, places = np.unique(servers, return_inverse=True)
        loads_ns = self._exact_server_loads_ns(different)
        ranks: np.ndarray = np.unique(loads_ns, return_inverse=True)[1][places]
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


class TransferView:
    """An all-reduce that runs or waits, between servers."""

    __slots__ = ("_columns", "_now", "_place", "job", "links", "message_bytes", "number")

    def __init__(
        self, number: int, job: JobView, links: tuple[int, ...], columns: Columns, place: int, now: Columns
    ) -> None:
        self.number = number
        """Unique; ascending by job number, then by task number."""
        self.job = job
        """The job it belongs to."""
        self.links = links
        """Numbers of the links of its ring, one entry a crossing."""
        self.message_bytes: float = columns.bytes.item(place)
        """Bytes it moves over each link, by the contention model's account."""
        self._columns = columns
        self._place = place
        self._now = now

    def __repr__(self) -> str:
        return f"<transfer {self.number} of job {self.job.job_id}, {self.bytes_left:.0f} bytes left>"

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_attribute("a transfer", self, name)

    @property
    def servers(self) -> tuple[int, ...]:
        """Servers of the job, in placement order."""
        return self.job.servers

    @property
    def is_active(self) -> bool:
        """Whether it runs; otherwise it waits or is paused."""
        return bool(self._columns.state.item(self._place) == TransferState.ACTIVE)

    @property
    def bytes_left(self) -> float:
        """Bytes not yet sent at this instant."""
        columns, place = self._columns, self._place
        left: float = columns.bytes_left.item(place)
        if columns.rate.item(place) == 0.0:
            return left
        since_ns = columns.since_ns.item(place)
        sending_ns = self._now.now_ns.item(0) - since_ns - columns.latency_left_ns.item(place)
        return max(left - sending_ns / columns.ns_per_byte.item(place), 0.0) if sending_ns > 0.0 else left

    @property
    def bytes_sent(self) -> float:
        """Bytes sent by this instant."""
        return self.message_bytes - self.bytes_left


class NetworkView:
    """The links, who runs on them and who waits; an admitted transfer counts at once."""

    def __init__(
        self,
        links: Sequence[Link],
        count: np.ndarray,
        active: Callable[[], list[TransferView]],
        waiting: Callable[[], list[TransferView]],
        per_byte_s: float,
        penalty_per_byte_s: float,
        now_ns: int,
    ) -> None:
        self.links = links
        """All links of the network, by number."""
        self.per_byte_s = per_byte_s
        """b: time of a byte of a transfer that shares nothing, seconds."""
        self.penalty_per_byte_s = penalty_per_byte_s
        """η: extra time of a byte for each further transfer, seconds."""
        self.now_ns = now_ns
        """Simulated time, nanoseconds."""
        self._count = count
        self._active = active
        self._waiting = waiting

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_attribute("the network", self, name)

    @property
    def now_s(self) -> float:
        """Simulated time, seconds."""
        return s_from_ns(self.now_ns)

    @cached_property
    def active(self) -> tuple[TransferView, ...]:
        """The transfers that run, by number."""
        return tuple(sorted(self._active(), key=_number))

    @cached_property
    def waiting(self) -> tuple[TransferView, ...]:
        """The transfers that are ready or paused, by number."""
        return tuple(sorted(self._waiting(), key=_number))

    def transfers_on(self, link: int) -> list[TransferView]:
        """Return the transfers that run on a link, by number."""
        return [transfer for transfer in self.active if link in transfer.links]

    def num_on(self, link: int) -> int:
        """Return how many transfers run on a link."""
        return int(self._count.item(link))

    def most_on_links_of(self, transfer: TransferView) -> int:
        """Return the most transfers on any one link of a transfer (on a star: on any one of its servers)."""
        count = self._count.item
        return max((count(link) for link in transfer.links), default=0)

    def met_by(self, transfer: TransferView) -> list[TransferView]:
        """Return the running transfers that share a link with a transfer, by number."""
        mine = frozenset(transfer.links)
        return [other for other in self.active if other is not transfer and not mine.isdisjoint(other.links)]


def _number(transfer: TransferView) -> int:
    return transfer.number
