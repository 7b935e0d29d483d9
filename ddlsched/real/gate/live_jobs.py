"""Real jobs in the records that views read, one definition of what policies see, and where placements put them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.checked_policies import CheckedPolicies, start_queued, stop_running
from ddlsched.engine.decisions.costs import CommunicationCosts, PlannedTransfer, collectives_of
from ddlsched.engine.records import Columns, make_records
from ddlsched.errors import TestbedError
from ddlsched.network.topology import RingLinks
from ddlsched.policies.job_view import JobQueue
from ddlsched.policies.network_views import TransferState
from ddlsched.policies.view_parts import write_fields
from ddlsched.policies.views import ClusterView, JobView, TransferView
from ddlsched.real.channel import Channel, ChannelEndedError
from ddlsched.units import s_from_ns
from ddlsched.workload.job import Job

MOST_TASKS = 1 << 20
"""More tasks than a job has: a transfer's number orders by job, then by task."""


@dataclass(eq=False)
class GateRank:
    """The process of a job on a server, as the gate knows it.

    Attributes
    ----------
    channel
        To it.
    server
        Where it is.
    address
        Where the other ranks of its job reach it.
    """

    channel: Channel
    server: int
    address: str

    def send(self, message: dict[str, Any]) -> None:
        """Tell it something; TestbedError if it is gone."""
        try:
            self.channel.send(message)
        except ChannelEndedError as error:
            raise TestbedError(f"the worker on server {self.server} is gone: {self._last_words() or error}") from None

    def _last_words(self) -> str:
        """Return why the worker says that it ended, if it has said so."""
        try:
            said = [message for message in self.channel.receive() if message.get("say") == "failed"]
        except ChannelEndedError:
            return ""
        return str(said[0].get("error"))[:500] if said else ""


@dataclass(frozen=True)
class SentRow:
    """One all-reduce of one iteration, nanoseconds from the start of the run by the gate's clock."""

    job_id: str
    iteration: int
    task: str
    message_bytes: float
    chunks: int
    ready_ns: int
    granted_ns: int
    ended_ns: int


class LiveTransfer:
    """An all-reduce of a job, used again in every iteration."""

    def __init__(self, job: LiveJob, task: int, name: str, clock: Columns) -> None:
        self.job, self.task, self.name = job, task, name
        self.columns = Columns(make_records("transfer", 1))
        self._clock = clock
        self.iteration = -1
        self.message_bytes = 0.0
        self.view = self._view()
        self.chunks = self.granted = self.completed = 0
        self.sent_by: list[int] = []
        self.ready_ns = self.granted_ns = self.told_ns = 0
        self.times_ended = 0
        self.heard: dict[int, dict[int, float]] = {}

    def _view(self) -> TransferView:
        number = self.job.number * MOST_TASKS + self.task
        links = self.job.ring.links if self.message_bytes else ()
        return TransferView(number, self.job.view, links, self.columns, 0, self._clock)

    @property
    def state(self) -> TransferState:
        """Whether it is idle, waits or runs."""
        return TransferState(self.columns.state.item(0))

    @state.setter
    def state(self, state: TransferState) -> None:
        self.columns.state[0] = state

    def begin(self, iteration: int, message_bytes: float, wire_bytes: float, chunks: int, now_ns: int) -> None:
        """Let it wait to be sent, in so many chunks; all ranks are ready."""
        self.iteration, self.message_bytes, self.chunks = iteration, message_bytes, chunks
        self.granted = self.completed = 0
        self.sent_by = [0] * chunks
        self.ready_ns, self.granted_ns = now_ns, -1
        self.columns.bytes[0] = self.columns.bytes_left[0] = wire_bytes
        self.columns.rate[0] = 0.0
        self.state = TransferState.WAITING
        self.view = self._view()  # which keeps its bytes by value

    @property
    def in_flight(self) -> int:
        """Chunks that ranks were told to send and have not all sent."""
        return self.granted - self.completed

    def row(self, now_ns: int) -> SentRow:
        """Return what is recorded of it, at its end."""
        times = self.ready_ns, self.granted_ns, now_ns
        return SentRow(self.job.job.job_id, self.iteration, self.name, self.message_bytes, self.chunks, *times)


@dataclass(eq=False)
class LiveJob:
    """A job that waits, runs, or is done.

    Parameters
    ----------
    job, number
        What it is, and its place among the jobs of the run.
    in_buckets
        Whether its all-reduces are the buckets of a training script, and not tasks of its graph.
    """

    job: Job
    number: int
    in_buckets: bool = False
    ranks: list[GateRank] = field(default_factory=list)
    gpus: tuple[int, ...] = ()
    ring: RingLinks = field(default_factory=lambda: RingLinks((), 0.0))
    transfers: dict[int, LiveTransfer] = field(default_factory=dict)
    placed_ns: int = -1
    began_ns: int = -1
    finished_ns: int = -1
    iterated: list[int] = field(default_factory=list)
    compute_left_ns: dict[int, int] = field(default_factory=dict)
    loads: list[tuple[int, Sequence[int], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        records = make_records("job", 1)
        write_fields(JobView, records, [self.job])
        self.columns = Columns(records)
        self.view = JobView(self.job, self.number, self.columns, 0)

    def place(
        self,
        gpus: Sequence[int],
        servers: Sequence[int],
        planned: Sequence[PlannedTransfer],
        costs: CommunicationCosts,
        now_ns: int,
    ) -> None:
        """Note where it runs from now on, and what its collectives then put on the network."""
        dag = self.job.dag
        self.gpus, self.ring, self.placed_ns = tuple(gpus), costs.network.ring(servers), now_ns
        places = {task.name: place for place, task in enumerate(dag.tasks)}
        self.loads = [
            (places[task.name], workers, costs.load_ns(plan))
            for (task, workers), plan in zip(collectives_of(dag, len(gpus)), planned, strict=True)
        ]
        self.compute_left_ns = dict.fromkeys(gpus, self.job.compute_ns * self.job.iterations)
        self.columns.start_ns[0] = now_ns
        self.columns.communication_ns[0] = costs.iteration_ns(dag, planned)
        self.view._placed(tuple(gpus), tuple(servers))

    def transfer(self, task: int, clock: Columns) -> LiveTransfer:
        """Return the transfer of a task."""
        if task not in self.transfers:
            name = f"bucket-{task}" if self.in_buckets else self.job.dag.tasks[task].name
            self.transfers[task] = LiveTransfer(self, task, name, clock)
        return self.transfers[task]

    def computed(self, duration_ns: int, gpus: Sequence[int]) -> None:
        """Note that a task has ended on some of its GPUs."""
        left = self.columns.remaining_service_ns.item(0) - duration_ns * len(gpus)
        self.columns.remaining_service_ns[0] = max(left, 0)
        for gpu in gpus:
            self.compute_left_ns[gpu] -= duration_ns

    def load_ns(self, gpu: int) -> int:
        """Return what is left of it on one of its GPUs: compute, and communication that crosses links."""
        worker = self.gpus.index(gpu)
        sent = (load_ns * self.ends_left(task) for task, workers, load_ns in self.loads if worker in workers)
        return self.compute_left_ns[gpu] + sum(sent)

    def ends_left(self, task: int) -> int:
        """Return in how many iterations a collective is still to end."""
        return self.job.iterations - (self.transfers[task].times_ended if task in self.transfers else 0)

    def iterate(self, rank: int) -> bool:
        """Note that a rank has ended an iteration; return whether the job is done."""
        self.iterated[rank] += 1
        self.columns.iterations_left[0] = left = self.job.iterations - min(self.iterated)
        return bool(left == 0)


@dataclass(frozen=True)
class _Ready:
    job: LiveJob
    rank: GateRank
    task: int


@dataclass
class ProcessorSlots:
    """Who computes on each GPU, and who waits to."""

    policies: CheckedPolicies
    running: dict[int, _Ready] = field(default_factory=dict)
    ready: dict[int, list[_Ready]] = field(default_factory=dict)

    def wants(self, job: LiveJob, rank: GateRank, task: int, gpu: int) -> None:
        """Note that a task is ready on a GPU."""
        self.ready.setdefault(gpu, []).append(_Ready(job, rank, task))

    def ended(self, gpu: int) -> None:
        """Note that what computed on a GPU has ended."""
        self.running.pop(gpu, None)

    def decide(self, now_ns: int) -> None:
        """Let every idle GPU take the ready task of the smallest key; ties go to the lower job, then task."""
        for gpu, waiting in self.ready.items():
            if gpu in self.running or not waiting:
                continue
            first = self.policies.in_order((one.job.view for one in waiting), s_from_ns(now_ns))[0]
            chosen = min((one for one in waiting if one.job.number == first), key=lambda one: one.task)
            waiting.remove(chosen)
            self.running[gpu] = chosen
            chosen.rank.send({"do": "compute", "task": chosen.task, "gpu": gpu})


_ABSENT_BYTES = -2
"""Below what is left of a GPU that one job has for itself."""


class Placements:
    """The queue, and what each GPU holds."""

    def __init__(self, cluster: Cluster, policies: CheckedPolicies, costs: CommunicationCosts) -> None:
        self._cluster, self._policies, self._costs = cluster, policies, costs
        self._gpus = Columns(make_records("gpu", cluster.num_gpus))
        self._gpus.server[:] = cluster.server_of_gpu
        self._gpus.free_bytes[:] = self._empty = np.broadcast_to(cluster.gpu_memory_bytes, cluster.num_gpus).copy()
        self._residents: dict[int, list[LiveJob]] = {}
        self.queue: list[LiveJob] = []
        self.changed = False
        self._by_number: dict[int, LiveJob] = {}
        self._now_ns = 0

    def arrive(self, job: LiveJob) -> None:
        """Let a job wait for GPUs."""
        self.queue.append(job)
        self.changed = True

    def free(self, job: LiveJob) -> None:
        """Free the GPUs of a job."""
        for gpu in job.gpus:
            self._residents[gpu].remove(job)
            self._gpus.num_residents[gpu] -= 1
            taken = sum(other.job.gpu_memory_bytes for other in self._residents[gpu])
            self._gpus.free_bytes[gpu] = self._empty[gpu] - taken
        self.changed = True

    def shut(self, gpus: list[int]) -> None:
        """Let nobody have GPUs: their server is not there, or somebody else has them."""
        self._gpus.free_bytes[gpus] = _ABSENT_BYTES

    def stops(self, running: Sequence[LiveJob], now_ns: int) -> list[LiveJob]:
        """Take off their GPUs those of the running jobs that the order stops for the queue, and return them."""
        jobs = {job.number: job for job in sorted(running, key=lambda job: job.number)}
        queue = self._queued(now_ns) if self.queue and jobs else JobQueue(np.zeros(0, np.int64), {})
        views = [job.view for job in jobs.values()]
        self._by_number = jobs
        return [jobs[n] for n in stop_running(self._policies, views, queue, self.view(now_ns), self)]

    def decide(self, now_ns: int) -> list[LiveJob]:
        """Ask the placement policy about the queued jobs, in the queue's order; return those that were placed."""
        self.changed, self._now_ns = False, now_ns
        queue = self._queued(now_ns)
        placed = start_queued(self._policies, queue, self.view(now_ns), self)
        self.queue = [self._by_number[number] for number in queue.numbers.tolist() if number not in placed]
        return [self._by_number[number] for number in placed]

    def _queued(self, now_ns: int) -> JobQueue:
        """Return the queue in its order."""
        self._by_number = {job.number: job for job in self.queue}
        numbers = self._policies.in_order((job.view for job in self.queue), s_from_ns(now_ns))
        return JobQueue(np.array(numbers, np.int64), {n: job.view for n, job in self._by_number.items()})

    def next_fitting(self, queue: JobQueue, place: int) -> int:
        """Return the first place in the queue, from ``place`` on, of a job that enough GPUs have room for, or -1."""
        jobs = ((at, queue[at]) for at in range(place, len(queue)))
        return next((at for at, job in jobs if len(self._eligible(job.memory_bytes)) >= job.num_gpus), -1)

    def put(self, number: int, gpus: list[int]) -> None:
        """Let a job of the queue have GPUs."""
        self.seat(self._by_number[number], gpus, self._now_ns)

    def leave(self, number: int) -> None:
        """Free the GPUs of one of the running jobs that were looked at last."""
        self.free(self._by_number[number])

    def seat(self, job: LiveJob, gpus: Sequence[int], now_ns: int) -> None:
        """Let a job have GPUs."""
        planned = self._costs.planned(job.job.dag, gpus)
        job.place(gpus, self._costs.servers_of(gpus), planned, self._costs, now_ns)
        for gpu in gpus:
            self._residents.setdefault(gpu, []).append(job)
            self._gpus.num_residents[gpu] += 1
            self._gpus.free_bytes[gpu] -= job.job.gpu_memory_bytes
            if self._cluster.exclusive:
                self._gpus.free_bytes[gpu] = -1

    def view(self, now_ns: int) -> ClusterView:
        """Return the cluster as policies see it."""
        return ClusterView(
            self._gpus,
            self._cluster,
            self._loads,
            self._eligible,
            now_ns,
            self._costs.network,
            self._views_on,
            self._costs.all_reduce_s,
        )

    def _views_on(self, gpu: int) -> list[JobView]:
        return [job.view for job in sorted(self._residents.get(gpu, []), key=lambda job: job.number)]

    def _eligible(self, memory_bytes: int) -> np.ndarray:
        return np.flatnonzero(self._gpus.free_bytes >= memory_bytes)

    def _loads(self, gpus: np.ndarray) -> np.ndarray:
        """Return the loads of GPUs: remaining compute and, across servers, communication, nanoseconds."""
        loads = [sum(job.load_ns(gpu) for job in self._residents.get(gpu, [])) for gpu in gpus.tolist()]
        return np.array(loads, np.int64)
