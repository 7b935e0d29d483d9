"""Real jobs in the records that the simulator's views read: one definition of what policies see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ddlsched.engine.decisions.costs import CommunicationCosts, PlannedTransfer, collectives_of
from ddlsched.engine.records.layout import Columns, make_records
from ddlsched.network.topology import RingLinks
from ddlsched.policies.network_views import TransferState
from ddlsched.policies.view_parts import write_fields
from ddlsched.policies.views import JobView, TransferView
from ddlsched.workload.job import Job

__all__ = ["LiveJob", "LiveRank", "LiveTransfer", "SentRow"]

_TASKS = 1 << 20
"""More tasks than a job has: a transfer's number orders by job, then by task."""


class LiveRank(Protocol):
    """The process of a job on a server, as the gate knows it."""

    @property
    def server(self) -> int:
        """Where it is."""
        ...

    @property
    def address(self) -> str:
        """Where the other ranks of its job reach it."""
        ...

    def send(self, message: dict[str, Any]) -> None:
        """Tell it something."""
        ...


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
        number = self.job.number * _TASKS + self.task
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
    ranks: list[LiveRank] = field(default_factory=list)
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
