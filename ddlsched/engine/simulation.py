"""One run: drives the compiled event loop and asks the policies where it stops."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from ddlsched.cluster import Cluster
from ddlsched.compiled import CommunicationRule, ContentionRule, OrderRule, compiled_rule
from ddlsched.contention import ContentionModel
from ddlsched.dag import AllReduceTask
from ddlsched.disturbances import Disturbances
from ddlsched.elastic.capacity import CapacityTrace
from ddlsched.elastic.rescale import Rescale, RescaleCost
from ddlsched.elastic.views import CapacityView
from ddlsched.engine import kernel
from ddlsched.engine.build import build_state
from ddlsched.engine.compilation import ensure_compiled
from ddlsched.engine.elastic import Change, ElasticJobs, Holding, choose_gpus, rescale_of
from ddlsched.engine.layout import Columns, Records, make_records
from ddlsched.engine.outcome import Finished, Span, Stay, Window
from ddlsched.engine.questions import Asker
from ddlsched.errors import InputError, PluginError, SimulationError, guarded, label
from ddlsched.interference import InterferenceModel
from ddlsched.jobs import Workload
from ddlsched.policies import DROP, PreemptivePolicy
from ddlsched.topology import Network, Ring
from ddlsched.units import MAX_NS, NS_PER_S, ns_from_s, s_from_ns
from ddlsched.views import ClusterView, JobView, NetworkView, TransferView

__all__ = ["Simulation"]

_SLICES = 1 << 16
_MOST_IDLE = 1_000_000
_MOST_RESTARTS = 1_000
_FEW = 16
"""GPUs with free memory are looked up in a list if they are fewer than one in so many; a scan is faster for more."""


class Simulation:
    """A run of a workload on a cluster under given policies (instances, not names).

    Raises
    ------
    InputError
        A job that can never fit, or more service with communication than the clock holds.
    PluginError, InvalidDecisionError
        A policy or model raised, or answered what cannot be.
    SimulationError
        Jobs remain and nothing will ever happen, or the clock would overflow.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        *,
        network: Network,
        placement: Any,
        order: Any,
        communication: Any,
        allocation: Any,
        rescale_cost: RescaleCost,
        contention: ContentionModel,
        interference: InterferenceModel | None,
        load_per_byte_s: float | None,
        disturbances: Disturbances,
        capacity: CapacityTrace | None,
        seed: int,
        span: Span,
        window: Window | None,
    ) -> None:
        streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(6)]
        self._workload, self._cluster, self._network = workload, cluster, network
        self._contention = contention
        self._asker = Asker(
            placement=_begun("placement", placement, cluster, streams[0]),
            order=_begun("order", order, cluster, streams[1]),
            communication=_begun("communication", communication, cluster, streams[2]),
            allocation=_begun("allocation", allocation, cluster, streams[5]),
            contention=contention,
            rescale_cost=rescale_cost,
        )
        self._load_per_byte_s = contention.alone_per_byte_s if load_per_byte_s is None else load_per_byte_s
        num_slices = _SLICES if window else 0
        self._state = build_state(workload, cluster, network, disturbances, interference, streams[3], num_slices)
        self._span = span
        self._restart_ns, self._checkpoint_iterations = disturbances.restart_ns, disturbances.checkpoint_iterations
        self._changes = disturbances.capacity_changes(cluster.num_servers, streams[4])
        if capacity is not None:
            self._changes = capacity.changes(cluster.num_servers)
        self._now, self._jobs = Columns(self._state.run), Columns(self._state.jobs)
        self._expect_change()
        self._gpus_now, self._links_now = Columns(self._state.gpus), Columns(self._state.links)
        self._transfers_now, self._tasks = Columns(self._state.transfers), Columns(self._state.tasks)
        self._views = [JobView(job, number, self._jobs, number) for number, job in enumerate(workload)]
        self._transfers: dict[int, TransferView] = {}
        self._elastic = ElasticJobs(workload, self._jobs)
        self._run.elastic = bool(self._elastic)
        self._configure(window)
        self._refuse_too_much_service()
        self._server_of_gpu: list[int] = cluster.server_of_gpu.tolist()
        self._rescales: list[tuple[int, Rescale, int]] = []
        self._stays: list[Stay] = []
        self._warmup_busy_ns = np.zeros(cluster.num_gpus, np.int64)
        self._down: dict[int, int] = {}
        self._stops: dict[int, tuple[int, int]] = {}  # of each job: iterations then left, and how often in a row
        self._outages: list[tuple[int, int, int]] = []
        self._flushed: list[Records] = []
        self._idle = 0

    def _configure(self, window: Window | None) -> None:
        run, asker = self._run, self._asker
        preemptive = isinstance(asker.communication, PreemptivePolicy)
        python = CommunicationRule.PYTHON_SELECT if preemptive else CommunicationRule.PYTHON_ADMIT
        run.order_rule = compiled_rule(asker.order, OrderRule.PYTHON).rule
        run.communication_rule, run.overlap_limit = compiled_rule(asker.communication, python)
        run.contention_rule = compiled_rule(self._contention, ContentionRule.PYTHON).rule
        run.per_byte_s = self._contention.alone_per_byte_s
        run.penalty_per_byte_s = self._contention.penalty_per_byte_s
        run.skipping_networked = self._may_skip_networked()
        run.jumping = self._may_jump()
        if window is not None:
            run.record = 1
            run.record_from_ns = ns_from_s(window.from_s)
            run.record_to_ns = MAX_NS if window.to_s >= MAX_NS / NS_PER_S else ns_from_s(window.to_s)

    def _may_skip_networked(self) -> bool:
        """Return whether no decision depends on the instants at which a job that meets nobody communicates.

        A policy or model in Python is asked at each of them. Selection by service or time is made anew at each, with
        what waiting jobs have computed since.
        """
        run = self._run
        if 0 in (run.order_rule, run.contention_rule) or run.communication_rule <= CommunicationRule.PYTHON_SELECT:
            return False
        unchanging = CommunicationRule.BOUNDED_OVERLAP, CommunicationRule.ADADUAL, CommunicationRule.PREEMPTIVE_BY_BYTES
        return run.communication_rule in unchanging or not any(job.dag.overlaps for job in self._workload)

    def _may_jump(self) -> bool:
        """Return whether what jobs that meet do follows from their own state, up to the next change from outside.

        An allocation policy is asked whenever any job finishes, and sees how far every elastic job is.
        """
        run = self._run
        return bool(run.skipping_networked) and not run.elastic and len(self._state.jitter) == 1

    def _refuse_too_much_service(self) -> None:
        for number, job in enumerate(self._workload):
            if job.num_gpus > 1:
                wire = [self._wire_bytes(message, job.num_gpus) for message in self._messages(number)]
                self._check_service(number, sum(self._reduce_ns(w, 0.0) for w in wire))
                self._check_service(number, sum(ns_from_s(self._load_per_byte_s * w) for w in wire))

    def _check_service(self, number: int, iteration_ns: int) -> None:
        jobs = self._jobs
        communication_ns = iteration_ns * jobs.iterations.item(number) * jobs.num_gpus.item(number)
        self._refuse_service(number, jobs.service_ns.item(number) + communication_ns)

    def _refuse_service(self, number: int, service_ns: int) -> None:
        if service_ns > MAX_NS:
            job_id = self._workload[number].job_id
            raise InputError(
                f"{self._workload.where(number)}: job {job_id!r} has more compute and communication x GPUs "
                f"(or load by load_per_byte_s) than the clock holds; expected at most {MAX_NS / NS_PER_S:.4g} s in all"
            )

    def _messages(self, number: int) -> list[float]:
        return [task.message_bytes for task in self._workload[number].dag.tasks if isinstance(task, AllReduceTask)]

    def _wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        name = f"contention {label(self._contention)}: wire_bytes"
        wire = guarded(name, lambda: self._contention.wire_bytes(message_bytes, num_servers))
        if not isinstance(wire, int | float | np.number) or not 0 <= wire < math.inf:
            raise PluginError(f"{name} answered {wire!r}; expected a finite number of bytes >= 0")
        return float(wire)

    def _reduce_ns(self, wire_bytes: float, ring_latency_s: float) -> int:
        model = self._contention
        return ns_from_s(model.latency_s + ring_latency_s + model.alone_per_byte_s * wire_bytes)

    @property
    def _run(self) -> Records:
        return self._state.run[0]

    @property
    def _now_ns(self) -> int:
        return int(self._now.now_ns.item(0))

    @property
    def _now_s(self) -> float:
        return s_from_ns(self._now_ns)

    def run(self) -> Finished:
        """Run to the end of the last job, or until the run is cut off."""
        ensure_compiled(self._state)
        self._run.pause_ns = self._span.warmup_ns or self._pause_at_end()
        answers = {
            kernel.ASK_KEYS: self._rank,
            kernel.ASK_PLACEMENT: self._place,
            kernel.ASK_COMMUNICATION: self._communicate,
            kernel.ASK_RATES: self._rate,
            kernel.ASK_FLUSH: self._flush,
            kernel.ASK_CAPACITY: self._change_capacity,
            kernel.ASK_ALLOCATION: self._allocate,
            kernel.HEAR_SIGNALS: lambda: None,
        }
        begin = time.perf_counter()
        while (question := kernel.advance(self._state)) in answers or self._goes_on_after(question):
            if question in answers:
                answers[question]()
        engine_s = time.perf_counter() - begin
        if question == kernel.STUCK:
            raise SimulationError(self._why_stuck())
        if question == kernel.CLOCK_OVERFLOW:
            raise SimulationError(f"at {self._now_s} s: a task would end beyond the clock's {MAX_NS / NS_PER_S:.4g} s")
        return self._finish(engine_s)

    def _pause_at_end(self) -> int:
        return self._span.until_ns if self._span.until_ns < MAX_NS else int(kernel.NEVER)

    def _goes_on_after(self, question: int) -> bool:
        """Return whether the loop paused only for the end of the warm-up."""
        if question != kernel.PAUSED or self._now_ns >= self._span.until_ns:
            return False
        kernel.add_busy_ns(self._state, self._warmup_busy_ns)
        self._run.pause_ns = self._pause_at_end()
        return True

    def _finish(self, engine_s: float) -> Finished:
        state, now_ns = self._state, self._now_ns
        kernel.take_samples(state, now_ns)
        if now_ns > self._run.sampled_ns:
            kernel.take_sample(state, now_ns)
        kernel.close_books(state)
        self._flush()
        for stay in self._stays:
            if stay.to_ns < 0:
                finish_ns = self._jobs.finish_ns.item(stay.job)
                stay.to_ns = finish_ns if finish_ns >= 0 else now_ns
        return Finished(
            state=state,
            network=self._network,
            contention=self._contention,
            stays=tuple(self._stays),
            slices=np.concatenate(self._flushed),
            rescales=tuple(self._rescales),
            outages=tuple(self._outages) + tuple((server, since, now_ns) for server, since in self._down.items()),
            busy_ns=self._gpus_now.busy_ns - self._warmup_busy_ns,
            warmup_ns=min(self._span.warmup_ns, now_ns),
            end_ns=now_ns,
            engine_s=engine_s,
        )

    # --- servers that fail and come back

    def _expect_change(self) -> None:
        self._change = next(self._changes, None)
        self._now.next_capacity_ns[0] = kernel.NEVER if self._change is None else self._change.time_ns

    def _change_capacity(self) -> None:
        # Those that go without warning first, since a job may have GPUs on servers of both kinds.
        come: list[int] = []
        gone: dict[bool, list[int]] = {False: [], True: []}
        while self._change is not None and self._change.time_ns == self._now_ns:
            server = self._change.server
            gpus = range(self._cluster.first_gpus.item(server), self._cluster.first_gpus.item(server + 1))
            if self._change.fails:
                self._down[server] = self._now_ns
                gone[self._change.warned] += gpus
            else:
                self._outages.append((server, self._down.pop(server), self._now_ns))
                come += gpus
            self._expect_change()
        if come:
            kernel.restore_gpus(self._state, np.array(come, np.int64))
        running = self._jobs.state == kernel.RUNNING
        for warned, gpus_gone in gone.items():
            if gpus_gone:
                commit = 1 if warned else self._checkpoint_iterations
                kernel.fail_gpus(self._state, np.array(gpus_gone, np.int64), commit)
        stopped = np.flatnonzero(running & (self._jobs.state == kernel.QUEUED)).tolist()
        for number in stopped:
            self._end_stay(number)
            self._refuse_standstill(number)
        self._elastic.lose(stopped, frozenset(gone[True] + gone[False]))
        self._count_idle("servers left or joined")

    def _end_stay(self, number: int) -> None:
        """Note that a job has no GPUs any more."""
        self._views[number]._placed((), ())
        self._stays[self._jobs.stay.item(number)].to_ns = self._now_ns

    def _refuse_standstill(self, number: int) -> None:
        """Give up on a run without an end in which a job is stopped again and again and gets no further."""
        left = self._jobs.samples_left.item(number) or self._jobs.iterations_left.item(number)
        before, times = self._stops.get(number, (left, 0))
        self._stops[number] = left, times + 1 if left == before else 1
        if self._stops[number][1] > _MOST_RESTARTS and self._span.until_ns == MAX_NS:
            raise SimulationError(
                f"at {self._now_s} s: failures stopped job {self._views[number].job_id!r} {_MOST_RESTARTS} times "
                "in a row before it reached a checkpoint; expected rarer failures, shorter restarts, or until_s"
            )

    def _count_idle(self, what: str) -> None:
        """Give up after very many instants at which nothing ran and nothing was to come."""
        now = self._now
        idle = now.heap_size.item(0) == 0 and now.next_arrival.item(0) == len(self._workload)
        self._idle = self._idle + 1 if idle else 0
        if self._idle > _MOST_IDLE:
            raise SimulationError(self._why_stuck() + f" ({what} {_MOST_IDLE} times while the cluster was idle)")

    def _why_stuck(self) -> str:
        run = self._run
        queued = [self._views[n].job_id for n in self._state.queue[: run.num_queued]]
        waiting = [self._transfers[n].job.job_id for n in self._state.waiting[: run.num_waiting]]
        why = f"at {self._now_s} s nothing is left to happen and {run.num_jobs_left} jobs are not finished:"
        if queued:
            why += f" placement {self._asker.label('placement')} keeps waiting with jobs {_some(queued)}"
        if self._elastic.there:
            elastic = [holding.job.job_id for holding in self._elastic.there.values()]
            why += f" allocation {self._asker.label('allocation')} keeps waiting with jobs {_some(elastic)}"
        if waiting:
            why += f" communication {self._asker.label('communication')} starts none of the transfers of jobs "
            why += _some(waiting)
        if self._down:
            why += f" ({len(self._down)} of {self._cluster.num_servers} servers are absent)"
        return why

    # --- answers to the event loop's questions

    def _rank(self) -> None:
        """Rank by a Python order's keys the jobs that this instant must choose between."""
        rivals = self._state.items[: kernel.gather_rivals(self._state)].tolist()
        now_s = self._now_s
        keys = {n: self._asker.key(self._views[n], now_s) for n in rivals}
        for rank, number in enumerate(self._asker.sort(rivals, keys, self._views, now_s)):
            self._jobs.rank[number] = rank
        self._set_wake("wake_placement_ns", "order")

    def _allocate(self) -> None:
        elastic, now_ns = self._elastic, self._now_ns
        elastic.take_in(now_ns, kernel.FINISHED, self._now.num_jobs_left.item(0))
        held = {gpu for holding in elastic.there.values() for gpu in holding.gpus}
        free = self._free_gpus()
        queued = [self._views[number] for number in self._state.queue[: self._now.num_queued.item(0)].tolist()]
        view = CapacityView(
            num_gpus=len(held.union(free)),
            free_gpus=tuple(gpu for gpu in free if gpu not in held),
            cluster=self._cluster,
            queued=queued,
            network=self._network,
            all_reduce=self._all_reduce_s,
        )
        answer = self._asker.allocate(elastic.views(now_ns), view, self._now_s)
        self._carry_out(elastic.changes(answer))
        for number in [n for n, holding in elastic.there.items() if answer.get(holding.job.job_id) is DROP]:
            self._drop(number)
        for holding in elastic.there.values():
            holding.had, holding.samples_lost = holding.gpus, 0
        self._set_wake("wake_placement_ns", "allocation")

    def _free_gpus(self) -> list[int]:
        """Return the GPUs of present servers without a job, ascending."""
        free = (self._gpus_now.num_residents == 0) & (self._gpus_now.free_bytes >= 0)
        gpus: list[int] = np.flatnonzero(free).tolist()
        return gpus

    def _all_reduce_s(self, message_bytes: float, num_servers: int) -> float:
        ring = self._network.ring(tuple(range(num_servers)))
        return s_from_ns(self._reduce_ns(self._wire_bytes(message_bytes, num_servers), ring.latency_s))

    def _carry_out(self, changes: list[Change]) -> None:
        """Stop every job that changes, then start those that have GPUs from now on."""
        for change in changes:
            number = change.holding.number
            if self._jobs.state.item(number) == kernel.RUNNING:
                kernel.stop_job(self._state, number, 1)
                self._end_stay(number)
        going_on = [change for change in changes if change.num_gpus]
        chosen = choose_gpus(going_on, self._free_gpus() if going_on else (), self._server_of_gpu.__getitem__)
        for change in changes:
            self._resize(change, chosen.get(change.holding.number, ()))

    def _resize(self, change: Change, gpus: tuple[int, ...]) -> None:
        """Give a job that is not running its GPUs and batch."""
        holding, number = change.holding, change.holding.number
        num_servers = len({self._server_of_gpu[gpu] for gpu in gpus})
        rescale = rescale_of(change, gpus, num_servers, self._now_ns)
        cost_ns = 0
        if gpus:
            cost_ns = self._asker.rescale_ns(holding.job, rescale)
            self._fit(holding, len(gpus), change.batch)
            self._put(number, list(gpus), cost_ns)
            self._now.num_elastic_queued[0] -= 1
            holding.started_ns = self._jobs.start_ns.item(number)
        holding.gpus, holding.batch, holding.queued_view = gpus, change.batch, None
        holding.hold_until_ns = self._now_ns + cost_ns
        self._rescales.append((number, rescale, cost_ns))

    def _fit(self, holding: Holding, num_gpus: int, batch: int) -> None:
        """Give the records of a job the size that it has from now on."""
        jobs, number = self._jobs, holding.number
        compute_ns = holding.compute_ns_at(num_gpus, batch)
        attained_ns = jobs.service_ns.item(number) - jobs.remaining_service_ns.item(number)
        left = -(-jobs.samples_left.item(number) // batch)
        remaining_ns = left * compute_ns * num_gpus
        self._refuse_service(number, attained_ns + remaining_ns)
        jobs.iterations[number] += left - jobs.iterations_left.item(number)
        jobs.iterations_left[number] = left
        jobs.num_gpus[number], jobs.batch[number], jobs.compute_ns[number] = num_gpus, batch, compute_ns
        jobs.service_ns[number], jobs.remaining_service_ns[number] = attained_ns + remaining_ns, remaining_ns
        first = jobs.first_task.item(number)
        self._tasks.duration_ns[first] = compute_ns
        if jobs.num_tasks.item(number) > 1:
            self._tasks.pending[first + 1] = num_gpus

    def _drop(self, number: int) -> None:
        """Turn a job away that has no GPUs."""
        jobs, now_ns = self._jobs, self._now_ns
        jobs.state[number] = kernel.DROPPED
        jobs.queueing_ns[number] += now_ns - jobs.since_ns.item(number)
        jobs.since_ns[number] = now_ns
        self._now.num_elastic_queued[0] -= 1
        self._now.num_jobs_left[0] -= 1
        del self._elastic.there[number]

    def _place(self) -> None:
        state, run = self._state, self._run
        view = ClusterView(
            self._gpus_now, self._cluster, self._loads, self._eligible, self._now_ns, self._network, self._residents
        )
        queue = state.queue[: run.num_queued].copy()
        stays = np.ones(len(queue), bool)
        place = kernel.next_fitting(state, queue, 0)
        while place >= 0:
            number = queue.item(place)
            chosen = self._asker.place(self._views[number], view)
            if chosen is not None:
                self._put(number, chosen, self._restart_ns if self._jobs.restarts.item(number) else 0)
                state = self._state  # with room for the job
                stays[place] = False
            place = kernel.next_fitting(state, queue, place + 1)
        run.num_queued = run.num_sorted = np.count_nonzero(stays)
        state.queue[: run.num_queued] = queue[stays]
        self._set_wake("wake_placement_ns", "placement")
        if run.order_rule == OrderRule.PYTHON:
            self._rank()

    def _loads(self, gpus: np.ndarray) -> np.ndarray:
        """Return the loads of GPUs, nanoseconds."""
        load_ns = np.empty(len(gpus), np.int64)
        kernel.fill_loads(self._state, gpus, load_ns)
        return load_ns

    def _eligible(self, memory_bytes: int) -> np.ndarray:
        """Return the GPUs with so much free memory, ascending, without a look at those of a full cluster."""
        free_bytes = self._gpus_now.free_bytes
        num_open = self._now.num_open_gpus.item(0)
        if num_open * _FEW > len(free_bytes):
            return np.flatnonzero(free_bytes >= memory_bytes)
        gpus: np.ndarray = np.sort(self._state.open_gpus[:num_open])
        large_enough: np.ndarray = gpus[free_bytes[gpus] >= memory_bytes]
        return large_enough

    def _put(self, number: int, chosen: list[int], hold_ns: int) -> None:
        servers = tuple(dict.fromkeys(self._server_of_gpu[gpu] for gpu in chosen))
        messages = self._messages(number)
        ring = self._network.ring(servers) if messages else Ring((), 0.0)
        wire = [self._wire_bytes(message, len(servers)) for message in messages]
        latency_s = self._contention.latency_s + ring.latency_s
        load_ns = [ns_from_s(self._load_per_byte_s * w) if len(servers) > 1 else 0 for w in wire]
        self._make_room(chosen, len(ring.links) * len(messages))
        if len(servers) > 1:
            reduces_ns = sum(self._reduce_ns(w, ring.latency_s) for w in wire)
            self._check_service(number, reduces_ns)
            self._jobs.communication_ns[number] = reduces_ns
        kernel.place_job(
            self._state,
            number,
            len(self._stays),
            np.array(chosen, np.int64),
            len(servers),
            np.array(ring.links, np.int64),
            np.array(wire, np.float64),
            np.full(len(wire), latency_s * NS_PER_S),
            np.array(load_ns, np.int64),
            hold_ns,
        )
        self._stays.append(Stay(number, tuple(chosen), ring.links, self._now_ns, hold_ns))
        self._views[number]._placed(tuple(chosen), servers)
        first = self._jobs.first_transfer.item(number)
        for t in range(first, first + len(messages)):
            self._transfers[t] = TransferView(t, self._views[number], ring.links, self._transfers_now, t, self._now)

    def _make_room(self, chosen: list[int], num_entries: int) -> None:
        """Double the arrays that the next placement would overfill."""
        state = self._state
        if self._gpus_now.num_residents[chosen].max() == state.residents.shape[1]:
            residents = np.concatenate([state.residents, np.zeros_like(state.residents)], axis=1)
            self._state = state = state._replace(residents=residents)
        needed = self._now.num_entries.item(0) + num_entries
        if needed > len(state.entries):
            entries = make_records("entry", max(needed, 2 * len(state.entries)))
            entries[: len(state.entries)] = state.entries
            self._state = state._replace(entries=entries)

    def _residents(self, gpu: int) -> list[JobView]:
        workers = self._state.residents[gpu, : self._gpus_now.num_residents.item(gpu)]
        numbers = np.sort(self._state.workers.job[workers]).tolist()
        for number in numbers:
            if self._jobs.dormant.item(number):
                kernel.wake(self._state, number)
        return [self._views[number] for number in numbers]

    def _active(self) -> list[TransferView]:
        return [self._transfers[n] for n in self._state.active[: self._now.num_active.item(0)].tolist()]

    def _waiting(self) -> list[TransferView]:
        return [self._transfers[n] for n in self._state.waiting[: self._now.num_waiting.item(0)].tolist()]

    def _network_view(self) -> NetworkView:
        return NetworkView(
            self._network.links,
            self._links_now.count,
            self._active,
            self._waiting,
            self._contention.alone_per_byte_s,
            self._contention.penalty_per_byte_s,
            self._now_ns,
        )

    def _communicate(self) -> None:
        state = self._state
        candidates = [self._transfers[n] for n in state.items[: kernel.gather_transfers(state)].tolist()]
        network = self._network_view()
        if self._now.communication_rule.item(0) == CommunicationRule.PYTHON_ADMIT:
            for transfer in candidates:
                if self._asker.admit(transfer, network):
                    kernel.start_transfer(state, transfer.number)
                    network = self._network_view()
        elif candidates:
            self._switch(candidates, self._asker.select(candidates, network))
        self._set_wake("wake_communication_ns", "communication")

    def _switch(self, candidates: list[TransferView], selected: set[int]) -> None:
        for transfer in candidates:
            if transfer.is_active and transfer.number not in selected:
                kernel.pause_transfer(self._state, transfer.number)
            elif transfer.number in selected and not transfer.is_active:
                kernel.start_transfer(self._state, transfer.number)

    def _rate(self) -> None:
        numbers = self._state.active[: self._now.num_active.item(0)]
        by_number = np.argsort(numbers)
        active = [self._transfers[n] for n in numbers[by_number].tolist()]
        waiting = sorted(self._waiting(), key=lambda transfer: transfer.number)
        rates = np.empty(len(numbers))
        rates[by_number] = self._asker.rates(active, waiting, self._network.links, self._now_s)
        kernel.apply_rates(self._state, rates)

    def _flush(self) -> None:
        run = self._run
        self._flushed.append(self._state.slices[: run.num_slices].copy())
        run.num_slices = 0
        most = 1024 + int(kernel.most_slices(run))
        if run.record and len(self._state.slices) < 2 * most:
            self._state = self._state._replace(slices=make_records("slice", 4 * most))

    def _set_wake(self, field: str, kind: str) -> None:
        wake_s = self._asker.wake_s(kind, self._now_s)
        if wake_s is None or wake_s <= self._now_s:
            return
        wake_ns = ns_from_s(wake_s)
        wake_ns += s_from_ns(wake_ns) < wake_s  # never before the time asked for
        run = self._run
        run[field] = min(wake_ns, run[field]) if run[field] >= 0 else wake_ns
        self._count_idle(f"{kind} asked to be woken")


_METHODS = {
    "placement": ("place",),
    "order": ("key",),
    "communication": ("admit", "select"),
    "allocation": ("allocate",),
}


def _begun(kind: str, policy: Any, cluster: Cluster, rng: np.random.Generator) -> Any:
    if not hasattr(policy, "begin"):
        return policy
    begun = guarded(f"{kind} {label(policy)}: begin", lambda: policy.begin(cluster, rng))
    if not any(hasattr(begun, method) for method in _METHODS[kind]):
        methods = " or ".join(_METHODS[kind])
        raise PluginError(f"{kind} {label(policy)}: begin answered {begun!r}; expected an object with {methods}")
    return begun


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest
