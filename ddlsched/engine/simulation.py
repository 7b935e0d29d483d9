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
from ddlsched.engine import kernel
from ddlsched.engine.build import build_state
from ddlsched.engine.compilation import ensure_compiled
from ddlsched.engine.layout import Columns, Records, make_records
from ddlsched.engine.outcome import Finished, Span, Stay, Window
from ddlsched.engine.questions import Asker
from ddlsched.errors import InputError, PluginError, SimulationError, guarded, label
from ddlsched.jobs import Workload
from ddlsched.policies import PreemptivePolicy
from ddlsched.topology import Network
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
        contention: ContentionModel,
        load_per_byte_s: float | None,
        disturbances: Disturbances,
        seed: int,
        span: Span,
        window: Window | None,
    ) -> None:
        streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(5)]
        self._workload, self._cluster, self._network = workload, cluster, network
        self._contention = contention
        self._asker = Asker(
            placement=_begun("placement", placement, cluster, streams[0]),
            order=_begun("order", order, cluster, streams[1]),
            communication=_begun("communication", communication, cluster, streams[2]),
            contention=contention,
        )
        self._load_per_byte_s = contention.alone_per_byte_s if load_per_byte_s is None else load_per_byte_s
        self._state = build_state(workload, cluster, network, disturbances, streams[3], _SLICES if window else 0)
        self._span = span
        self._changes = disturbances.capacity_changes(cluster.num_servers, streams[4])
        self._expect_change()
        self._configure(window)
        self._refuse_too_much_service()
        self._now, self._jobs = Columns(self._state.run), Columns(self._state.jobs)
        self._gpus_now, self._links_now = Columns(self._state.gpus), Columns(self._state.links)
        self._transfers_now = Columns(self._state.transfers)
        self._views = [JobView(job, number, self._jobs, number) for number, job in enumerate(workload)]
        self._transfers: dict[int, TransferView] = {}
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

        A policy or model in Python is asked at each of them. Selection by service is made anew at each, with what
        waiting jobs have computed since.
        """
        run = self._run
        if 0 in (run.order_rule, run.contention_rule) or run.communication_rule <= CommunicationRule.PYTHON_SELECT:
            return False
        by_service = CommunicationRule.PREEMPTIVE_BY_SERVICE, CommunicationRule.PREEMPTIVE_BY_SERVICE_PER_GPU
        return run.communication_rule not in by_service or not any(job.dag.overlaps for job in self._workload)

    def _may_jump(self) -> bool:
        """Return whether what jobs that meet do follows from their own state, up to the next change from outside."""
        return bool(self._run.skipping_networked) and len(self._state.jitter) == 1

    def _refuse_too_much_service(self) -> None:
        for number, job in enumerate(self._workload):
            if job.num_gpus > 1:
                wire = [self._wire_bytes(message, job.num_gpus) for message in self._messages(number)]
                self._check_service(number, sum(self._reduce_ns(w, 0.0) for w in wire))
                self._check_service(number, sum(ns_from_s(self._load_per_byte_s * w) for w in wire))

    def _check_service(self, number: int, iteration_ns: int) -> None:
        job = self._workload[number]
        if job.service_ns + iteration_ns * job.iterations * job.num_gpus > MAX_NS:
            raise InputError(
                f"{self._workload.where(number)}: job {job.job_id!r} has more compute and communication x GPUs "
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
            outages=tuple(self._outages) + tuple((server, since, now_ns) for server, since in self._down.items()),
            busy_ns=self._gpus_now.busy_ns - self._warmup_busy_ns,
            warmup_ns=min(self._span.warmup_ns, now_ns),
            end_ns=now_ns,
            engine_s=engine_s,
        )

    # --- servers that fail and come back

    def _expect_change(self) -> None:
        self._change = next(self._changes, None)
        self._run.next_capacity_ns = kernel.NEVER if self._change is None else self._change.time_ns

    def _change_capacity(self) -> None:
        first_gpus = self._cluster.first_gpus
        while self._change is not None and self._change.time_ns == self._now_ns:
            server = self._change.server
            gpus = first_gpus.item(server), first_gpus.item(server + 1)
            if self._change.fails:
                self._down[server] = self._now_ns
                kernel.fail_server(self._state, *gpus)
            else:
                self._outages.append((server, self._down.pop(server), self._now_ns))
                kernel.restore_server(self._state, *gpus)
            self._expect_change()
        queued = self._state.queue[: self._run.num_queued]
        for number in queued[self._jobs.restarts[queued] > 0].tolist():
            self._end_stay(number)
        self._count_idle("servers failed or came back")

    def _end_stay(self, number: int) -> None:
        """Note that a job is in the queue again."""
        if self._views[number].gpus:
            self._views[number]._placed((), ())
            self._refuse_standstill(number)
            self._stays[self._jobs.stay.item(number)].to_ns = self._now_ns

    def _refuse_standstill(self, number: int) -> None:
        """Give up on a run without an end in which a job is stopped again and again and gets no further."""
        left = self._jobs.iterations_left.item(number)
        before, times = self._stops.get(number, (left, 0))
        self._stops[number] = left, times + 1 if left == before else 1
        if self._stops[number][1] > _MOST_RESTARTS and self._span.until_ns == MAX_NS:
            raise SimulationError(
                f"at {self._now_s} s: failures stopped job {self._views[number].job_id!r} {_MOST_RESTARTS} times "
                "in a row before it reached a checkpoint; expected rarer failures, shorter restarts, or until_s"
            )

    def _count_idle(self, what: str) -> None:
        """Give up after very many instants at which nothing ran and nothing was to come."""
        run = self._run
        idle = run.heap_size == 0 and run.next_arrival == len(self._workload)
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
        if waiting:
            why += f" communication {self._asker.label('communication')} starts none of the transfers of jobs "
            why += _some(waiting)
        if self._down:
            why += f" ({len(self._down)} of {self._cluster.num_servers} servers are down)"
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
                self._put(number, chosen)
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

    def _put(self, number: int, chosen: list[int]) -> None:
        servers = tuple(dict.fromkeys(self._cluster.server_of_gpu[chosen].tolist()))
        ring = self._network.ring(servers)
        messages = self._messages(number)
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
        )
        self._stays.append(Stay(number, tuple(chosen), ring.links, self._now_ns))
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


_METHODS = {"placement": ("place",), "order": ("key",), "communication": ("admit", "select")}


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
