"""The oracle: the simulator's semantics once more, deliberately slow and simple.

It shares no code with the engine: plain objects, linear scans instead of heaps, sets of ended tasks
instead of counters. Orders, communication policies and contention models are the classes that the engine is given,
called as plain Python: jobs, transfers and the network have the attributes of the views that policies read. When they
are asked, and what follows from their answers, is written out here again, as placements are. Given to it from outside
are also the links of collectives, and what is drawn at random (which GPUs are slow, when servers fail).
:meth:`Simulation.round` is the five steps of the engine's documentation, in order. Meant for small workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from reference_backfilling import NAMES, Waiting
from reference_elastic import Elastic, iterations_for
from reference_moves import Moves
from reference_network import Flow, Loads, NetworkNow, Transfer, joined, least_link_rate, meet, scatter, shares

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.capacity_changes import CapacityChange, FailurePlaces, Strike
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances, jitter_factors
from ddlsched.cluster.interference import InterferenceModel
from ddlsched.network.collectives import Card, Rank
from ddlsched.network.contention import ContentionModel, ring_bytes
from ddlsched.network.topology import Network, Path, Topology
from ddlsched.network.traffic import TaskMessage, Traffic, traffic_of
from ddlsched.plugins.names import resolve
from ddlsched.workload.dag import CollectiveTask, ComputeTask
from ddlsched.workload.elastic_job import ElasticJob, Rescale
from ddlsched.workload.job import Job, Workload

NS_PER_S = 1e9
NO_TRAFFIC = Traffic((), 0.0, (), 0.0)
UNKNOWN = 2**62


@dataclass(frozen=True, kw_only=True)
class ReferenceOutcome:
    """When a job was placed and finished (-1: never), its last GPUs in placement order, and what it did when.

    ``phases_ns`` are queueing, computing, waiting for GPUs, communicating, waiting for the network, restarting;
    ``busy_ns`` is the compute time on all its GPUs.
    """

    start_ns: int
    finish_ns: int
    gpus: tuple[int, ...]
    phases_ns: tuple[int, ...]
    busy_ns: int
    lost_ns: int
    restarts: int
    samples_left: int


@dataclass(frozen=True, kw_only=True)
class ComputeInterval:
    """A compute task of one worker on its GPU; ``task`` is its number in the DAG.

    One that a failure cuts short keeps the end that it would have had.
    """

    gpu: int
    job_id: str
    task: int
    iteration: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class TransferSegment:
    """A stretch of time in which a transfer kept one rate; pauses and stretches of length 0 are left out.

    ``sent_bytes`` is rate x time not spent in latency, uncapped: the segments of a transfer add up to its
    ``wire_bytes`` and at most what the last rate sends in a nanosecond more. Each link gets its share of them.
    """

    job_id: str
    task: int
    iteration: int
    links: tuple[int, ...]
    shares: tuple[float, ...]
    wire_bytes: float
    start_ns: int
    end_ns: int
    rate_bytes_per_s: float
    sent_bytes: float


@dataclass(frozen=True, kw_only=True)
class ReferenceRun:
    """Everything that happened; ``events`` counts the ends of compute tasks and of transfers between servers.

    ``changes`` are those of elastic jobs: job number, what changed, and for how long the job held its GPUs (ns).
    """

    jobs: dict[str, ReferenceOutcome]
    compute: list[ComputeInterval]
    transfers: list[TransferSegment]
    events: int
    changes: list[tuple[int, Rescale, int]]


class RunningJob:
    """A job, queued or placed, and how far it has come; policies read it.

    A worker is named by its GPU. What a worker has begun and done of the current iteration are sets of
    (task, gpu); a collective is begun and done by all workers of a tuple at once.
    """

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number = job, number
        self.job_id, self.model, self.user, self.dag = job.job_id, job.model, job.user, job.dag
        self.arrival_s, self.arrival_ns = job.arrival_s, job.arrival_ns
        self.predicted = job.iterations  # what policies take it to have
        self.gpu_memory_mb, self.memory_bytes = job.gpu_memory_mb, job.gpu_memory_bytes
        self.num_gpus = job.num_gpus  # of an elastic job those it has, or had last
        tasks = job.dag.tasks
        self.durations_ns = {i: task.duration_ns for i, task in enumerate(tasks) if isinstance(task, ComputeTask)}
        self.collectives = {i: task for i, task in enumerate(tasks) if isinstance(task, CollectiveTask)}
        self.loads_ns: dict[
            tuple[int, int], int
        ] = {}  # of a collective that crosses links, on each GPU that takes part
        numbers = {task.name: i for i, task in enumerate(tasks)}
        self.predecessors = [[numbers[name] for name in task.after] for task in tasks]
        self.everywhere: dict[tuple[int, int], set[tuple[int, int]]] = {}  # parts in a task, by task and tuple
        self.waits_for: dict[tuple[int, int], set[tuple[int, int]]] = {}  # by part, those that end before it begins
        self.gpus: tuple[int, ...] = ()  # in placement order, as the servers
        self.last_gpus: tuple[int, ...] = ()
        self.servers: tuple[int, ...] = ()
        self.traffic: dict[tuple[int, int], Traffic] = {}  # by task and tuple
        self.candidates: set[int] = set()  # links that it may cross, if paths change
        self.communication_ns = 0  # of one iteration, without contention; 0 while queued and on one server
        self.service_left_ns = job.service_ns
        self.iteration = self.placed_iteration = 0  # the first is also the number of iterations that have ended
        self.iteration_ns = 0  # when the current one began
        self.samples_placed = job.samples if isinstance(job, ElasticJob) else 0  # left when it was placed last
        self.batch = 0
        self.hold_until_ns = -1
        self.cut_service_ns = 0  # what stops undid
        self.attained_before_ns = 0  # service of earlier stays, of an elastic job
        self.begun: set[tuple[int, int]] = set()
        self.done: set[tuple[int, int]] = set()
        self.start_ns = self.placed_ns = self.finish_ns = -1
        self.restarts = 0
        self.restarts_until_ns = (
            -1
        )  # while it holds its GPUs to start again: the end of that, UNKNOWN if state is to come
        self.hangs_until_ns = -1  # of one that a failure has hit, until that is noticed
        self.hold_ns = 0  # for how long it holds them once its state has come
        self.leaving: int = 0  # 1: it is to move when its iteration ends; 2: that has ended
        self.checkpoint_ns = -1  # when its work was safe last
        self.phases_ns = [0] * 6
        self.busy_ns = self.lost_ns = 0

    @property
    def samples_left(self) -> int:
        return max(self.samples_placed - (self.iteration - self.placed_iteration) * self.batch, 0)

    @property
    def to_go(self) -> int:
        """The iterations that it has left."""
        if isinstance(self.job, ElasticJob):
            return iterations_for(self.samples_left, self.batch)
        return self.job.iterations - self.iteration

    @property
    def iterations_left(self) -> int:
        """Those that policies take it to have left."""
        if self.predicted == self.job.iterations or self.to_go == 0:
            return self.to_go
        return max(self.predicted - self.iteration, 1)

    @property
    def iterations(self) -> int:
        return self.predicted

    @property
    def remaining_service_ns(self) -> int:
        return self.service_left_ns + self.service_of(self.iterations_left - self.to_go)

    def tuples(self, task: int) -> list[tuple[int, ...]]:
        """The workers that do a task together, by their place in the job's GPUs."""
        group = self.dag.tasks[task].group
        return [tuple(range(self.num_gpus))] if group is None else list(self.dag.groups[group])

    def take(self, gpus: list[int]) -> None:
        """Become placed: each GPU takes part in some tasks, and waits for its own parts in what comes before them."""
        self.gpus = self.last_gpus = tuple(gpus)
        self.everywhere = {
            (task, place): {(task, gpus[worker]) for worker in workers}
            for task in range(len(self.predecessors))
            for place, workers in enumerate(self.tuples(task))
        }
        parts = set().union(*self.everywhere.values())
        self.waits_for = {
            (task, gpu): {(other, gpu) for other in self.predecessors[task]} & parts for task, gpu in parts
        }

    def computes_ns(self) -> list[int]:
        """What each worker computes in an iteration."""
        runs = {task: {w for members in self.tuples(task) for w in members} for task in self.durations_ns}
        return [sum(ns for task, ns in self.durations_ns.items() if w in runs[task]) for w in range(self.num_gpus)]

    @property
    def compute_ns(self) -> int:
        return max(self.computes_ns())

    def service_of(self, iterations: int) -> int:
        return iterations * sum(self.computes_ns()) if iterations else 0

    @property
    def service_ns(self) -> int:
        left = iterations_for(self.samples_placed, self.batch) or self.iterations
        return self.attained_before_ns + self.service_of(left)

    @property
    def attained_service_ns(self) -> int:
        if isinstance(self.job, ElasticJob):
            return self.service_ns - self.service_left_ns
        return self.service_of(self.job.iterations) - self.service_left_ns

    @property
    def used_service_ns(self) -> int:
        return self.attained_service_ns + self.cut_service_ns

    @property
    def remaining_service_per_gpu_ns(self) -> tuple[int, float]:
        return self.remaining_service_ns // self.num_gpus, self.remaining_service_ns % self.num_gpus / self.num_gpus

    @property
    def remaining_time_ns(self) -> tuple[int, float]:
        whole_ns, rest = self.remaining_service_per_gpu_ns
        return whole_ns + self.iterations_left * self.communication_ns, rest

    @property
    def remaining_communication_ns(self) -> int:
        return self.iterations_left * self.communication_ns * self.num_gpus

    @property
    def message_bytes(self) -> float:
        return sum(task.message_bytes * len(self.tuples(i)) for i, task in self.collectives.items())

    @property
    def start_s(self) -> float | None:
        return self.start_ns / NS_PER_S if self.servers else None

    def fit(self, num_gpus: int, batch: int) -> None:
        """Take on the size that an elastic job has from now on."""
        self.num_gpus, self.batch = num_gpus, batch
        self.durations_ns = {0: max(round(self.job.curve.iteration_s(num_gpus, batch) * NS_PER_S), 1)}
        self.service_left_ns = self.service_of(iterations_for(self.samples_placed, batch))

    @property
    def finished(self) -> bool:
        return bool(self.gpus) and self.to_go == 0

    def ready_parts(self) -> set[tuple[int, int]]:
        """The parts in tasks from which nothing keeps their GPUs."""
        return {part for part in self.waits_for.keys() - self.begun if self.waits_for[part] <= self.done}

    def ready_collectives(self) -> list[tuple[int, int]]:
        """Those for which all GPUs of a tuple are ready."""
        ready = self.ready_parts()
        return [pair for pair, parts in self.everywhere.items() if pair[0] in self.collectives and parts <= ready]

    def iteration_is_over(self) -> bool:
        return self.done == set(self.waits_for)

    def compute_left_on(self, gpu: int) -> int:
        """What is left to compute in all iterations on one GPU."""
        return self.left({(task, gpu): ns for task, ns in self.durations_ns.items() if (task, gpu) in self.waits_for})

    def communication_left_on(self, gpu: int) -> int:
        return self.left({pair: ns for pair, ns in self.loads_ns.items() if pair[1] == gpu})

    def left(self, amounts_ns: dict[tuple[int, int], int]) -> int:
        done_ns = sum(ns for pair, ns in amounts_ns.items() if pair in self.done)
        return self.to_go * sum(amounts_ns.values()) - done_ns


def parse(name: str) -> tuple[str, dict[str, str]]:
    """Split ``name:parameter=value``."""
    first, *parameters = name.split(":")
    return first, dict(parameter.split("=") for parameter in parameters)


def form_of(policy: Any, *methods: str) -> str:
    """Return which of the methods a policy's class has, the nearest if it inherits another."""
    return next(method for kind in type(policy).__mro__ for method in methods if method in vars(kind))


@dataclass(kw_only=True)
class Simulation:
    """One run; the steps read the instant from ``now_ns`` and note in two flags what later steps must redo."""

    cluster: Cluster
    network: Network
    model: ContentionModel
    load_per_byte_s: float
    placement: str
    order: Any
    communication: Any
    path: Any
    disturbances: Disturbances
    slowdowns: list[float]
    jitter_seed: int
    jitter: np.ndarray
    changes: list[CapacityChange | Strike]
    to_come: list[RunningJob]
    now_ns: int = 0
    queue: list[RunningJob] = field(default_factory=list)
    residents: list[RunningJob] = field(default_factory=list)
    computing: list[tuple[RunningJob, ComputeInterval]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)  # waiting, paused and running
    keys: dict[RunningJob, Any] = field(default_factory=dict)  # of jobs that this instant may choose between
    rated: tuple[list[Transfer], list[Transfer]] = ([], [])  # running and not, when rates were asked last
    ended_parts: set[Transfer] = field(default_factory=set)
    jobs_changed: bool = False
    transfers_changed: bool = False
    compute: list[ComputeInterval] = field(default_factory=list)
    segments: list[TransferSegment] = field(default_factory=list)
    events: int = 0
    down: set[int] = field(default_factory=set)
    slowdowns_at_first: list[float] = field(default_factory=list)
    elastic: Elastic | None = None
    interference: InterferenceModel | None = None
    waiting: Waiting | None = None
    moves: Moves | None = None

    def run(self, until_ns: int | None) -> None:
        while (instant := self.next_instant()) is not None:
            if until_ns is not None and instant > until_ns:
                self.count_time(until_ns)
                self.now_ns = until_ns
                for transfer in self.transfers:
                    self.record_segment(transfer)
                return
            self.count_time(instant)
            self.now_ns = instant
            self.round()
        if self.queue or self.residents:
            stuck = [state.job.job_id for state in self.queue + self.residents]
            raise RuntimeError(f"these jobs can never be placed or never finish: {stuck}")

    @property
    def now_s(self) -> float:
        return self.now_ns / NS_PER_S

    def transfers_by_number(self) -> list[Transfer]:
        return sorted(self.transfers, key=lambda t: t.number)

    def next_instant(self) -> int | None:
        """The next arrival or end; now, once more, if a job finished after step 3 and has yet to leave."""
        arrivals = [state.job.arrival_ns for state in self.to_come]
        ends = [task.end_ns for _, task in self.computing] + [t.end_ns for t in self.transfers if t.end_ns is not None]
        ends += [t.part_ns for t in self.transfers if t.part_ns is not None]
        leaves = [self.now_ns for state in self.residents if state.finished]
        restarts = [state.restarts_until_ns for state in self.residents if 0 <= state.restarts_until_ns < UNKNOWN]
        unfinished = self.to_come + self.queue + self.residents
        changes = [change.time_ns for change in self.changes] if unfinished else []
        wakes = [self.elastic.wake_ns] if self.elastic and self.elastic.wake_ns is not None and unfinished else []
        return min(arrivals + ends + leaves + restarts + changes + wakes, default=None)

    def count_time(self, until_ns: int) -> None:
        """Nothing changes from now until then: say what each job does and each GPU computes in that time."""
        passed_ns = until_ns - self.now_ns
        for state in self.queue:
            state.phases_ns[0] += passed_ns
        for state in self.residents:
            state.phases_ns[self.phase(state)] += passed_ns
        for state, _ in self.computing:
            state.busy_ns += passed_ns

    def phase(self, state: RunningJob) -> int:
        mine = [transfer for transfer in self.transfers if transfer.job is state]
        if mine:
            return 3 if any(transfer.is_active for transfer in mine) else 4
        if state.restarts_until_ns >= 0:
            return 5
        return 1 if any(other is state for other, _ in self.computing) else 2

    def round(self) -> None:
        self.jobs_changed = self.transfers_changed = False
        self.keys = {}
        self.end_compute_tasks()  # step 1
        self.end_transfers()
        self.take_in_arrivals()
        self.end_restarts()
        for state in self.residents:  # step 2
            self.advance(state)
        self.change_capacity()
        self.rank(least=1 if self.jobs_changed or any(state.finished for state in self.residents) else 2)
        self.let_finished_jobs_leave()  # step 3
        if self.elastic and self.elastic.wake_ns == self.now_ns:
            self.elastic.wake_ns = None
            self.jobs_changed = True
        if self.jobs_changed and self.elastic:
            self.elastic.decide(self)
            self.rank()
        rigid = any(not isinstance(state.job, ElasticJob) for state in self.queue)
        if self.jobs_changed and (rigid or (self.moves and self.moves.placement)):
            if self.moves:
                self.moves.leave(self)
            self.place_queue()
            if self.moves:
                self.moves.plan(self)
            self.jobs_changed = False
            self.rank()
        self.choose_paths()  # step 4
        if self.transfers_changed:
            self.choose_transfers()
        self.ask_rates()
        self.fill_idle_gpus()  # step 5

    # Step 1

    def end_compute_tasks(self) -> None:
        for state, task in [pair for pair in self.computing if pair[1].end_ns == self.now_ns]:
            self.computing.remove((state, task))
            state.done.add((task.task, task.gpu))
            state.service_left_ns -= state.durations_ns[task.task]
            self.events += 1

    def end_transfers(self) -> None:
        for transfer in [t for t in self.transfers if t.end_ns == self.now_ns]:
            self.record_segment(transfer)
            self.transfers.remove(transfer)
            self.transfers_changed = True
            if transfer.task < 0:
                self.state_has_come(transfer.job)
            else:
                transfer.job.done |= transfer.job.everywhere[transfer.task, transfer.place]
            self.events += 1
        self.ended_parts = {t for t in self.transfers if t.part_ns == self.now_ns}
        for transfer in self.ended_parts:
            transfer.end_part()

    def state_has_come(self, state: RunningJob) -> None:
        if not any(transfer.job is state for transfer in self.transfers):
            state.restarts_until_ns = self.now_ns + state.hold_ns

    def take_in_arrivals(self) -> None:
        for state in [s for s in self.to_come if s.job.arrival_ns == self.now_ns]:
            self.to_come.remove(state)
            self.queue.append(state)
            self.jobs_changed = True

    def end_restarts(self) -> None:
        for state in self.residents:
            if state.restarts_until_ns == self.now_ns:
                state.restarts_until_ns = -1
                state.checkpoint_ns = state.iteration_ns = self.now_ns

    # Step 2

    def advance(self, state: RunningJob) -> None:
        """Take a job as far as it gets without time passing: collectives become ready, iterations end."""
        while not state.finished and state.restarts_until_ns < 0 and state.leaving < 2:
            if ready := state.ready_collectives():
                for task, place in ready:
                    self.collective_is_ready(state, task, place)
            elif state.iteration_is_over():
                state.begun, state.done = set(), set()
                state.iteration += 1
                state.iteration_ns = self.now_ns
                if (state.iteration - state.placed_iteration) % self.disturbances.checkpoint_iterations == 0:
                    state.checkpoint_ns = self.now_ns
                if state.finished:
                    state.finish_ns = self.now_ns
                elif state.leaving:
                    state.leaving = 2
                    self.jobs_changed = True
            else:
                return

    def collective_is_ready(self, state: RunningJob, task: int, place: int) -> None:
        state.begun |= state.everywhere[task, place]
        traffic = state.traffic[task, place]
        if not traffic.links:
            state.done |= state.everywhere[task, place]
            return
        transfer = Transfer(
            simulation=self,
            job=state,
            task=task,
            place=place,
            links=traffic.links,
            shares=traffic.shares,
            message_bytes=traffic.wire_bytes,
            bytes_kept=traffic.wire_bytes,
            latency_left_ns=(self.model.latency_s + traffic.latency_s) * NS_PER_S,
        )
        self.transfers.append(transfer)
        self.transfers_changed = True

    # Between steps 2 and 3

    def change_capacity(self) -> None:
        now = [change for change in self.changes if change.time_ns == self.now_ns]
        changes = [change for change in now if isinstance(change, CapacityChange)]
        strikes = [change for change in now if isinstance(change, Strike)]
        for strike in strikes:
            self.changes.remove(strike)
            self.jobs_changed = True
        stopped: list[tuple[RunningJob, int]] = []
        for change in changes:
            self.changes.remove(change)
            self.jobs_changed = True
            if change.fails:
                self.down.add(change.server)
            else:
                self.down.remove(change.server)
                first, end = self.cluster.first_gpus[change.server : change.server + 2]
                self.slowdowns[first:end] = self.slowdowns_at_first[first:end]
        for change in sorted((change for change in changes if change.fails), key=lambda change: change.warned):
            for state in [s for s in self.residents if change.server in s.servers and not s.finished]:
                before = state.samples_left
                self.stop(state, 1 if change.warned else self.disturbances.checkpoint_iterations)
                stopped.append((state, state.samples_left - before))
        for state, lost_samples in stopped:
            if self.elastic:
                self.elastic.lose(self, state, lost_samples)
        for strike in strikes:
            self.hit(strike)

    def hit(self, strike: Strike) -> None:
        """Jobs hang where they are and start again there; those that hang already go on hanging."""
        for gpu in strike.gpus:
            self.slowdowns[gpu] *= strike.slowdown
        hit = [s for s in self.residents if s.number == strike.job or set(s.gpus) & set(strike.gpus)]
        for state in sorted(hit, key=lambda s: s.number):
            if strike.hang_ns is None or state.finished or self.now_ns <= state.hangs_until_ns:
                continue
            gpus = list(state.gpus)
            self.stop(state, self.disturbances.checkpoint_iterations)
            self.queue.remove(state)
            self.place(state, gpus, strike.hang_ns + round(self.disturbances.restart_s * NS_PER_S))
            state.hangs_until_ns = self.now_ns + strike.hang_ns

    def stop(self, state: RunningJob, commit_iterations: int) -> None:
        """Take a job off its GPUs, with the work since its last commit lost."""
        self.residents.remove(state)
        self.queue.append(state)
        self.computing = [pair for pair in self.computing if pair[0] is not state]
        for transfer in [t for t in self.transfers if t.job is state]:
            self.record_segment(transfer)
            self.transfers.remove(transfer)
            self.transfers_changed = True
        if state.restarts_until_ns < 0:
            state.lost_ns += self.now_ns - (state.iteration_ns if commit_iterations == 1 else state.checkpoint_ns)
        state.iteration -= (state.iteration - state.placed_iteration) % commit_iterations
        if isinstance(state.job, ElasticJob):
            state.attained_before_ns += state.service_of(state.iteration - state.placed_iteration)
            state.samples_placed = state.samples_left
        state.placed_iteration = state.iteration
        state.cut_service_ns += state.service_of(state.to_go) - state.service_left_ns
        state.service_left_ns = state.service_of(state.to_go)
        state.begun, state.done = set(), set()
        state.gpus, state.servers, state.traffic, state.communication_ns = (), (), {}, 0
        state.loads_ns = {}
        state.restarts += 1
        state.restarts_until_ns = state.hangs_until_ns = -1
        state.leaving = 0

    # Between these and step 3, and after placement

    def rivals(self) -> list[RunningJob]:
        """The jobs that the rest of this instant may have to choose between."""
        rivals = {transfer.job for transfer in self.transfers_in_job_order()} if self.transfers_changed else set()
        if self.jobs_changed or any(state.finished for state in self.residents):
            rivals |= {state for state in self.queue if not isinstance(state.job, ElasticJob)}
        for ready in self.ready_by_gpu().values():
            states = {state for state, _ in ready}
            rivals |= states if len(states) > 1 else set()
        return sorted(rivals, key=lambda state: state.number)

    def rank(self, least: int = 0) -> None:
        """Ask the order once for each of some rivals: its answers may depend on how often it was asked."""
        if len(rivals := self.rivals()) >= least:
            self.keys = {state: (self.order.key(state, self.now_s), state.number) for state in rivals}

    # Step 3

    def let_finished_jobs_leave(self) -> None:
        for state in [s for s in self.residents if s.finished]:
            self.residents.remove(state)
            self.jobs_changed = True

    def place_queue(self) -> None:
        rigid = [state for state in self.queue if not isinstance(state.job, ElasticJob)]
        rigid.sort(key=lambda s: self.keys.get(s, s))
        if self.waiting:
            self.waiting.begin_round(self, rigid)
        for state in rigid:
            gpus = self.gpus_for(state)
            if len(gpus) == state.job.num_gpus:
                self.queue.remove(state)
                restart_ns = round(self.disturbances.restart_s * NS_PER_S) if state.restarts else 0
                self.place(state, gpus, restart_ns)

    def gpus_for(self, state: RunningJob) -> list[int]:
        """The first eligible GPUs in the placement policy's order; too few if the job does not fit."""
        name, parameters = parse(self.placement)
        gpus = [gpu for gpu in range(self.cluster.num_gpus) if self.free_bytes(gpu) >= state.job.gpu_memory_bytes]
        if self.waiting:
            return self.waiting.gpus_for(self, state, gpus)
        if name == "list-scheduling" or (name == "lwf" and state.job.num_gpus <= int(parameters["kappa"])):
            gpus.sort(key=lambda gpu: (self.load_ns(gpu), gpu))
        elif name == "lwf":
            gpus.sort(key=lambda gpu: (self.server_load_ns(self.server(gpu)), self.server(gpu), self.load_ns(gpu), gpu))
        elif name != "first-fit":
            raise ValueError(f"unknown placement {self.placement!r}")
        return gpus[: state.job.num_gpus]

    def free_bytes(self, gpu: int) -> int:
        if self.server(gpu) in self.down or any(
            gpu in s.gpus and (self.cluster.exclusive or isinstance(s.job, ElasticJob)) for s in self.residents
        ):
            return -1
        if self.moves and self.cluster.exclusive and any(gpu in gpus for gpus in self.moves.reserved.values()):
            return -1
        taken = sum(s.job.gpu_memory_bytes for s in self.residents if gpu in s.gpus)
        if self.moves:
            taken += sum(s.job.gpu_memory_bytes for s, gpus in self.moves.reserved.items() if gpu in gpus)
        return int(self.cluster.gpu_memory_bytes[gpu]) - taken

    def load_ns(self, gpu: int) -> int:
        residents = [state for state in self.residents if gpu in state.gpus]
        compute_ns = sum(self.compute_left_ns(state, gpu) for state in residents)
        speed = float(self.cluster.relative_speed[gpu])
        return round(compute_ns / speed) + sum(state.communication_left_on(gpu) for state in residents)

    def compute_left_ns(self, state: RunningJob, gpu: int) -> int:
        left_ns = state.compute_left_on(gpu)
        return round(left_ns / self.kind_speed(state, gpu)) if self.cluster.throughputs else left_ns

    def kind_speed(self, state: RunningJob, gpu: int) -> float:
        """How fast the job's model is on the kind of a GPU."""
        throughputs = self.cluster.throughputs
        if throughputs is None:
            return 1.0
        found = {(model, kind): value for model, kind, value in throughputs.values}
        kind = self.cluster.servers[self.server(gpu)].gpu_kind
        reference = throughputs.reference_kind
        return found[state.model, kind] / (found[state.model, reference] if reference else 1.0)

    def server_load_ns(self, server: int) -> Fraction:
        loads = [self.load_ns(gpu) for gpu in range(self.cluster.num_gpus) if self.server(gpu) == server]
        return Fraction(sum(loads), len(loads))

    def server(self, gpu: int) -> int:
        return int(self.cluster.server_of_gpu[gpu])

    def place(self, state: RunningJob, gpus: list[int], hold_ns: int) -> None:
        state.take(gpus)
        state.servers = tuple(dict.fromkeys(self.server(gpu) for gpu in gpus))
        state.placed_ns = state.checkpoint_ns = state.iteration_ns = self.now_ns
        if not state.restarts:
            state.start_ns = self.now_ns
        if hold_ns > 0:
            state.restarts_until_ns = self.now_ns + hold_ns
        self.connect(state)
        self.residents.append(state)
        if self.moves:
            self.moves.send_state(self, state, hold_ns)
        self.advance(state)

    def connect(self, state: RunningJob) -> None:
        ranks, way = [self.rank_on(gpu) for gpu in state.gpus], self.way_of(state)
        state.candidates = set()
        if self.paths_change:
            way = self.own_way(state)
        for number, task in state.collectives.items():
            longest_ns = 0
            for place, workers in enumerate(state.tuples(number)):
                members = [ranks[worker] for worker in workers]
                sent = TaskMessage(task.kind, task.algorithm, task.message_bytes)
                given = self.network, sent, members, partial(ring_bytes, self.model)
                traffic = traffic_of(*given, way) if task.message_bytes else NO_TRAFFIC
                state.traffic[number, place] = traffic
                if traffic.links:
                    latency_s = self.model.latency_s + traffic.latency_s
                    alone_s = latency_s + self.model.alone_per_byte_s * traffic.wire_bytes
                    longest_ns = max(longest_ns, round(alone_s * NS_PER_S))
                    load_ns = round(self.load_per_byte_s * traffic.wire_bytes * NS_PER_S)
                    state.loads_ns |= dict.fromkeys(state.everywhere[number, place], load_ns)
            state.communication_ns += longest_ns

    @property
    def paths_change(self) -> bool:
        """Whether each transfer gets its paths when it becomes ready."""
        return getattr(self.path, "chosen", "placement") == "transfer"

    def way_of(self, state: RunningJob) -> Callable[[Card, Card], Path]:
        chosen: dict[tuple[Card, Card], Path] = {}

        def way(source: Card, target: Card) -> Path:
            if (source, target) not in chosen:
                chosen[source, target] = self.choose_path(state, source, target, list(chosen.values()))
            return chosen[source, target]

        return way

    def own_way(self, state: RunningJob) -> Callable[[Card, Card], Path]:
        """The topology's routes; the job may cross the links of all other paths."""

        def way(source: Card, target: Card) -> Path:
            ends = self.network.node(source), self.network.node(target)
            state.candidates |= {link for path in self.network.paths(*ends) for link in path.links}
            return self.network.route(*ends)

        return way

    def choose_paths(self) -> None:
        """Step 4 begins: what has become ready gets the paths that its flows take."""
        for transfer in self.transfers_by_number() if self.paths_change else ():
            if not transfer.routed and transfer.task >= 0:  # a job's state takes the topology's route
                job, task = transfer.job, transfer.job.collectives[transfer.task]
                members = [self.rank_on(job.gpus[worker]) for worker in job.tuples(transfer.task)[transfer.place]]
                sent = TaskMessage(task.kind, task.algorithm, task.message_bytes)
                given = self.network, sent, members, partial(ring_bytes, self.model)
                traffic = traffic_of(*given, self.way_of(job))
                transfer.links, transfer.shares, transfer.routed = traffic.links, traffic.shares, True
                transfer.latency_left_ns = (self.model.latency_s + traffic.latency_s) * NS_PER_S

    def choose_path(self, state: RunningJob, source: Card, target: Card, before: list[Path]) -> Path:
        """The path of what a job sends from one card to another; that of earlier ones counts."""
        ends = self.network.node(source), self.network.node(target)
        route = self.network.route(*ends)
        if self.path is None:
            return route
        paths = self.network.paths(*ends)
        links = [path.links for path in paths]
        cards = () if self.network.inside is None else (source[1], target[1])
        flow = Flow(len(before), state, source[0], target[0], links, links.index(route.links), cards)
        return paths[self.path.path(flow, Loads(self, [link for path in before for link in path.links]))]

    def rank_on(self, gpu: int) -> Rank:
        """Where a worker is: its server, its place there, and the card that is its; servers of a domain are as one."""
        server, inside = self.server(gpu), self.network.inside
        mates = [other for other in range(self.cluster.num_gpus) if self.server(other) == server]
        place = mates.index(gpu)
        if inside is None:
            return Rank(server, place, 0)
        card = place * inside.cards // len(mates) * inside.planes
        before = [other for other in range(server) if other // inside.servers == server // inside.servers]
        gpus_before = sum(self.server(other) in before for other in range(self.cluster.num_gpus))
        return Rank(server // inside.servers, gpus_before + place, len(before) * self.network.cards + card)

    # Step 4

    def transfers_in_job_order(self) -> list[Transfer]:
        """Those among which the job order chooses: none where transfers have keys, and none that runs to its end."""
        form = form_of(self.communication, "select", "transfer_key", "admit")
        return [t for t in self.transfers if form == "select" or (form == "admit" and not t.is_active)]

    def choose_transfers(self) -> None:
        """Ask in the job order; a transfer that is admitted counts at once for the next."""
        policy, network = self.communication, NetworkNow(self)
        transfers = sorted(self.transfers_in_job_order(), key=lambda t: (self.keys.get(t.job, t.job), t.number))
        form = form_of(policy, "select", "transfer_key", "admit")
        if form == "admit":
            for transfer in transfers:
                transfer.is_active = bool(policy.admit(transfer, network))
            return
        if form == "transfer_key":
            keys = {t: (policy.transfer_key(t, network), t.number) for t in self.transfers_by_number()}
            chosen: list[Transfer] = []
            for transfer in sorted(self.transfers, key=keys.__getitem__):
                if not any(meet(transfer, other) for other in chosen):
                    chosen.append(transfer)
        else:
            chosen = list(policy.select(transfers, network)) if transfers else []
        for transfer in self.transfers:
            transfer.is_active = transfer in chosen

    def ask_rates(self) -> None:
        """Ask for the rates that a change can reach; others stay. What waits has none."""
        running = [t for t in self.transfers_by_number() if t.is_active]
        waiting = [t for t in self.transfers_by_number() if not t.is_active]
        changed = set(running) ^ set(self.rated[0])
        rates = dict.fromkeys(waiting, 0.0)
        form = form_of(self.model, "rates", "link_rate", "weight")
        asked = changed | (self.ended_parts & set(running))
        if form == "rates" and ((running, waiting) != self.rated or asked):
            rates |= zip(running, self.model.rates(running, waiting, self.network.links), strict=True)
        elif form == "link_rate":
            for transfer in running:
                if transfer in asked or any(meet(transfer, other) for other in asked):
                    rates[transfer] = least_link_rate(self.model, transfer, running, self.network)
        elif form == "weight":
            links = {link for transfer in asked for link in transfer.links}
            rates |= shares(self.model, joined(links, running), self.network)
        self.rated = running, waiting
        for transfer, rate in rates.items():
            if rate != transfer.rate or transfer in changed:
                self.record_segment(transfer)
                transfer.change_rate(rate)

    def record_segment(self, transfer: Transfer) -> None:
        if transfer.rate == 0.0 or transfer.since_ns == self.now_ns:
            return
        self.segments.append(
            TransferSegment(
                job_id=transfer.job.job.job_id,
                task=transfer.task,
                iteration=transfer.job.iteration,
                links=transfer.links,
                shares=transfer.shares,
                wire_bytes=transfer.message_bytes,
                start_ns=transfer.since_ns,
                end_ns=self.now_ns,
                rate_bytes_per_s=transfer.rate,
                sent_bytes=transfer.sent(),
            )
        )

    # Step 5

    def ready_by_gpu(self) -> dict[int, list[tuple[RunningJob, int]]]:
        """What each idle GPU may compute."""
        idle = sorted(set(range(self.cluster.num_gpus)) - {task.gpu for _, task in self.computing})
        running = [state for state in self.residents if state.restarts_until_ns < 0 and not state.finished]
        ready: dict[int, list[tuple[RunningJob, int]]] = {gpu: [] for gpu in idle}
        for state in running:
            for task, gpu in state.ready_parts():
                if gpu in ready and task in state.durations_ns:
                    ready[gpu].append((state, task))
        return ready

    def fill_idle_gpus(self) -> None:
        for gpu, ready in self.ready_by_gpu().items():
            if ready:
                self.start(gpu, *min(ready, key=lambda pair: (self.keys.get(pair[0], pair[0]), pair[1])))

    def start(self, gpu: int, state: RunningJob, task: int) -> None:
        state.begun.add((task, gpu))
        interval = ComputeInterval(
            gpu=gpu,
            job_id=state.job.job_id,
            task=task,
            iteration=state.iteration,
            start_ns=self.now_ns,
            end_ns=self.now_ns + self.duration_ns(gpu, state, task),
        )
        self.computing.append((state, interval))
        self.compute.append(interval)

    def duration_ns(self, gpu: int, state: RunningJob, task: int) -> int:
        """How long a task takes on a GPU: longer or shorter if the GPU is unlike others, or shared, or times jitter."""
        factor = self.slowdowns[gpu] / float(self.cluster.relative_speed[gpu])
        if self.cluster.throughputs:
            factor /= self.kind_speed(state, gpu)
        if self.disturbances.jitter_cv:
            bits = self.jitter_seed
            for number in (state.number, state.gpus.index(gpu), state.iteration, task, state.restarts):
                bits = scatter((bits + number) % 2**32)
            factor *= float(self.jitter[bits // 2**20])
        if self.interference:
            others = [other for other in self.residents if gpu in other.gpus and other is not state]
            shares = [self.interference.penalty_share(state.job.model, other.job.model) for other in others]
            penalties = [round(1e6 * share) for share in shares]
            once = getattr(self.interference, "once", False)
            factor *= (1_000_000 + (max(penalties, default=0) if once else sum(penalties))) / 1_000_000
        return state.durations_ns[task] if factor == 1.0 else round(state.durations_ns[task] * factor)


def reference_simulate(
    workload: Workload,
    cluster: Cluster,
    *,
    placement: str,
    order: Any,
    communication: Any,
    contention: Any,
    topology: Topology,
    load_per_byte_s: float | None = None,
    disturbances: Disturbances | None = None,
    until_s: float | None = None,
    seed: int = 0,
    allocation: Any = None,
    rescale_cost: Callable[[Rescale], float] | None = None,
    capacity: CapacityTrace | None = None,
    interference: InterferenceModel | None = None,
    path: Any = None,
    moves: Any = None,
) -> ReferenceRun:
    """Run a workload to its end, or until ``until_s``, on ``topology``, whatever topology the cluster names.

    ``placement`` is first-fit, list-scheduling, lwf:kappa=K, or in-order, easy-backfill or conservative-backfill with
    first-fit and time limits; ``order``, ``communication`` and ``contention`` are names or instances, of any class that
    never asks to be woken; an order may have ``stops``, and ``moves`` is an object with that method of a placement;
    ``path`` is an instance, or None for the topology's routes. ``allocation`` is an allocation policy that may read
    what views say, but not their class.
    """
    network = Network(topology, cluster.num_servers, cluster.network_cards, cluster.gpus_of_servers)
    disturbances = disturbances or Disturbances()
    streams = [np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(7)]
    model = resolve("contention", contention).bound_to(network)
    jobs = [RunningJob(job, number) for number, job in enumerate(workload)]
    arrivals = [(job.arrival_ns, job.num_gpus) for job in workload]
    places = FailurePlaces(cluster.first_gpus.tolist(), network.racks, arrivals)
    simulation = Simulation(
        cluster=cluster,
        network=network,
        model=model,
        load_per_byte_s=model.alone_per_byte_s if load_per_byte_s is None else load_per_byte_s,
        placement=placement,
        order=begun(resolve("order", order), cluster, streams[1]),
        communication=begun(resolve("communication", communication), cluster, streams[2]),
        path=begun(path, cluster, streams[6]) if path is not None else None,
        disturbances=disturbances,
        slowdowns=disturbances.slowdowns(cluster.num_gpus, streams[3]).tolist(),
        jitter_seed=int(streams[3].integers(2**32)),
        jitter=jitter_factors(disturbances.jitter_cv),
        changes=drawn_until(disturbances.capacity_changes(places, streams[4]), until_s),
        to_come=list(jobs),
        elastic=Elastic(allocation, rescale_cost or (lambda change: 0.0)) if allocation else None,
        interference=interference,
        waiting=Waiting(placement) if placement in NAMES else None,
    )
    simulation.slowdowns_at_first = list(simulation.slowdowns)
    if disturbances.prediction_error:
        factors = np.exp(disturbances.prediction_error * streams[3].standard_normal(len(jobs)))
        for state, factor in zip(jobs, factors, strict=True):
            state.predicted = max(round(state.job.iterations * factor), 1)
    if moves is not None or hasattr(simulation.order, "stops"):
        simulation.moves = Moves(moves, simulation.order, disturbances)
    if capacity is not None:
        simulation.changes = list(capacity.changes(cluster.num_servers))
    simulation.run(None if until_s is None else round(until_s * NS_PER_S))
    outcomes = {state.job.job_id: outcome(state) for state in jobs}
    return ReferenceRun(
        jobs=outcomes,
        compute=simulation.compute,
        transfers=simulation.segments,
        events=simulation.events,
        changes=simulation.elastic.changes if simulation.elastic else [],
    )


def drawn_until(changes: Iterator[CapacityChange | Strike], until_s: float | None) -> list[CapacityChange | Strike]:
    """What happens up to then, and the first that is later; all of it without an end."""
    listed: list[CapacityChange | Strike] = []
    while (change := next(changes, None)) is not None:
        listed.append(change)
        if until_s is not None and change.time_ns > until_s * NS_PER_S:
            break
    return listed


def begun(policy: Any, cluster: Cluster, rng: np.random.Generator) -> Any:
    return policy.begin(cluster, rng) if hasattr(policy, "begin") else policy


def outcome(state: RunningJob) -> ReferenceOutcome:
    return ReferenceOutcome(
        start_ns=state.start_ns,
        finish_ns=state.finish_ns,
        gpus=state.last_gpus,
        phases_ns=tuple(state.phases_ns),
        busy_ns=state.busy_ns,
        lost_ns=state.lost_ns,
        restarts=state.restarts,
        samples_left=state.samples_left,
    )
