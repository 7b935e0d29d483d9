"""The life of real jobs: they arrive, are placed, form their groups, begin in step, iterate and leave.

Decides which all-reduces run, and tells every rank of a job, in the same order, which chunk to send next.

Why no chunk ever waits for another for ever: collectives of a process group match by the order in which each rank
issues them. If ranks choose the next chunk themselves, by what they have just finished, two transfers of a job that are
in flight together are issued in one order here and in another there, and both sides wait. So the gate alone orders:
it tells a job's ranks the same sequence of chunks, over connections that keep the order, and a chunk that was told is
always sent. A transfer pauses by not being told more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.checked_policies import CheckedPolicies, choose_transfers, random_streams
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.records import Columns, make_records
from ddlsched.errors import Checked, TestbedError, guarded, label, ranged
from ddlsched.plugins.names import Kind, resolve, resolve_bundle
from ddlsched.policies.network_views import TransferState
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.real.gate.live_jobs import GateRank, LiveJob, LiveTransfer, Placements, ProcessorSlots, SentRow
from ddlsched.units import MAX_MESSAGE_BYTES, NS_PER_S, s_from_ns
from ddlsched.workload.dag import ComputeTask
from ddlsched.workload.job import Workload

CHUNK_BYTES = 400_000
"""Of a message under a policy that pauses transfers, unless another size is given."""
MOST_CHUNKS = 1_000_000
WINDOW = 2
"""Chunks of a transfer that are under way at a time: the next is at hand when one ends."""


class TransferGate:
    """The communication policy of a run, and the transfers that it decides on.

    Parameters
    ----------
    policies
        The run's, of which the order and the communication policy are asked.
    costs
        The contention model by whose account bytes count.
    record
        Told of each all-reduce that has ended.
    chunk_bytes
        Largest part of a message that cannot be paused; None sends whole messages if the policy never pauses one.
    window
        Chunks of a transfer under way at a time.
    """

    def __init__(
        self,
        policies: CheckedPolicies,
        costs: CommunicationCosts,
        record: Callable[[SentRow], None],
        *,
        chunk_bytes: float | None = None,
        window: int = WINDOW,
    ) -> None:
        self._policies, self._costs, self._record = policies, costs, record
        pauses = policies.communication_form != "admit"
        self._chunk_bytes = CHUNK_BYTES if chunk_bytes is None and pauses else chunk_bytes
        self._window = window
        self.clock = Columns(make_records("run", 1))
        self._count = np.zeros(len(costs.network.links), np.int64)
        self.active: list[LiveTransfer] = []
        self.waiting: list[LiveTransfer] = []
        self.changed = False
        self._asked_about: dict[int, LiveTransfer] = {}

    def ready(self, job: LiveJob, rank: int, task: int, iteration: int, message_bytes: float, now_ns: int) -> None:
        """Note that a rank is ready; once all are, the transfer waits for the policy.

        Raises
        ------
        TestbedError
            Ranks differ in the size of the message, it comes in too many chunks, or the last one is not sent yet.
        """
        transfer = job.transfer(task, self.clock)
        heard = transfer.heard.setdefault(iteration, {})
        heard[rank] = message_bytes
        if len(heard) < len(job.ranks):
            return
        del transfer.heard[iteration]
        if len(set(heard.values())) > 1:
            raise TestbedError(
                f"job {job.job.job_id!r}, all-reduce {transfer.name!r}: its ranks would send "
                f"{', '.join(f'{size:g}' for _, size in sorted(heard.items()))} bytes; expected the same on every rank"
            )
        chunks = 1 if self._chunk_bytes is None else max(math.ceil(message_bytes / self._chunk_bytes), 1)
        if transfer.state != TransferState.IDLE or chunks > MOST_CHUNKS:
            raise TestbedError(
                f"job {job.job.job_id!r}, all-reduce {transfer.name!r}: {message_bytes:g} bytes in {chunks:,} chunks "
                f"are ready; expected at most {MOST_CHUNKS:,}, once those of the iteration before have been sent"
            )
        wire = self._costs.wire_bytes(message_bytes, len(job.view.servers))
        transfer.begin(iteration, message_bytes, wire, chunks, now_ns)
        self.waiting.append(transfer)
        if transfer.view.links:
            self.changed = True
        else:  # it meets nobody, and no policy is asked
            self._start(transfer, now_ns)

    def sent(self, job: LiveJob, task: int, iteration: int, chunk: int, now_ns: int) -> None:
        """Note that a rank has sent a chunk; once all have, the next one may go.

        Raises
        ------
        TestbedError
            Nobody told it to send that.
        """
        transfer = job.transfer(task, self.clock)
        if iteration != transfer.iteration or not 0 <= chunk < transfer.granted:
            raise TestbedError(
                f"job {job.job.job_id!r}: chunk {chunk} of {transfer.name!r}, iteration {iteration}, was sent untold"
            )
        transfer.sent_by[chunk] += 1
        if transfer.sent_by[chunk] < len(job.ranks):
            return
        transfer.completed += 1
        if transfer.completed == transfer.chunks:
            self._end(transfer, now_ns)
            return
        transfer.columns.bytes_left[0] = transfer.view.message_bytes * (1 - transfer.completed / transfer.chunks)
        if transfer.state == TransferState.ACTIVE:
            self._fill_window(transfer, now_ns)

    def _end(self, transfer: LiveTransfer, now_ns: int) -> None:
        if transfer.state == TransferState.ACTIVE:
            self._stop(transfer)
        if transfer in self.waiting:  # paused while its last chunks were under way
            self.waiting.remove(transfer)
        transfer.state = TransferState.IDLE
        transfer.times_ended += 1
        transfer.columns.bytes_left[0] = 0.0
        self._record(transfer.row(now_ns))
        self.changed = True

    def forget(self, job: LiveJob) -> None:
        """Drop the transfers of a job that is gone."""
        for transfer in job.transfers.values():
            if transfer.state == TransferState.ACTIVE:
                self._stop(transfer)
            elif transfer.state == TransferState.WAITING:
                self.waiting.remove(transfer)
            transfer.state = TransferState.IDLE
        self.changed = True

    def decide(self, now_ns: int) -> None:
        """Ask the policy which of the ready transfers run from now on, and tell the ranks."""
        self.changed = False
        self.clock.now_ns[0] = now_ns
        ready = self.waiting if self._policies.communication_form == "admit" else [*self.waiting, *self.active]
        self._asked_about = {transfer.view.number: transfer for transfer in ready if transfer.view.links}
        order = self._policies.in_order((one.job.view for one in self._asked_about.values()), s_from_ns(now_ns))
        place = {number: place for place, number in enumerate(order)}
        candidates = sorted(self._asked_about.values(), key=lambda one: (place[one.job.number], one.task))
        choose_transfers(self._policies, [transfer.view for transfer in candidates], self)
        self._estimate(now_ns)

    def start(self, transfer: TransferView) -> None:
        """Let a transfer send."""
        self._start(self._asked_about[transfer.number], self.clock.now_ns.item(0))

    def pause(self, transfer: TransferView) -> None:
        """Let a transfer wait, once its chunks that are under way have arrived."""
        paused = self._asked_about[transfer.number]
        self._stop(paused)
        paused.state = TransferState.WAITING
        self.waiting.append(paused)

    def _start(self, transfer: LiveTransfer, now_ns: int) -> None:
        self.waiting.remove(transfer)
        self.active.append(transfer)
        transfer.state = TransferState.ACTIVE
        np.add.at(self._count, list(transfer.view.links), 1)
        if transfer.granted_ns < 0:
            transfer.granted_ns = now_ns
        self._fill_window(transfer, now_ns)

    def _stop(self, transfer: LiveTransfer) -> None:
        self.active.remove(transfer)
        np.subtract.at(self._count, list(transfer.view.links), 1)
        transfer.columns.rate[0] = 0.0

    def _fill_window(self, transfer: LiveTransfer, now_ns: int) -> None:
        while transfer.granted < transfer.chunks and transfer.in_flight < self._window:
            message = {
                "do": "send",
                "task": transfer.task,
                "iteration": transfer.iteration,
                "chunk": transfer.granted,
                "chunks": transfer.chunks,
            }
            transfer.granted += 1
            transfer.told_ns = now_ns
            for rank in transfer.job.ranks:
                rank.send(message)

    def _estimate(self, now_ns: int) -> None:
        """Guess how far whole messages come from now on: by an equal share of the links, as nothing says it.

        What is left of a message in chunks is known by those that have arrived.
        """
        for transfer in self.active:
            columns = transfer.columns
            if transfer.chunks > 1:
                continue
            columns.bytes_left[0] = transfer.view.bytes_left
            links = self._costs.network.links
            shares = (self._count.item(link) / links[link].relative_bandwidth for link in transfer.view.links)
            ns_per_byte = self._costs.model.alone_per_byte_s * NS_PER_S * max(shares, default=1.0)
            columns.since_ns[0], columns.ns_per_byte[0], columns.rate[0] = now_ns, ns_per_byte, NS_PER_S / ns_per_byte

    def network(self) -> NetworkView:
        """Return what a communication policy sees of the network now."""
        return NetworkView(
            self._costs.network.links,
            self._count,
            lambda: [transfer.view for transfer in self.active],
            lambda: [transfer.view for transfer in self.waiting],
            self._costs.model.alone_per_byte_s,
            self._costs.model.penalty_per_byte_s,
            self.clock.now_ns.item(0),
        )

    def who_waits_for_whom(self, now_ns: int) -> list[str]:
        """Return a line for each waiting transfer: since when, on which links, beside whom."""
        lines = []
        for transfer in self.waiting:
            mine: frozenset[Any] = frozenset(transfer.view.links)
            met = [other for other in [*self.active, *self.waiting] if other is not transfer]
            names = sorted({other.job.job.job_id for other in met if not mine.isdisjoint(other.view.links)})
            links = ", ".join(self._costs.network.links[link].name for link in sorted(mine))
            waited_s = s_from_ns(now_ns - transfer.ready_ns)
            lines.append(
                f"job {transfer.job.job.job_id!r} has waited {waited_s:.1f} s for {links}"
                + (f", which jobs {', '.join(names)} want too" if names else ", which nobody else wants")
            )
        return lines


class Crew(Protocol):
    """The processes that stand ready on the servers."""

    def take(self, server: int) -> GateRank:
        """Return one that has nothing to do."""

    def give_back(self, rank: GateRank) -> None:
        """Let it stand ready again."""


@dataclass(frozen=True, kw_only=True)
class GateSettings(Checked, who="gate"):
    """What decides.

    Parameters
    ----------
    cluster
        Servers and their network, as it really is.
    placement, order, communication
        Policies, as a simulation takes them.
    costs
        By which contention model policies count bytes and times.
    seed
        Of the policies' randomness: the streams are those of a simulation.
    chunk_bytes, window
        Of :class:`~ddlsched.real.gate.gate.TransferGate`.
    slots
        Whether compute tasks of jobs that share a GPU go one after the other.
    train
        Whether jobs train a model, whose buckets are sent in place of the all-reduces of their graph.
    """

    cluster: Cluster
    placement: Any
    order: Any
    communication: Any
    costs: CommunicationCosts
    seed: int = ranged(0, 0)
    chunk_bytes: float | None = ranged(None, 1e3, MAX_MESSAGE_BYTES)
    window: int = ranged(WINDOW, 1, 64)
    slots: bool = False
    train: bool = False

    @classmethod
    def by_name(
        cls, cluster: Cluster, *, scheduler: str, contention: Any, policies: Mapping[str, Any], **given: Any
    ) -> GateSettings:
        """Return the settings of policies and a model that are instances or names.

        Parameters
        ----------
        cluster, given
            As of the class.
        scheduler, policies
            A bundle, and what replaces parts of it; nothing does where it is None.
        contention
            By which bytes are counted.

        Raises
        ------
        UnknownNameError
            A name that nobody has registered.
        """
        chosen = {
            **resolve_bundle(scheduler),
            **{kind: policy for kind, policy in policies.items() if policy is not None},
        }
        kinds: tuple[Kind, ...] = ("placement", "order", "communication")
        resolved = {kind: resolve(kind, chosen[kind]) for kind in kinds}
        topology = resolve("topology", cluster.topology)
        network = cluster.network(topology)
        model = resolve("contention", contention)
        bound = guarded(f"contention {label(model)}: bound_to", lambda: model.bound_to(network))
        return cls(cluster=cluster, costs=CommunicationCosts(cluster, network, bound), **resolved, **given)


def begun_policies(settings: GateSettings) -> CheckedPolicies:
    """Return the policies as they are asked during a run, with the random streams of a simulation of that seed."""
    return CheckedPolicies(
        settings.cluster,
        random_streams(settings.seed),
        placement=settings.placement,
        order=settings.order,
        communication=settings.communication,
        contention=settings.costs.model,
    )


class Gate:
    """Runs a workload on a crew; the caller brings messages and the time.

    Parameters
    ----------
    workload, settings, crew
        What runs, who decides, and who does it.
    record
        Told of each all-reduce that has ended.
    """

    def __init__(
        self, workload: Workload, settings: GateSettings, crew: Crew, record: Callable[[SentRow], None]
    ) -> None:
        self._settings, self._crew = settings, crew
        self.policies = begun_policies(settings)
        self.jobs = [LiveJob(job, number, in_buckets=settings.train) for number, job in enumerate(workload)]
        self.placements = Placements(settings.cluster, self.policies, settings.costs)
        self.transfers = TransferGate(
            self.policies, settings.costs, record, chunk_bytes=settings.chunk_bytes, window=settings.window
        )
        self.slots = ProcessorSlots(self.policies)
        self._coming = sorted(self.jobs, key=lambda job: (job.job.arrival_ns, job.number), reverse=True)
        self.seats: dict[GateRank, tuple[LiveJob, int]] = {}
        self._grouped: dict[int, set[int]] = {}
        self._beside: dict[int, list[LiveJob]] = {}
        self._wake_ns: dict[str, int] = {}
        self.last_event_ns = 0
        self._handlers = {
            "store": self._store,
            "grouped": self._join_group,
            "ready": self._ready,
            "sent": self._sent,
            "compute": self._compute,
            "computed": self._computed,
            "iterated": self._iterated,
        }

    @property
    def finished(self) -> bool:
        """Whether all jobs are done."""
        return all(job.finished_ns >= 0 for job in self.jobs)

    @property
    def running(self) -> list[LiveJob]:
        """Jobs that are placed and not done."""
        return [job for job in self.jobs if job.placed_ns >= 0 > job.finished_ns]

    def due_ns(self) -> list[int]:
        """Return when something is due that nobody will say: an arrival, and policies' wakes."""
        arrivals = [self._coming[-1].job.arrival_ns] if self._coming else []
        return arrivals + list(self._wake_ns.values())

    def hear(self, rank: GateRank, message: dict[str, Any], now_ns: int) -> None:
        """Take in what a rank says.

        Raises
        ------
        TestbedError
            It failed, or says what does not fit.
        """
        job, number = self.seats.get(rank, (None, 0))
        if message.get("say") == "failed":
            whose = f"job {job.job.job_id!r}" if job is not None else "no job"
            raise TestbedError(f"{whose}, server {rank.server}: {str(message.get('error'))[:500]}")
        handler = self._handlers.get(str(message.get("say")))
        if handler is None or job is None:
            raise TestbedError(f"server {rank.server} says {str(message)[:100]}; expected a message about its job")
        self.last_event_ns = now_ns
        try:
            handler(job, number, message, now_ns)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise TestbedError(f"server {rank.server} says {str(message)[:100]}: {error!r}") from None

    def decide(self, now_ns: int) -> None:
        """Ask every policy that has something to decide."""
        while self._coming and self._coming[-1].job.arrival_ns <= now_ns:
            self.placements.arrive(self._coming.pop())
        woken = {kind for kind, wake_ns in self._wake_ns.items() if wake_ns <= now_ns}
        for kind in woken:
            del self._wake_ns[kind]
        if self.placements.changed or woken - {"communication"}:
            placed = self.placements.decide(now_ns)
            for job in placed:
                self._beside[job.number] = placed
                self._seat(job)
            self._note_wakes(("placement", "order"), now_ns)
        if self.transfers.changed or "communication" in woken:
            self.transfers.decide(now_ns)
            self._note_wakes(("communication",), now_ns)
        if self._settings.slots:
            self.slots.decide(now_ns)

    def _note_wakes(self, kinds: tuple[str, ...], now_ns: int) -> None:
        for kind in kinds:
            wake_ns = self.policies.wake_ns(kind, now_ns)
            if wake_ns is not None:
                self._wake_ns[kind] = min(wake_ns, self._wake_ns.get(kind, wake_ns))

    def _seat(self, job: LiveJob) -> None:
        """Give a placed job its ranks, in ascending order of servers, and let them form their group."""
        self.last_event_ns = max(self.last_event_ns, job.placed_ns)
        server_of = self._settings.cluster.server_of_gpu
        for number, server in enumerate(sorted(job.view.servers)):
            rank = self._crew.take(server)
            job.ranks.append(rank)
            job.iterated.append(0)
            self.seats[rank] = (job, number)
        self._grouped[job.number] = set()
        for number, rank in enumerate(job.ranks):
            gpus = [gpu for gpu in job.gpus if server_of[gpu] == rank.server]
            rank.send(
                {
                    "do": "place",
                    "job_id": job.job.job_id,
                    "tasks": job.job.dag.to_dicts(),
                    "iterations": job.job.iterations,
                    "rank": number,
                    "size": len(job.ranks),
                    "gpus": gpus,
                    "slots": self._settings.slots,
                    "train": self._settings.train,
                    "address": rank.address,
                }
            )

    def _store(self, job: LiveJob, number: int, message: dict[str, Any], now_ns: int) -> None:
        """Rank 0 tells where the group's ranks meet."""
        host = job.ranks[0].address
        for rank in job.ranks[1:]:
            rank.send({"do": "join", "host": host, "port": message["port"]})

    def _join_group(self, job: LiveJob, number: int, message: dict[str, Any], now_ns: int) -> None:
        """Jobs placed at one instant begin together, when the ranks of all have formed their groups."""
        self._grouped[job.number].add(number)
        beside = self._beside[job.number]
        if any(len(self._grouped.get(other.number, ())) < len(other.view.servers) for other in beside):
            return
        for other in beside:
            other.began_ns = now_ns
            for rank in other.ranks:
                rank.send({"do": "begin"})

    def _ready(self, job: LiveJob, number: int, message: dict[str, Any], now_ns: int) -> None:
        self.transfers.ready(
            job, number, message["task"], message["iteration"], float(message["message_bytes"]), now_ns
        )

    def _sent(self, job: LiveJob, number: int, message: dict[str, Any], now_ns: int) -> None:
        self.transfers.sent(job, message["task"], message["iteration"], message["chunk"], now_ns)

    def _compute(self, job: LiveJob, number: int, message: dict[str, Any], now_ns: int) -> None:
        self.slots.wants(job, job.ranks[number], message["task"], message["gpu"])

    def _computed(self, job: LiveJob, number: int, message: dict[str, Any], now_ns: int) -> None:
        task = job.job.dag.tasks[message["task"]]
        assert isinstance(task, ComputeTask)
        gpus = message["gpus"]
        job.computed(task.duration_ns, gpus)
        if self._settings.slots:
            for gpu in gpus:
                self.slots.ended(gpu)

    def _iterated(self, job: LiveJob, number: int, message: dict[str, Any], now_ns: int) -> None:
        if not job.iterate(number):
            return
        job.finished_ns = now_ns
        for rank in job.ranks:
            rank.send({"do": "release"})
            del self.seats[rank]
            self._crew.give_back(rank)
        self.placements.free(job)

    @property
    def nothing_is_due(self) -> bool:
        """Whether no job is to arrive and no policy asked to be woken."""
        return not self._coming and not self._wake_ns
