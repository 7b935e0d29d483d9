"""What policies see of a real Slurm and its jobs' demands, and what they answer: stops and starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.plugins.names import maker, resolve
from ddlsched.policies.job_view import JobQueue
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.real.gate.gate import GateSettings, begun_policies
from ddlsched.real.gate.live_jobs import LiveJob, Placements
from ddlsched.real.slurm.commands import SlurmNode
from ddlsched.real.slurm.journal import Seats
from ddlsched.units import ns_from_s, s_from_ns
from ddlsched.workload.job import Job


@dataclass(frozen=True)
class Demand:
    """So many GPUs on each node (0: any number), of one kind (empty: any)."""

    gpus_per_node: int = 0
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Demanding:
    """Shows another placement only the GPUs that a job may have, and makes its answer even where that was asked for.

    One that turns out to decide about the whole queue itself is left as it is.

    Parameters
    ----------
    placement
        Chooses GPUs.
    demands
        By job's number; looked up at each question.
    kinds
        Of each server's GPUs.
    """

    placement: Any
    demands: Mapping[int, Demand]
    kinds: Sequence[str]

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return the policy with the other one begun."""
        other = self.placement.begin(cluster, rng) if hasattr(self.placement, "begin") else self.placement
        if not hasattr(other, "place"):
            return other
        return replace(self, placement=_slurm_shape(other).begin(cluster, rng))

    def wake_s(self, now_s: float) -> float | None:
        """Return when the other policy wants to be asked again."""
        return self.placement.wake_s(now_s) if hasattr(self.placement, "wake_s") else None

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the other policy's choice among the GPUs that the job may have."""
        demand = self.demands.get(job.number, Demand())
        gpus = cluster.eligible(job)
        if demand.kind:
            gpus = gpus[np.array(self.kinds)[cluster.servers_of(gpus)] == demand.kind]
        if not demand.gpus_per_node:
            return self.placement.place(job, cluster.restricted_to(gpus)) if len(gpus) >= job.num_gpus else None
        return self._evenly(job, cluster, gpus, demand.gpus_per_node)

    def _evenly(self, job: JobView, cluster: ClusterView, gpus: np.ndarray, on_each: int) -> Sequence[GpuId] | None:
        """Return so many GPUs on each of the nodes of which the other chooses the most, among those that have them."""
        servers = cluster.servers_of(gpus)
        whole = {server: gpus[servers == server][:on_each] for server in np.unique(servers).tolist()}
        whole = {server: own for server, own in whole.items() if len(own) == on_each}
        count = job.num_gpus // on_each
        if len(whole) < count:
            return None
        chosen = self.placement.place(job, cluster.restricted_to(np.concatenate(list(whole.values()))))
        if chosen is None:
            return None
        taken = [cluster.server_of(gpu) for gpu in chosen]
        by_use = sorted(whole, key=lambda server: (-taken.count(server), server))
        return [gpu for server in sorted(by_use[:count]) for gpu in whole[server].tolist()]


class BoardJob(LiveJob):
    """A job whose progress is worked out from how long it has run.

    Parameters
    ----------
    job, number
        What it is, and its place among all jobs.
    iterations_done
        What it goes on from.
    start_s
        When it began to run; None while it waits.
    demand
        What it asks for beyond a number of GPUs.
    """

    def __init__(
        self, job: Job, number: int, iterations_done: int = 0, start_s: float | None = None, demand: Demand = Demand()
    ) -> None:
        super().__init__(job, number)
        self.start_s, self._done_before, self.demand = start_s, iterations_done, demand
        self.note(iterations_done)

    def began_s(self, now_s: float) -> float:
        """Return when it began to run, or now if it is about to."""
        return now_s if self.start_s is None else self.start_s

    def iterations_done(self, now_s: float) -> int:
        """Return how many iterations it has ended by its description; its last ends only with it."""
        iteration_ns = self.job.compute_ns + self.columns.communication_ns.item(0)
        ran_s = 0.0 if self.start_s is None else max(now_s - self.start_s, 0.0)
        done: int = min(self._done_before + ns_from_s(ran_s) // iteration_ns, self.job.iterations - 1)
        return done

    def note(self, done: int) -> None:
        """Note how many iterations it has ended."""
        left = self.job.iterations - done
        self.columns.iterations_left[0] = left
        self.columns.remaining_service_ns[0] = self.job.service_ns // self.job.iterations * left
        self.compute_left_ns = dict.fromkeys(self.gpus, self.job.compute_ns * left)

    def ends_left(self, task: int) -> int:
        """Return in how many iterations a collective is still to end."""
        return int(self.columns.iterations_left.item(0))


@dataclass(frozen=True)
class Holder:
    """A job that has GPUs, and whether it runs and may be stopped."""

    job: BoardJob
    seats: Seats
    may_stop: bool = True


@dataclass(frozen=True)
class BoardDecision:
    """What is to be done now: whom to stop, and whom to start where, in this order."""

    stops: Sequence[BoardJob] = ()
    starts: Sequence[tuple[BoardJob, Seats]] = ()


@dataclass
class Board:
    """The policies, begun on the nodes of a partition.

    Parameters
    ----------
    names
        Who decides, as the options of a simulated run: scheduler, placement, order, topology, contention,
        gpu_memory_mb (which Slurm does not know) and seed, each perhaps left out.
    nodes
        Nodes that have GPUs, in Slurm's order.

    Raises
    ------
    InputError
        A name that nobody has registered, or a value out of range.
    """

    names: Mapping[str, Any]
    nodes: Sequence[SlurmNode]
    _told: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = dict(self.names)
        self._gpu_memory_mb = names.pop("gpu_memory_mb", Server.gpu_memory_mb)
        servers = tuple(Server(gpus=node.num_gpus, gpu_memory_mb=self._gpu_memory_mb) for node in self.nodes)
        self.cluster = Cluster(servers=servers, exclusive=True, topology=names.pop("topology", Cluster.topology))
        self._demands: dict[int, Demand] = {}
        settings = GateSettings.by_name(self.cluster, **names)
        kinds = [node.gpu_kind for node in self.nodes]
        self._settings = replace(settings, placement=shaped(settings.placement, self._demands, kinds))
        self._policies: CheckedPolicies | None = None
        firsts = self.cluster.first_gpus.tolist()
        self._first_of = {node.name: first for node, first in zip(self.nodes, firsts, strict=False)}

    def decide(
        self, holders: Sequence[Holder], queued: Sequence[BoardJob], others: Mapping[str, int], now_s: float
    ) -> BoardDecision:
        """Return what the policies want.

        Parameters
        ----------
        holders
            Jobs with GPUs, of which those that start may have those of others that stop.
        queued
            Jobs that wait.
        others
            How many GPUs on each node somebody else has.
        now_s
            The time, seconds.
        """
        now_ns = ns_from_s(now_s)
        self._demands.clear()
        self._demands |= {job.number: job.demand for job in (*queued, *(holder.job for holder in holders))}
        board = self._placed(holders, others, now_s)
        board.queue = list(queued)
        running: list[LiveJob] = [holder.job for holder in holders if holder.may_stop and holder.job.gpus]
        stopped = [job for job in board.stops(running, now_ns) if isinstance(job, BoardJob)]
        starts = [(job, self._seats(job.gpus)) for job in board.decide(now_ns) if isinstance(job, BoardJob)]
        known = (*(holder.job for holder in holders), *(job for job, _ in starts))
        self._told = {job.number: list(job.gpus) for job in known}
        return BoardDecision(stopped, starts)

    def has_nodes(self, nodes: Sequence[SlurmNode]) -> bool:
        """Return whether these are the nodes that policies were begun on, whether jobs may start there or not."""
        own, given = ([(node.name, node.num_gpus, node.gpu_kind) for node in some] for some in (self.nodes, nodes))
        return own == given

    def wake_s(self, now_s: float) -> float | None:
        """Return when a policy wants to be asked again, seconds."""
        times_ns = [self._begun().wake_ns(kind, ns_from_s(now_s)) for kind in ("placement", "order")]
        return min((s_from_ns(time_ns) for time_ns in times_ns if time_ns is not None), default=None)

    def fits(self, job: Job, demand: Demand) -> bool:
        """Return whether the partition has the GPUs for a job, all nodes counted."""
        if job.gpu_memory_mb > self._gpu_memory_mb:
            return False
        on_nodes = [node.num_gpus for node in self.nodes if demand.kind in ("", node.gpu_kind)]
        each = demand.gpus_per_node
        return sum(each * (num_gpus >= each) if each else num_gpus for num_gpus in on_nodes) >= job.num_gpus

    def _begun(self) -> CheckedPolicies:
        if self._policies is None:
            self._policies = begun_policies(self._settings)
        return self._policies

    def _placed(self, holders: Sequence[Holder], others: Mapping[str, int], now_s: float) -> Placements:
        """Return the cluster with everybody who has GPUs.

        Policies that remember are told anew what they do not know: after a restart, or where Slurm gave other GPUs.
        """
        gpus_of = {holder.job.number: self._gpus(holder.seats) for holder in holders}
        knows_all = all(self._told.get(number) == gpus for number, gpus in gpus_of.items())
        if not knows_all:
            self._policies = None
        board = Placements(self.cluster, self._begun(), self._settings.costs)
        for job in sorted((holder.job for holder in holders), key=lambda job: (job.began_s(now_s), job.number)):
            gpus, start_ns = gpus_of[job.number], ns_from_s(job.began_s(now_s))
            if gpus and not knows_all:
                self._tell(job, gpus, board, start_ns)
            board.seat(job, gpus, start_ns)
            job.note(job.iterations_done(now_s))
        for node in self.nodes:
            self._shut(board, node, gpus_of, others.get(node.name, 0))
        return board

    def _tell(self, job: BoardJob, gpus: list[int], board: Placements, start_ns: int) -> None:
        """Ask the placement about a job that runs as if it alone waited, with its own GPUs the only free ones."""
        view = board.view(start_ns).restricted_to(np.array(gpus, np.int64))
        if len(view.eligible(job.view)) < job.job.num_gpus or len(gpus) != job.job.num_gpus:
            return  # somebody who stops has them still
        policies = self._begun()
        if not policies.placement_has_rounds:
            policies.place(job.view, view)
            return
        queue = JobQueue(np.array([job.number], np.int64), {job.number: job.view})
        for _ in policies.place_round(queue, view):
            pass

    def _shut(self, board: Placements, node: SlurmNode, gpus_of: Mapping[int, list[int]], others: int) -> None:
        first = self._first_of[node.name]
        taken = {gpu for gpus in gpus_of.values() for gpu in gpus}
        free = [gpu for gpu in range(first, first + node.num_gpus) if gpu not in taken]
        board.shut(free if not node.is_usable else free[max(len(free) - others, 0) :])

    def _gpus(self, seats: Seats) -> list[int]:
        """Return GPUs' numbers on the cluster; of nodes that are gone, none."""
        return [self._first_of[node] + gpu for node, gpus in seats.items() if node in self._first_of for gpu in gpus]

    def _seats(self, gpus: Sequence[int]) -> Seats:
        seats: dict[str, list[int]] = {}
        for gpu in gpus:
            name = self.nodes[int(self.cluster.server_of_gpu[gpu])].name
            seats.setdefault(name, []).append(gpu - self._first_of[name])
        return seats


def _slurm_shape(placement: Any) -> Any:
    """Return a placement with another's nodes, on which GPUs are shared out as Slurm does."""
    return maker("placement", "slurm-shape", supplied=["placement"])(placement=placement)


def shaped(placement: Any, demands: Mapping[int, Demand] | None = None, kinds: Sequence[str] = ()) -> Any:
    """Return a placement whose GPUs on the nodes that it chooses are those that Slurm gives, if it can be had.

    One that chooses GPUs job by job is put behind ``slurm-shape``, and behind what jobs demand, by number; of one that
    leaves the choice to another, the other.
    """
    if is_dataclass(placement) and hasattr(placement, "placement"):
        other = shaped(resolve("placement", placement.placement), demands, kinds)
        return replace(placement, placement=other)  # type: ignore[type-var]
    if demands is None:
        return _slurm_shape(placement) if hasattr(placement, "place") else placement
    return Demanding(placement=placement, demands=demands, kinds=kinds)
