"""Period jumps: jobs that share GPUs or links jump over whole periods once their common state has recurred."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import KEY_WORDS, NEVER, ZERO, Door, Due, Stretch
from ddlsched.engine.loop.order import call_policy, write_key
from ddlsched.engine.loop.skipping.components import find_components
from ddlsched.engine.loop.skipping.due import calm_until_ns, quiet_until_ns
from ddlsched.engine.loop.skipping.foreseen import foresee, look, seen_periods, settle_samples
from ddlsched.engine.loop.skipping.measuring import forget_stretch
from ddlsched.engine.loop.skipping.period_snapshots import COMPARING, SAVING, walk
from ddlsched.engine.loop.skipping.sampling import is_time_for_a_step, take_step
from ddlsched.engine.loop.tasks import compute_steps
from ddlsched.engine.native.jit import called_by_address, njit
from ddlsched.engine.records import Records, State

MOST_TRIES = 1 << 12
"""In a component whose state has not recurred in so many examinations it is looked for no more until that changes."""


@called_by_address("examine_address")
def examine_components(s: State, number: int) -> None:
    """Between two instants: examine each component whose anchor has begun an iteration; ``number`` means nothing."""
    run = s.run[0]
    if run.record == 1 and run.now_ns >= run.record_from_ns:
        run.components_changed, run.first_due = 0, -1
        return
    if run.components_changed == 1:
        find_components(s)
    while run.first_due >= 0:
        number = run.first_due
        due = s.jobs[number].due
        run.first_due = s.jobs[number].next_due
        s.jobs[number].due = 0
        if due == Due.BEGINS and s.jobs[number].anchor == 1:
            examine(s, number)
        if s.jobs[number].counts == 1 and s.jobs[number].root == number and is_time_for_a_step(s, number, due):
            take_step(s, number)


@njit
def examine(s: State, anchor: int) -> None:
    """Jump over periods if the state recurs, exactly: in a sampled run, too, this goes first."""
    job = s.jobs[anchor]
    if s.run[0].now_ns > job.resting_until_ns and recurs(s, anchor):
        first = s.jobs[job.root]
        first.stretch, first.stretch_left = Stretch.NONE, first.component_size
        forget_stretch(s, job.root)


@njit
def recurs(s: State, anchor: int) -> bool:
    """Jump if the state is that of the snapshot; take another after 1, 2, 4, 8 ... examinations."""
    job = s.jobs[anchor]
    if job.window == 0 or job.resting_until_ns > 0:
        job.resting_until_ns = 0
        save(s, anchor)
        guess(s, job.root, max(job.start_ns, job.began_ns), job.start_iterations_left - job.iterations_left)
        return False
    job.tries += 1
    if walk(s, anchor, COMPARING, ZERO):
        return jump(s, anchor)
    if job.tries >= job.window:
        job.window *= 2
        from_ns, tries = job.saved_ns, job.tries
        save(s, anchor)
        guess(s, job.root, from_ns, tries)
        if job.window > MOST_TRIES:
            job.anchor = 0
    return False


@njit
def guess(s: State, root: int, from_ns: int, iterations: int) -> None:
    """Look at the next iteration of a job alone as at a period, should it last as long as those that it has done.

    How far is a matter of speed only: what was looked at not far enough, or too seldom, is looked at again.
    """
    run, job = s.run[0], s.jobs[root]
    iteration_ns = (run.now_ns - from_ns) // max(iterations, 1)
    job.num_phases = 0
    if job.phases >= 0 and job.component_size == 1 and iterations > 0 and iteration_ns > 0:
        periods = min((calm_until_ns(s, root) - run.now_ns) // iteration_ns, job.iterations_left - 1)
        look(s, root, run.now_ns + periods * iteration_ns, iteration_ns)


@njit
def save(s: State, anchor: int) -> None:
    run = s.run[0]
    job = s.jobs[anchor]
    job.saved_ns, job.tries = run.now_ns, 0
    if not walk(s, anchor, SAVING, ZERO):
        job.window = 0
    else:
        job.window = max(job.window, 1)
        keep_keys(s, job.root)


@njit
def jump(s: State, anchor: int) -> bool:
    """Let as many periods pass at once as nothing from outside breaks, and start from there; return whether it may."""
    run = s.run[0]
    job = s.jobs[anchor]
    period_ns = run.now_ns - job.saved_ns
    first = s.jobs[job.root]
    foreseen = first.phases >= 0
    calm_ns = calm_until_ns(s, job.root) if foreseen else quiet_until_ns(s, job.root)
    if calm_ns - run.now_ns < period_ns:
        job.resting_until_ns = calm_ns
        return True
    most = min((calm_ns - run.now_ns) // period_ns, most_periods(s, job.root))
    until_ns, periods = run.now_ns + most * period_ns, most
    if foreseen:
        periods = seen_periods(s, job.root, period_ns, most)
    if periods > 0:
        run.jumps += 1
        if run.now_ns + periods * period_ns > run.next_sample_ns:
            settle_samples(s, run.now_ns + periods * period_ns)
            foresee(s, job.root, periods)
        book_periods(s, job.root, periods, run.now_ns + periods * period_ns)
        walk(s, anchor, COMPARING, periods)
    now_ns = run.now_ns
    run.now_ns += max(periods, 0) * period_ns
    save(s, anchor)
    first.num_phases = 0
    looks = foreseen and periods < most
    if looks:
        look(s, job.root, until_ns, period_ns)
    run.now_ns = now_ns
    return periods > 0 or looks


@njit
def most_periods(s: State, root: int) -> int:
    """How often the last period may be repeated before a job of the component ends or the order of two changes."""
    run = s.run[0]
    number = root
    while number >= 0:
        note_keys(s, number)
        number = s.jobs[number].next_member
    periods = NEVER
    number = root
    while number >= 0:
        job = s.jobs[number]
        iterations = s.snapshots[job.snapshot] - job.iterations_left
        if iterations > 0:
            periods = min(periods, (job.iterations_left - 1) // iterations)
        other = root
        while other != number:
            for place in range(2):
                if periodic(run, place) == 0:
                    periods = min(periods, periods_in_order(s, number, other, place))
            other = s.jobs[other].next_member
        number = job.next_member
    return periods


@njit
def periodic(run: Records, place: int) -> int:
    """Whether a key (0: of the order; 1: of transfers) is the same in every period."""
    if place == 0:
        return run.key_is_periodic
    return run.transfer_key_is_periodic


@njit
def note_keys(s: State, number: int) -> None:
    """Write a job's key, and that of its transfers, beside those of the snapshot."""
    run = s.run[0]
    job = s.jobs[number]
    spare = len(s.keys) // KEY_WORDS - 2
    for place in range(2):
        if periodic(run, place) == 0:
            if place == 0:
                write_key(s, number, spare)
            elif job.num_transfers > 0:
                door, address, fields = Door.COMMUNICATION.value, run.communication_address, run.communication_fields
                call_policy(s, door, address, job.first_transfer, spare, fields)
            for word in range(KEY_WORDS):
                s.key_notes[first_note(number, place) + KEY_WORDS + word] = s.keys[spare * KEY_WORDS + word]


@njit
def first_note(number: int, place: int) -> int:
    """Where a key of a job is noted: that of the snapshot, then that of now."""
    return (2 * number + place) * 2 * KEY_WORDS


@njit
def keep_keys(s: State, root: int) -> None:
    """Let the keys of now be those of the snapshot."""
    number = root
    while number >= 0:
        note_keys(s, number)
        for place in range(2):
            note = first_note(number, place)
            for word in range(KEY_WORDS):
                s.key_notes[note + word] = s.key_notes[note + KEY_WORDS + word]
        number = s.jobs[number].next_member


@njit
def periods_in_order(s: State, number: int, other: int, place: int) -> int:
    """How often the last period may be repeated, in which two jobs keep their order.

    Only for keys whose first number changes by the same amount in every period, and no other does. If both change
    equally, every comparison comes out as it did. If not, they must be so far apart that the order is the same at
    whatever times of a period they are taken, the last one included.
    """
    words = s.run[0].key_words if place == 0 else s.run[0].transfer_key_words
    first, second = first_note(number, place), first_note(other, place)
    for word in range(1, words):
        for note in (first, second):
            if s.key_notes[note + word] != s.key_notes[note + KEY_WORDS + word]:
                return np.int64(0)
    if s.key_notes[second + KEY_WORDS] < s.key_notes[first + KEY_WORDS]:
        first, second = second, first
    key, other_key = s.key_notes[first + KEY_WORDS], s.key_notes[second + KEY_WORDS]
    fall, other_fall = s.key_notes[first] - key, s.key_notes[second] - other_key
    if fall == other_fall:
        return NEVER
    gap = min(other_key, other_key + other_fall) - max(key, key + fall)
    if gap <= 0:
        return np.int64(0)
    if fall > other_fall:
        return NEVER
    return (gap - 1) // (other_fall - fall)


@njit
def book_periods(s: State, root: int, periods: int, until_ns: int) -> None:
    """Count what the jobs of a component do in the periods that are jumped over."""
    run = s.run[0]
    number = root
    while number >= 0:
        job = s.jobs[number]
        iterations = periods * (s.snapshots[job.snapshot] - job.iterations_left)
        job.ahead_ns = until_ns
        run.jumped_iterations += iterations
        if job.shared_gpus > 0 or job.shared_links > 0:
            run.contended_iterations += iterations
            run.jumped_contended += iterations
        run.events += iterations * (compute_steps(job) + job.num_linked)
        number = job.next_member
