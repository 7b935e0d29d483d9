"""The loop: from instant to instant until Python must decide."""

from __future__ import annotations

from ddlsched.engine.field_values import (
    NEVER,
    ROUNDS_BETWEEN_SIGNALS,
    ZERO,
    Communication,
    Contention,
    JobState,
    Question,
    Stage,
)
from ddlsched.engine.loop.admission import admit_transfers, choose_paths, select_transfers
from ddlsched.engine.loop.failures import join_queue
from ddlsched.engine.loop.heap import take_first
from ddlsched.engine.loop.iterations import do_work, end_restart
from ddlsched.engine.loop.order import gather_rivals, rank_rivals, sort_queue
from ddlsched.engine.loop.placement import remove_finished
from ddlsched.engine.loop.rates import rerate_neighbours, rerate_shares
from ddlsched.engine.loop.room import find_fitting
from ddlsched.engine.loop.sharing.resting_links import forget_touched_links
from ddlsched.engine.loop.skipping.dormancy import wake
from ddlsched.engine.loop.skipping.foreseen import look_at_components, take_samples
from ddlsched.engine.loop.skipping.periods import examine_components
from ddlsched.engine.loop.tasks import dispatch, end_compute
from ddlsched.engine.loop.transfers import end_part, end_transfer
from ddlsched.engine.native.jit import STATE, called_from_python, njit
from ddlsched.engine.records import State


@njit
def most_slices(s: State) -> int:
    """The most that an instant can record: tasks and transfers end, change, start, and a failure cuts all."""
    run = s.run[0]
    return 2 * run.heap_size + 4 * run.num_active + 2 * run.num_waiting + 2 * run.num_gpus + 16


@njit
def next_instant_ns(s: State) -> int:
    run = s.run[0]
    if run.again == 1:
        return run.now_ns
    instant = NEVER
    if run.heap_size > 0:
        instant = s.end_ns[0]
    if run.next_arrival < len(s.arrivals):
        instant = min(instant, s.jobs[s.arrivals[run.next_arrival]].arrival_ns)
    if run.wake_placement_ns >= 0:
        instant = min(instant, run.wake_placement_ns)
    if run.wake_communication_ns >= 0:
        instant = min(instant, run.wake_communication_ns)
    return min(instant, run.next_capacity_ns)


@njit
def take_events(s: State) -> None:
    """Steps 1 and 2 of the instant ``now_ns``."""
    run = s.run[0]
    run.again = 0
    while run.heap_size > 0 and s.end_ns[0] == run.now_ns:
        item = take_first(run, s.heap, s.position, s.end_ns)
        if item < run.num_gpus:
            end_compute(s, item)
        elif item < run.num_gpus + len(s.transfers):
            if run.message_parts > 1 and s.transfers[item - run.num_gpus].ends_part == 1:
                end_part(s, item - run.num_gpus)
            else:
                end_transfer(s, item - run.num_gpus)
        elif s.jobs[item - run.num_gpus - len(s.transfers)].dormant == 1:
            wake(s, item - run.num_gpus - len(s.transfers))
        else:
            end_restart(s, item - run.num_gpus - len(s.transfers))
    while run.next_arrival < len(s.arrivals) and s.jobs[s.arrivals[run.next_arrival]].arrival_ns == run.now_ns:
        number = s.arrivals[run.next_arrival]
        run.next_arrival += 1
        s.jobs[number].state = JobState.QUEUED
        s.jobs[number].since_ns = run.now_ns
        join_queue(s, number)
        run.must_place = 1
    if run.wake_placement_ns == run.now_ns:
        run.wake_placement_ns = -1
        run.must_place = 1
    if run.wake_communication_ns == run.now_ns:
        run.wake_communication_ns = -1
        run.communicate = 1
    do_work(s)


@called_from_python(STATE)
def advance(s: State) -> int:
    """Run until Python is needed, and return what for."""
    run = s.run[0]
    while True:
        if run.stage == Stage.EVENTS:
            if run.clock_overflow == 1:
                return Question.CLOCK_OVERFLOW.value
            room = len(s.slices) - run.num_slices
            if run.record == 1 and most_slices(s) > room:
                return Question.FLUSH.value
            if run.num_jobs_left == 0:
                return Question.DONE.value
            instant = next_instant_ns(s)
            jumping = run.rounds >= run.jumps_from_round and run.num_unsettled == 0
            if jumping and (run.first_due >= 0 or run.components_changed == 1) and instant > run.instant_ns:
                if run.examine_address == 0:
                    return Question.JUMPS.value
                examine_components(s, ZERO)
                instant = next_instant_ns(s)
            if instant > run.pause_ns:
                run.now_ns = run.pause_ns
                run.late = 1
                return Question.PAUSED.value
            if instant == NEVER:
                return Question.STUCK.value
            if instant > run.next_look_ns:
                look_at_components(s, instant)
            if instant > run.next_sample_ns:
                take_samples(s, instant)
            run.late = 1 if instant == run.instant_ns else 0
            run.now_ns = run.instant_ns = instant
            take_events(s)
            run.stage = Stage.CAPACITY
        if run.stage == Stage.CAPACITY:
            run.stage = Stage.KEYS
            if run.next_capacity_ns == run.now_ns:
                return Question.CAPACITY.value
        if run.stage == Stage.KEYS:
            run.stage = Stage.ALLOCATION
            # One that queues alone is asked about where placement follows: an order learns of jobs by that.
            fewest = 1 if run.must_place == 1 or run.num_finished > 0 else 2
            if run.order_ranked == 1 and gather_rivals(s) >= fewest:
                if run.order_address == 0:
                    return Question.KEYS.value
                rank_rivals(s)
        if run.stage == Stage.ALLOCATION:
            run.stage = Stage.PLACEMENT
            remove_finished(s)
            if run.must_place == 1 and run.elastic == 1:
                return Question.ALLOCATION.value
        if run.stage == Stage.PLACEMENT:
            run.stage = Stage.COMMUNICATION
            placing = run.must_place == 1 and (run.num_queued > 0 or run.asks_moves == 1)
            run.must_place = 0
            if placing:
                sort_queue(s)
                if run.failed_door >= 0:
                    return Question.POLICY_FAILED.value
                if run.asks_always == 1 or find_fitting(s, s.queue, ZERO, run.num_queued) >= 0:
                    return Question.PLACEMENT.value
        if run.stage == Stage.COMMUNICATION:
            if run.num_unrouted > 0:
                if run.choosing_address != 0:
                    choose_paths(s, ZERO)
                if run.failed_door >= 0:
                    return Question.POLICY_FAILED.value
                if run.num_unrouted > 0:
                    return Question.PATHS.value
            run.stage = Stage.RATES
            if run.communicate == 1:
                run.communicate = 0
                if run.communication == Communication.ADMITS:
                    admit_transfers(s)
                elif run.communication == Communication.KEYS:
                    select_transfers(s)
                else:
                    return Question.COMMUNICATION.value
                if run.doubt == 1:
                    run.communicate, run.stage = 1, Stage.COMMUNICATION.value
                    return Question.SPLIT.value
        if run.stage == Stage.RATES:
            run.stage = Stage.DISPATCH
            if run.rerate == 1:
                if run.contention == Contention.LINK_RATES:
                    rerate_neighbours(s)
                elif run.contention == Contention.SHARES:
                    rerate_shares(s, ZERO)
                    if run.doubt == 1:
                        run.stage = Stage.RATES.value
                        return Question.SPLIT.value
                elif run.num_active > 0:
                    return Question.RATES.value
                forget_touched_links(s)
        dispatch(s)
        if run.failed_door >= 0:
            return Question.POLICY_FAILED.value
        run.stage = Stage.EVENTS
        run.rounds += 1
        if run.rounds % ROUNDS_BETWEEN_SIGNALS == 0:
            return Question.HEAR_SIGNALS.value
