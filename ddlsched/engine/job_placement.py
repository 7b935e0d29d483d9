"""Puts jobs on GPUs: asks the placement policy for those that queue, and carries out what is decided."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.decisions.checked_policies import CheckedPolicies, start_queued
from ddlsched.engine.decisions.costs import CommunicationCosts, PlannedTransfer
from ddlsched.engine.field_values import JobState
from ddlsched.engine.grouped_jobs import GroupedJobs
from ddlsched.engine.loop.from_python import find_fitting, wake
from ddlsched.engine.loop.placement import place_job, reroute_transfer
from ddlsched.engine.loop.room import fill_loads
from ddlsched.engine.outcome import Residency
from ddlsched.engine.routes import HopTables, Routes
from ddlsched.engine.run_state import RunState
from ddlsched.engine.sent_in_groups import SentInGroups
from ddlsched.engine.state_transfers import StateTransfer, StateTransfers
from ddlsched.policies.views import ClusterView, JobQueue, JobView, TransferView
from ddlsched.units import NS_PER_S
from ddlsched.workload.dag import IterationDag
from ddlsched.workload.elastic_job import ElasticJob


class _Plan(NamedTuple):
    """What a job's transfers put on the network: their links, an entry a crossing, and all as the loop gets it."""

    dag: IterationDag
    transfers: list[PlannedTransfer]
    crossed: list[int]
    iteration_ns: int
    arrays: tuple[np.ndarray, ...]


_QUEUED = JobState.QUEUED.value
_FEW = 4
"""GPUs with free memory are looked up in a list if they are fewer than one in so many; a scan is faster for more."""
_VERY_FEW = 50
"""Those are sorted by being compared if they are fewer than one in so many; a count is faster for more."""


class JobPlacement:
    """Places the jobs of a run; those that were stopped hold their GPUs for as long as ``disturbances`` say."""

    def __init__(
        self,
        state: RunState,
        asker: CheckedPolicies,
        costs: CommunicationCosts,
        routes: Routes,
        disturbances: Disturbances,
        transfers: StateTransfers,
        hops: HopTables | None = None,
    ) -> None:
        self._state, self._asker, self._disturbances = state, asker, disturbances
        self.costs = costs
        """What communication costs."""
        self._routes, self._transfers = routes, transfers
        self.hops = hops
        """Where the loop finds the paths that transfers may take, if it chooses among them itself."""
        self.state_at: dict[int, tuple[int, ...]] = {}
        """Where the state of each worker of a job is that a policy has taken off its GPUs: servers."""
        self.reading_ns: dict[int, int] = {}
        """For how long a job reads its state from a disk when it is placed next."""
        self.started: list[Callable[[int], None]] = []
        """Told of each job that has just been placed."""
        self.stopped: list[Callable[[int], None]] = []
        """Told of each job that a policy has just stopped, and that queues."""
        self.groups = GroupedJobs(state)
        """The jobs whose workers do different things."""
        self._reserved_ns: dict[int, int] = {}
        self.reservations: list[tuple[int, int, int]] = []
        """Job, when it was made, and for when (ns), of each reservation that a policy told of in a recorded run."""
        self._plans: dict[int, _Plan] = {}

    def view(self) -> ClusterView:
        """Return what policies see of the cluster now."""
        state = self._state
        return ClusterView(
            state.gpus,
            state.cluster,
            self._loads,
            self._eligible,
            state.now_ns,
            state.network,
            self._residents,
            self.costs.all_reduce_s,
        )

    def place_queue(self) -> None:
        """Ask who of the queue starts, and where."""
        state, now = self._state, self._state.now
        queue = state.arrays.queue[: now.num_queued.item(0)].copy()
        num_left = len(queue)
        if start_queued(self._asker, JobQueue(queue, state.views), self.view(), self):
            left = queue[state.jobs.state[queue] == _QUEUED]
            num_left = len(left)
            state.arrays.queue[:num_left] = left
        now.num_queued[0] = now.num_sorted[0] = num_left
        self.note_reservations()

    def next_fitting(self, queue: JobQueue, place: int) -> int:
        """Return the first place in the queue, from ``place`` on, of a job that enough GPUs have room for, or -1."""
        return int(find_fitting(self._state.arrays, queue.numbers, place, len(queue)))

    def restart_ns(self, number: int) -> int:
        """Return for how long a job that was stopped holds its GPUs before it starts."""
        job = self._state.workload[number]
        return self._disturbances.restart_ns(job.num_gpus, 0 if isinstance(job, ElasticJob) else job.dag.compute_ns)

    def put(self, number: int, gpus: list[int]) -> None:
        """Give a job of the queue its GPUs, in placement order; one that was stopped holds them before it starts."""
        if self._state.jobs.restarts.item(number):
            self.put_again(number, gpus, 0)
        else:
            self.put_after(number, gpus, 0)
        self._state.stays[-1].from_queue = True

    def put_again(self, number: int, gpus: list[int], further_ns: int) -> None:
        """Put a job that was stopped on GPUs, where it starts again after ``further_ns``."""
        reading_ns = self.reading_ns.pop(number, 0)
        self.put_after(number, gpus, further_ns + reading_ns + self.restart_ns(number))

    def place(self, number: int) -> list[int] | None:
        """Ask where a job runs."""
        return self._asker.place(self._state.views[number], self.view())

    def note_reservations(self) -> None:
        """Note the reservations that are new or have changed, in a recorded run."""
        if not self._state.now.record.item(0):
            return
        now_ns, reserved_ns = self._state.now_ns, self._asker.reservations_ns()
        changed = [(n, now_ns, ns) for n, ns in reserved_ns.items() if self._reserved_ns.get(n) != ns]
        self.reservations += changed
        self._reserved_ns = dict(reserved_ns)

    def put_after(
        self,
        number: int,
        chosen: list[int],
        hold_ns: int,
        sends: list[StateTransfer] | None = None,
        *,
        in_background: bool = False,
    ) -> None:
        """Give a job its GPUs, in placement order; it starts after ``hold_ns``, and after what it ``sends`` before.

        By default that is its own state, if that is elsewhere. What it sends ``in_background`` nobody waits for.
        """
        if self.groups.folds(number):
            self._put_folded(number, chosen, hold_ns)
        else:
            if sends is None:
                sources = self.state_at.pop(number, ())
                sends = self._transfers.needed(number, sources, chosen) if sources else []
            self._put(number, chosen, hold_ns, sends, in_background=in_background)
        for tell in self.started:
            tell(number)

    def _put(
        self, number: int, chosen: list[int], hold_ns: int, transfers: list[StateTransfer], *, in_background: bool
    ) -> None:
        state, servers = self._state, self.costs.servers_of(chosen)
        plan = self._plan(number, chosen, servers)
        if plan.crossed:
            state.check_service(number, plan.iteration_ns)
            state.jobs.communication_ns[number] = plan.iteration_ns
        self._join(number, chosen, len(servers), plan, -1 if transfers and not in_background else hold_ns)
        self._note_start(number, chosen, servers, plan.transfers, state.now_ns, hold_ns)
        if transfers:
            stay = state.stays[-1]
            stay.links_of |= {-1 - place: transfer.links for place, transfer in enumerate(transfers)}
            stay.state_bytes = 0 if in_background else sum(transfer.size_bytes for transfer in transfers)
            self._make_room(sum(len(transfer.links) for transfer in transfers), 0)
            self._transfers.send(number, transfers, -1 if in_background else hold_ns)

    def _plan(self, number: int, chosen: list[int], servers: tuple[int, ...]) -> _Plan:
        """Plan what a job's transfers put on the network; rings on one server, which is nothing, are planned once."""
        costs, dag, way = self.costs, self._state.workload[number].dag, self._routes.of_job(number)
        inside = len(servers) == 1 and costs.has_plain_rings(dag)
        if inside and id(dag) in self._plans:
            return self._plans[id(dag)]
        planned = costs.planned(dag, chosen, way)
        crossed = [*chain.from_iterable(transfer.links for transfer in planned)]
        arrays = (
            np.array([len(transfer.links) for transfer in planned], np.int64),
            np.array(crossed, np.int64),
            _shares(planned, len(crossed)),
            np.array([transfer.wire_bytes for transfer in planned], np.float64),
            np.array([costs.latency_s(transfer.cable_latency_s) * NS_PER_S for transfer in planned], np.float64),
            np.array([costs.load_ns(transfer) for transfer in planned], np.int64),
        )
        plan = _Plan(dag, planned, crossed, costs.iteration_ns(dag, planned) if crossed else 0, arrays)
        if inside:
            self._plans[id(dag)] = plan
        return plan

    def _put_folded(self, number: int, chosen: list[int], hold_ns: int) -> None:
        """Give a job of groups its GPUs, of whose workers and transfers some are simulated for others."""
        state, gpus = self._state, np.array(chosen, np.int64)
        sent = SentInGroups(self.groups.dag(number), self.costs, chosen, self._routes.of_job(number))
        if len(sent.links):
            state.check_service(number, sent.iteration_ns)
            state.jobs.communication_ns[number] = sent.iteration_ns
        self._make_room_on(gpus)
        (crossed, parts), servers = self.groups.fold(number, gpus, sent), self.costs.servers_of(chosen)
        self._make_room(len(crossed.links), len(sent.links))
        sending = sent.links, crossed.num_links, crossed.links, crossed.shares, *sent.planned_of(parts)
        place_job(state.arrays, number, len(state.stays), gpus, len(servers), *sending, hold_ns)
        self._note_start(number, chosen, servers, [], state.now_ns, hold_ns)

    def note_starts(self) -> None:
        """Make what Python looks at of the jobs that compiled code has started since it was asked last."""
        state, jobs = self._state, self._state.jobs
        new = np.flatnonzero((jobs.start_ns >= 0) & (jobs.stay >= len(state.stays)))
        for number in new[np.argsort(jobs.stay[new])].tolist():
            first = jobs.first_worker.item(number)
            gpus = state.workers.gpu[first : first + jobs.num_gpus.item(number)].tolist()
            planned = self.costs.planned(state.workload[number].dag, gpus)
            self._note_start(number, gpus, self.costs.servers_of(gpus), planned, jobs.start_ns.item(number), 0)
            state.stays[-1].from_queue = True

    def _note_start(
        self,
        number: int,
        gpus: list[int],
        servers: tuple[int, ...],
        planned: list[PlannedTransfer],
        from_ns: int,
        hold_ns: int,
    ) -> None:
        """Make what Python looks at of a job that has just started: its views, and its stay on its GPUs."""
        state, view = self._state, self._state.views[number]
        view._placed(tuple(gpus), servers)
        left = state.jobs.start_iterations_left.item(number)
        stay = Residency(number, tuple(gpus), {}, from_ns, hold_ns, iterations_left=left)
        for t, transfer in enumerate(planned, state.jobs.first_transfer.item(number)):
            if transfer.links:  # others never wait
                state.transfer_views[t] = TransferView(
                    t, view, transfer.links, state.transfers, t, state.now, transfer.shares
                )
            stay.links_of[self.groups.part_of(number, t)] = transfer.links
        state.stays.append(stay)
        state.stays_of[number].append(stay)

    def _join(self, number: int, chosen: list[int], num_servers: int, plan: _Plan, hold_ns: int) -> None:
        """Put a job on its GPUs and links."""
        state = self._state
        job_links = np.array([*dict.fromkeys([*plan.crossed, *self._routes.candidates])], np.int64)
        self.groups.split_meeting(chosen, job_links)
        gpus = np.array(chosen, np.int64)
        self._make_room_on(gpus)
        most = len(plan.crossed)
        if self.hops is not None:  # the loop chooses paths
            most = self.hops.write(number, self.costs.rings_of(plan.dag, chosen), plan.arrays[0].tolist())
        self._make_room(most, len(job_links))
        self.groups.write(number)
        place_job(state.arrays, number, len(state.stays), gpus, num_servers, job_links, *plan.arrays, hold_ns)

    def reroute(self) -> None:
        """Give each transfer that has become ready the paths that the policy chooses now, by number."""
        state = self._state
        waiting = state.arrays.waiting[: state.now.num_waiting.item(0)]
        for transfer in np.sort(waiting[state.transfers.unrouted[waiting] == 1]).tolist():
            number = state.transfers.job.item(transfer)
            stay = state.stays[state.jobs.stay.item(number)]
            place = transfer - state.jobs.first_transfer.item(number)
            dag = state.workload[number].dag
            plan = partial(self.costs.planned_one, dag, place, stay.gpus)
            planned = self._routes.planned_again(number, place, plan)
            self._make_room(len(planned.links), 0)
            shares = planned.shares or (1.0,) * len(planned.links)
            latency_ns = self.costs.latency_s(planned.cable_latency_s) * NS_PER_S
            reroute_transfer(
                state.arrays, transfer, np.array(planned.links, np.int64), np.array(shares, np.float64), latency_ns
            )
            view = state.views[number]
            state.transfer_views[transfer] = TransferView(
                transfer, view, planned.links, state.transfers, transfer, state.now, planned.shares
            )
            if state.now.record.item(0):
                stay.reroute(self.groups.part_of(number, transfer), state.now_ns, planned.links)
        state.now.num_unrouted[0] = 0

    def _loads(self, gpus: np.ndarray) -> np.ndarray:
        """Return the loads of GPUs, nanoseconds."""
        load_ns = np.empty(len(gpus), np.int64)
        fill_loads(self._state.arrays, gpus, load_ns)
        return load_ns

    def _eligible(self, memory_bytes: int) -> np.ndarray:
        """Return the GPUs with so much free memory, ascending, without a look at those of a full cluster."""
        free_bytes = self._state.gpus.free_bytes
        num_open = self._state.now.num_open_gpus.item(0)
        if num_open * _FEW > len(free_bytes):
            return np.flatnonzero(free_bytes >= memory_bytes)
        gpus = self._state.arrays.open_gpus[:num_open]
        large_enough = gpus[free_bytes[gpus] >= memory_bytes]
        if num_open * _VERY_FEW < len(free_bytes):
            return np.sort(large_enough)
        is_there = np.zeros(len(free_bytes), bool)
        is_there[large_enough] = True
        return np.flatnonzero(is_there)

    def _residents(self, gpu: int) -> list[JobView]:
        state = self._state
        workers = state.arrays.residents[gpu, : state.gpus.num_residents.item(gpu)].tolist()
        numbers = sorted(map(state.workers.job.item, workers))
        for number in numbers:
            if state.jobs.dormant.item(number):
                wake(state.arrays, number)
        return [state.views[number] for number in numbers]

    def _make_room_on(self, gpus: np.ndarray) -> None:
        """Double the lists of residents if one of the GPUs' is full."""
        state, arrays = self._state, self._state.arrays
        if state.gpus.num_residents[gpus].max() == arrays.residents.shape[1]:
            residents = np.concatenate([arrays.residents, np.zeros_like(arrays.residents)], axis=1)
            state.arrays = arrays._replace(residents=residents)

    def _make_room(self, num_entries: int, num_links: int) -> None:
        """Lengthen the arrays that the next transfers would overfill."""
        self._state.make_room("entries", self._state.now.num_entries.item(0) + num_entries)
        self._state.make_room("job_links", self._state.now.num_job_links.item(0) + num_links)


def _shares(planned: list[PlannedTransfer], num_crossings: int) -> np.ndarray:
    """Return for each crossing of some transfers what part of their bytes it carries."""
    if not any(transfer.shares for transfer in planned):
        return np.ones(num_crossings)
    return np.array([share for each in planned for share in each.shares or (1.0,) * len(each.links)], np.float64)
