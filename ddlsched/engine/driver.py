"""One run: drives the compiled event loop and asks the policies where it stops."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np

from ddlsched.cluster.capacity_changes import CapacityChange, FailurePlaces, Strike
from ddlsched.engine.build import build_state
from ddlsched.engine.checkpointing import Checkpointing
from ddlsched.engine.decisions.checked_policies import METHODS, CheckedPolicies, random_streams
from ddlsched.engine.decisions.checks import FieldsBefore
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.field_values import NEVER, Contention, Door, Question
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.compilation import JUMPING, ensure_compiled, start_compiling
from ddlsched.engine.loop.from_python import (
    add_busy_ns,
    close_books,
    gather_rivals,
    most_slices,
    rank_rivals,
    sort_queue,
    take_samples,
)
from ddlsched.engine.native.jit import interrupted_loop, spent_compiling_s
from ddlsched.engine.outcome import Finished, KeptSlices, Window, touching
from ddlsched.engine.policy_forms import DOORS, Kind, PolicyForms
from ddlsched.engine.records import make_records
from ddlsched.engine.rescaling import Rescaling
from ddlsched.engine.routes import HopTables, Routes, beyond_plain_rings, refuse_what_nobody_sends
from ddlsched.engine.run_options import RunSettings
from ddlsched.engine.run_progress import ProgressTeller
from ddlsched.engine.run_state import RunState
from ddlsched.engine.server_outages import ServerOutages, Standstill
from ddlsched.engine.state_transfers import StateTransfers
from ddlsched.engine.stops_and_moves import StopsAndMoves
from ddlsched.engine.tenant_rounds import TenantRounds
from ddlsched.engine.transfer_decisions import TransferDecisions
from ddlsched.errors import SimulationError, label
from ddlsched.units import MAX_NS, NS_PER_S, ns_from_s
from ddlsched.workload.job import Workload

_SLICES = 1 << 16
_MOST_IDLE = 1_000_000
_TOLD_IDLE = 100_000
"""After so many instants at which nothing runs or is to come, some five seconds, a line says who waits."""
_MOST_WHOLE = 1_000
"""So often all servers may be there, nothing run, nobody ask to be woken, and still no job start."""
ROUNDS_BEFORE_JUMPS = 1 << 17
"""So many instants, some 20 ms of the loop, pass before periods are looked for, as what does it must be compiled."""
_FEW_ITERATIONS = 3
"""In a job of groups that has more they are looked for at once, as its iterations take long."""


class _CompiledFormError(Exception):
    """A compiled policy raised, or could not answer what its Python form can, such as a number of more than 64 bits."""

    def __init__(self, kind: Kind, now_s: float) -> None:
        self.kind, self.now_s = kind, now_s


def run_simulation(workload: Workload, settings: RunSettings) -> Finished:
    """Run a workload to its end.

    A compiled policy that raises or cannot answer is asked in Python from the beginning of the run on: the loop asks a
    compiled one less often or in another order, so only that says what Python would have answered, or raised first.

    Raises
    ------
    InputError
        A job that can never fit, or more service with communication than the clock holds.
    PluginError, InvalidDecisionError
        A policy or model raised, or answered what cannot be.
    SimulationError
        Jobs remain and nothing will ever happen, or the clock would overflow.
    """
    start_compiling()
    try:
        return _run_to_its_end(workload, settings)
    except KeyboardInterrupt as by:
        if place := interrupted_loop():
            by.add_note(place)
        raise


def _run_to_its_end(workload: Workload, settings: RunSettings) -> Finished:
    in_python: frozenset[Kind] = frozenset()
    while True:
        try:
            return Simulation(workload, settings, in_python).run()
        except _CompiledFormError as failed:
            policy = label(getattr(settings, failed.kind))
            print(
                f"ddlsched: {failed.kind} {policy} raised, or could not answer in 64 bits, at {failed.now_s} s; "
                "the run starts again and asks it in Python",
                file=sys.stderr,
                flush=True,
            )
            in_python |= {failed.kind}


class RunParts(NamedTuple):
    """What does the work of a run."""

    state: RunState
    placing: JobPlacement
    resizing: Rescaling
    forms: PolicyForms
    settings: RunSettings


class Simulation:
    """A run of a workload under given settings; ``in_python`` are policies that are not to be compiled."""

    def __init__(self, workload: Workload, settings: RunSettings, in_python: frozenset[Kind] = frozenset()) -> None:
        self._settings = settings
        cluster, network, disturbances = settings.cluster, settings.network, settings.disturbances
        streams = random_streams(settings.options["seed"])
        given = {kind: getattr(settings, kind) for kind in (*METHODS, "contention", "rescale_cost")}
        self._policies = policies = CheckedPolicies(cluster, streams, **given)
        others = {name: getattr(disturbances, name) for name in ("checkpoint", "recovery", "health")}
        others |= {name: settings.options[name] for name in ("contention", "interference")}
        self._others_memory = FieldsBefore(others, "give each run one of its own")
        asked = policies.order, policies.communication, policies.contention
        path, predicted = policies.path_chosen_anew, disturbances.prediction_error > 0
        other_path = None if path is policies.path else policies.path
        in_others = policies.placement, policies.allocation, policies.admission, other_path
        self._forms = PolicyForms(*asked, in_python, in_others, predicted, path)
        num_slices = _SLICES if settings.window else 0
        moving = any(map(policies.stops_or_moves, ("order", "placement", "admission")))
        saving = disturbances.checkpoint_policy
        sending = moving or (saving is not None and disturbances.checkpoint_store.sends)
        arrays = build_state(
            workload, cluster, network, disturbances, settings.interference, streams["jobs"], num_slices, sending
        )
        self._state = state = RunState(workload, cluster, network, arrays)

        def changes(replaced: Collection[int]) -> Iterator[CapacityChange | Strike]:
            if settings.capacity is not None:
                return settings.capacity.changes(cluster.num_servers)
            return disturbances.capacity_changes(_places(workload, settings), streams["capacity"], replaced)

        standstill = Standstill(state, settings.span.until_ns < MAX_NS)
        self._routes = Routes(state, policies)
        costs = CommunicationCosts(cluster, network, settings.contention, settings.options["load_per_byte_s"])
        state.refuse_long_service(costs)
        refuse_what_nobody_sends(workload, settings.contention, self._routes, sending and disturbances.moves_state)
        transfers = StateTransfers(state, costs, disturbances)
        in_loop = self._forms.loop_asks_for_paths(settings.window is not None, beyond_plain_rings(state))
        hops = HopTables(state, self._routes) if in_loop else None
        self._placing = JobPlacement(state, policies, costs, self._routes, disturbances, transfers, hops)
        self._servers = ServerOutages(state, changes, disturbances, standstill, policies, self._placing)
        self._sending_state = sending
        if saving is not None:
            saved = Checkpointing(state, disturbances, saving, self._placing, transfers, self._servers.at)
            self._servers.checkpointing = saved
        self._moving = StopsAndMoves(state, policies, self._placing, standstill) if moving else None
        self._tenants = None
        if self._moving is not None and settings.tenants is not None:
            recovery = self._servers.recovery
            waiting = () if recovery is None else recovery.waiting
            preempt = self._moving.preempt
            self._tenants = TenantRounds(state, policies, self._placing, settings.tenants, preempt, waiting)
        self._resizing = Rescaling(state, policies, self._placing)
        self._sending = TransferDecisions(state, policies, settings.contention)
        self._outside = policies.advance_run
        self._unsampled = ""
        self._configure(settings.window)
        self._warmup_busy_ns = np.zeros(cluster.num_gpus, np.int64)
        recorded = None if settings.window is None else settings.window.job_id
        self._recorded_job = None if recorded is None else workload.number_of(recorded)
        self._kept = KeptSlices(short=self._recorded_job is not None)
        self._idle, self._whole = 0, 0

    def _configure(self, window: Window | None) -> None:
        run = self._state.run
        self._forms.write(run, self._sending.ask)
        rounds = self._policies.placement_has_rounds or hasattr(self._policies.placement, "wake_s")
        looks_on = any(each is not None for each in (window, self._outside, self._settings.options["watch"]))
        # Otherwise the placement is asked, job by job, only if enough GPUs have room for one.
        run.asks_always = rounds or looks_on or self._moving is not None or run.asks_moves or run.order_ranked
        run.elastic = bool(self._resizing.jobs)
        run.rerouting, run.latency_s = self._routes.chosen_anew, self._settings.contention.latency_s
        if self._routes.chosen_anew:  # by the transfers in the lists of all links
            run.refused_by_link = False
        hindrance = self._forms.hinders_skipping(any(job.dag.overlaps for job in self._state.workload))
        run.skipping_networked = not (self._routes.chosen_anew or hindrance)
        long = (self._state.jobs.iterations * self._state.jobs.grouped).max(initial=0) > _FEW_ITERATIONS
        hindrance = self._not_calm() or hindrance or self._forms.hinders_jumping()
        may_jump = not (self._routes.chosen_anew or hindrance)
        run.jumps_from_round = ROUNDS_BEFORE_JUMPS >> 17 * bool(long) if may_jump else NEVER
        if self._settings.options["sample"]:
            self._sample(hindrance)
        # Otherwise each GPU's tasks are recorded; and an order that may remember what it was asked is asked about each
        # GPU, as in recorded runs.
        run.grouping = window is None and not run.order_ranked
        self._placing.groups.may_fold = self._may_fold()
        if window is not None:
            run.record = 1
            run.record_from_ns = ns_from_s(window.from_s)
            run.record_to_ns = MAX_NS if window.to_s >= MAX_NS / NS_PER_S else ns_from_s(window.to_s)

    def _sample(self, hindrance: str) -> None:
        """Have the run leap, unless something hinders it.

        Where transfers choose their paths anew, it repeats how links were used, and jobs belong together if any of the
        paths that they may choose meet.
        """
        run = self._state.run
        if self._may_leap_by_ranks():
            run.skipping_networked, run.key_is_periodic = not self._routes.chosen_anew, 1
            hindrance = ""
        if not hindrance:
            run.sampling, run.jumps_from_round = 1, 0
        self._unsampled = hindrance

    def _may_fold(self) -> bool:
        """Return whether transfers that do alike may be simulated as one: nobody is asked which of them it is.

        Jobs stay where they are.
        """
        run, forms = self._state.run, self._forms
        if not run.grouping or self._routes.chosen_anew or self._sending_state or run.elastic or self._outside:
            return False
        fixed = run.contention == Contention.LINK_RATES or run.weights_are_fixed
        compiled = forms.all_compiled and not forms.have_memory and "number" not in forms.contention.reads
        alike = compiled and forms.answers_alike() and run.message_parts == 1
        return bool(alike and fixed and len(self._state.arrays.jitter) == 1)

    def _not_calm(self) -> str:
        """Return why what jobs that meet do may not follow from their own state up to a change from outside; "" if so.

        An allocation policy is asked whenever any job finishes, and sees how far every elastic job is. What a job that
        outlasts its prediction has left does not fall by the same in every iteration.
        """
        if self._state.run.elastic:
            return "jobs are elastic"
        if len(self._state.arrays.jitter) != 1:
            return "times of tasks vary"
        return "lengths are predicted" if self._settings.disturbances.prediction_error else ""

    def _may_leap_by_ranks(self) -> bool:
        """Return whether a sampled run leaps by the ranks that an order gave last, and then past jobs that are alone.

        Where jobs share GPUs their turns depend on the order in every iteration.
        """
        ranked = bool(self._state.run.order_ranked) and self._settings.cluster.exclusive
        return ranked and not self._not_calm() and self._forms.may_leap_by_ranks()

    def run(self) -> Finished:
        """Run to the end of the last job, or until the run is cut off."""
        state = self._state
        ensure_compiled(state.run, self._addresses())
        self._servers.begin()
        state.run.pause_ns = self._settings.span.warmup_ns or self._pause_at_end()
        answers: dict[int, Callable[[], None]] = {
            Question.KEYS: self._rank,
            Question.PLACEMENT: self._place,
            Question.PATHS: self._placing.reroute,
            Question.COMMUNICATION: self._communicate,
            Question.RATES: self._sending.rate,
            Question.FLUSH: self._flush,
            Question.CAPACITY: self._change_capacity,
            Question.ALLOCATION: self._allocate,
            Question.HEAR_SIGNALS: lambda: None,
            Question.JUMPS: lambda: ensure_compiled(state.run, [JUMPING]),
            Question.SPLIT: self._placing.groups.split_all,
        }
        begin = time.perf_counter() - spent_compiling_s()
        teller = None if (watch := self._settings.options["watch"]) is None else ProgressTeller(state, watch)
        while (question := self._advance()) in answers or self._goes_on_after(question):
            if question in answers:
                answers[question]()
            if teller is not None:
                teller.tell()
        engine_s = time.perf_counter() - spent_compiling_s() - begin
        if question == Question.POLICY_FAILED:
            raise _CompiledFormError(DOORS[Door(self._state.run.failed_door)], self._state.now_s)
        if question == Question.STUCK:
            raise SimulationError(self._why_stuck())
        if question == Question.CLOCK_OVERFLOW:
            raise SimulationError(f"at {state.now_s} s: a task would end beyond the clock's {MAX_NS / NS_PER_S:.4g} s")
        return self._finish(engine_s)

    def _advance(self) -> int:
        """Have the loop go on, or whoever calls it in the driver's stead, and return its question."""
        return int(advance(self._state.arrays)) if self._outside is None else int(self._outside(self))

    @property
    def parts(self) -> RunParts:
        """What does the run's work, for who does some of it in the driver's stead."""
        return RunParts(self._state, self._placing, self._resizing, self._forms, self._settings)

    def _addresses(self) -> Iterator[str]:
        """Yield the addresses of what the run's loop calls, beside what each calls."""
        if self._placing.hops is not None:
            yield "choosing_address"
        if self._state.run.contention == Contention.SHARES:
            yield "shares_address"
        if self._state.run.sampling:
            yield "sample_address"

    def _pause_at_end(self) -> int:
        return self._settings.span.until_ns if self._settings.span.until_ns < MAX_NS else int(NEVER)

    def _goes_on_after(self, question: int) -> bool:
        """Return whether the loop paused only for the end of the warm-up."""
        if question != Question.PAUSED or self._state.now_ns >= self._settings.span.until_ns:
            return False
        take_samples(self._state.arrays, self._state.now_ns)  # before skipped iterations are booked
        add_busy_ns(self._state.arrays, self._warmup_busy_ns)
        self._state.run.pause_ns = self._pause_at_end()
        return True

    def _finish(self, engine_s: float) -> Finished:
        self._forms.check_unchanged()
        self._policies.say_what_they_keep()
        self._others_memory.say_what_changed()
        state, now_ns = self._state, self._state.now_ns
        close_books(state.arrays)
        if now_ns < self._settings.span.warmup_ns:  # it ended within the warm-up
            self._warmup_busy_ns[:] = state.gpus.busy_ns
        self._flush()
        for stay in state.stays:
            if stay.to_ns < 0:
                finish_ns = state.jobs.finish_ns.item(stay.job)
                stay.to_ns = finish_ns if finish_ns >= 0 else now_ns
                stay.begin_ns = state.begin_of_work_ns(stay.job, stay)
        absent = [(server, since_ns, now_ns) for server, since_ns in self._servers.down.items()]
        return Finished(
            state=state.arrays,
            network=state.network,
            contention=self._settings.contention,
            stays=tuple(state.stays),
            slices=self._kept.all(),
            rescales=tuple(self._resizing.rescales),
            reservations=tuple(self._placing.reservations),
            departures=() if self._moving is None else tuple(self._moving.departures),
            failures=tuple(self._servers.failures),
            replaced=frozenset(self._servers.replaced),
            refused=() if self._tenants is None else tuple(self._tenants.refused),
            outages=(*self._servers.outages, *absent),
            busy_ns=state.gpus.busy_ns - self._warmup_busy_ns,
            warmup_ns=min(self._settings.span.warmup_ns, now_ns),
            end_ns=now_ns,
            engine_s=engine_s,
            sampled=self._settings.options["sample"],
            unsampled=self._unsampled,
            recorded_job_id=None if self._settings.window is None else self._settings.window.job_id,
        )

    # --- answers to the event loop's questions

    def _rank(self) -> None:
        """Rank the jobs that this instant must choose between."""
        state, now_s = self._state, self._state.now_s
        if state.now.order_address.item(0):
            rank_rivals(state.arrays)
            return
        count = gather_rivals(state.arrays)
        rivals = (state.views[number] for number in state.arrays.items[:count].tolist())
        for rank, number in enumerate(self._policies.in_order(rivals, now_s)):
            state.jobs.rank[number] = rank
        if not self._policies.order_stops:  # such is asked once a round, compiled or not
            self._set_wake("wake_placement_ns", "order")

    def _place(self) -> None:
        if self._servers.checkpointing is not None:
            self._servers.checkpointing.carry_out()
            self._state.now.must_place[0] = 0  # a job that left its GPUs has set it
        if self._servers.recovery is not None:
            self._servers.recovery.shrunk.carry_out()
            self._state.now.must_place[0] = 0
        if self._moving is not None:
            self._stop_and_move(self._moving)
        if self._tenants is not None:
            self._tenants.place_queue()
            self._set_wake("wake_placement_ns", "admission")
        else:
            self._placing.place_queue()
        self._set_wake("wake_placement_ns", "placement")
        if self._moving is not None:
            self._moving.plan()
            self._state.now.must_place[0] = 0  # a job that left its GPUs has set it
            self._set_wake("wake_placement_ns", "order")
        if self._state.now.order_ranked.item(0):
            self._rank()

    def _stop_and_move(self, moving: StopsAndMoves) -> None:
        """Move jobs that are due, and let the order stop others for those that wait, which then queue, too."""
        moving.carry_out()
        if moving.stop():
            if self._state.now.order_ranked.item(0):
                self._rank()
            sort_queue(self._state.arrays)

    def _allocate(self) -> None:
        self._resizing.allocate()
        self._set_wake("wake_placement_ns", "allocation")
        if self._state.now.order_ranked.item(0):  # transfers may have left links for which others wait
            self._rank()

    def _communicate(self) -> None:
        self._sending.choose()
        self._set_wake("wake_communication_ns", "communication")

    def _change_capacity(self) -> None:
        self._count_whole()
        stopped, gone = self._servers.change()
        self._resizing.jobs.lose(stopped, gone)
        self._count_idle("servers left or joined")

    def _flush(self) -> None:
        state, run = self._state, self._state.run
        slices = state.arrays.slices[: run.num_slices]
        if self._recorded_job is not None:
            slices = touching(slices, self._recorded_job, state.stays, state.jobs.first_worker)
        self._kept.append(slices)
        run.num_slices = 0
        most = 1024 + int(most_slices(state.arrays))
        if run.record and len(state.arrays.slices) < 2 * most:
            state.arrays = state.arrays._replace(slices=make_records("slice", 4 * most))

    def _set_wake(self, field: str, kind: str) -> None:
        run, wake_ns = self._state.run, self._policies.wake_ns(kind, self._state.now_ns)
        if wake_ns is None:
            return
        run[field] = min(wake_ns, run[field]) if run[field] >= 0 else wake_ns
        self._count_idle(f"{kind} asked to be woken")
        if self._idle:
            self._refuse_without_servers()

    # --- runs that will never end

    def _is_idle(self) -> bool:
        """Return whether nothing runs and no job is to arrive."""
        now = self._state.now
        return bool(now.heap_size.item(0) == 0 and now.next_arrival.item(0) == len(self._state.workload))

    def _refuse_without_servers(self) -> None:
        """Give up, while the cluster is idle, if no server will be there again."""
        now, cluster = self._state.now, self._state.cluster
        for_good = len(self._servers.down) == cluster.num_servers and now.next_capacity_ns.item(0) == NEVER
        ends = self._settings.span.until_ns < MAX_NS or now.num_work.item(0) > 0  # or an iteration at this instant
        if for_good and not ends:
            raise SimulationError(self._why_stuck() + " (no server will be there again)")

    def _count_idle(self, what: str) -> None:
        """Give up after very many instants at which nothing ran and nothing was to come."""
        self._idle = self._idle + 1 if self._is_idle() else 0
        if self._idle == _TOLD_IDLE:
            why = f"{self._why_stuck()} ({what} {_TOLD_IDLE} times while the cluster was idle; the run goes on)"
            print(f"ddlsched: {why}", file=sys.stderr, flush=True)
        if self._idle > _MOST_IDLE:
            raise SimulationError(self._why_stuck() + f" ({what} {_MOST_IDLE} times while the cluster was idle)")

    def _count_whole(self) -> None:
        """Give up when more of the cluster will never be there than often was, before a server leaves."""
        run, ends = self._state.run, self._settings.span.until_ns < MAX_NS
        if not self._is_idle() or ends or run.wake_placement_ns >= 0 or run.wake_communication_ns >= 0:
            self._whole = 0
        elif not self._servers.down:
            self._whole += 1
            if self._whole > _MOST_WHOLE:
                why = f" (all servers were there {_MOST_WHOLE} times while the cluster was idle)"
                raise SimulationError(self._why_stuck() + why)

    def _why_stuck(self) -> str:
        state, run = self._state, self._state.run
        queue = state.arrays.queue[: run.num_queued].tolist()
        reasons = {} if self._tenants is None else self._tenants.reasons
        queued = [state.views[n].job_id + (f" ({reasons[n]})" if n in reasons else "") for n in queue]
        sending = dict.fromkeys(state.transfers.job[state.arrays.waiting[: run.num_waiting]].tolist())
        waiting = [state.views[n].job_id for n in sending]
        why = f"at {state.now_s} s nothing is left to happen and {run.num_jobs_left} jobs are not finished:"
        if queued:
            kind = "placement" if self._tenants is None else "admission"
            why += f" {kind} {self._policies.label(kind)} keeps waiting with jobs {_some(queued)}"
        if self._resizing.jobs.there:
            elastic = [holding.job.job_id for holding in self._resizing.jobs.there.values()]
            why += f" allocation {self._policies.label('allocation')} keeps waiting with jobs {_some(elastic)}"
        if waiting:
            why += f" communication {self._policies.label('communication')} starts none of the transfers of jobs "
            why += _some(waiting)
        if self._servers.down:
            why += f" ({len(self._servers.down)} of {state.cluster.num_servers} servers are absent)"
        return why


def _places(workload: Workload, settings: RunSettings) -> FailurePlaces:
    """Return where failures may happen."""
    jobs = [(job.arrival_ns, job.num_gpus) for job in (workload if settings.disturbances.causes else ())]
    return FailurePlaces(settings.cluster.first_gpus.tolist(), settings.network.racks, jobs, settings.network.levels)


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest
