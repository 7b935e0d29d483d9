"""The life of real jobs: they arrive, are placed, form their groups, begin in step, iterate and leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.checked_policies import CheckedPolicies, random_streams
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.errors import TestbedError, guarded, label
from ddlsched.plugins import DEFAULT_BUNDLE, DEFAULT_CONTENTION
from ddlsched.plugins.names import Kind, resolve, resolve_bundle
from ddlsched.ranges import Checked, ranged
from ddlsched.real.gate.live_jobs import GateRank, LiveJob, Placements, ProcessorSlots, SentRow
from ddlsched.real.gate.transfer_gate import WINDOW, TransferGate
from ddlsched.units import MAX_MESSAGE_BYTES
from ddlsched.workload.dag import ComputeTask
from ddlsched.workload.job import Workload


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
        Of :class:`~ddlsched.real.gate.transfer_gate.TransferGate`.
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
        cls, cluster: Cluster, *, contention: Any = DEFAULT_CONTENTION, scheduler: str = DEFAULT_BUNDLE, **given: Any
    ) -> GateSettings:
        """Return the settings of policies and a model that are instances or names.

        Parameters
        ----------
        cluster, given
            As of the class; a policy that is None, or not given, is the bundle's.
        contention
            By which bytes are counted.
        scheduler
            A bundle.

        Raises
        ------
        UnknownNameError
            A name that nobody has registered.
        """
        bundle = resolve_bundle(scheduler)
        kinds: tuple[Kind, ...] = ("placement", "order", "communication")
        for kind in kinds:
            given[kind] = resolve(kind, bundle[kind] if given.get(kind) is None else given[kind])
        network = cluster.network(resolve("topology", cluster.topology))
        model = resolve("contention", contention)
        bound = guarded(f"contention {label(model)}: bound_to", lambda: model.bound_to(network))
        return cls(cluster=cluster, costs=CommunicationCosts(cluster, network, bound), **given)


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
        if not isinstance(task, ComputeTask):
            raise TypeError("expected a task that computes")
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
