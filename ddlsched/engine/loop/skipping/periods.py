"""Period jumps: jobs that share GPUs or links jump over whole periods once their common state has recurred."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.order import goes_before, write_key
from ddlsched.engine.loop.policy_calls import call_policy
from ddlsched.engine.loop.skipping.period_snapshots import COMPARING, SAVING, snapshot_words, walk
from ddlsched.engine.loop.tasks import compute_steps, uneven_ns
from ddlsched.engine.native.jit import called_by_address, njit
from ddlsched.engine.records.field_values import KEY_WORDS, NEVER, ZERO, Door
from ddlsched.engine.records.layout import Records, State

MOST_JOBS = 16
"""Larger components are left alone: their state seldom recurs."""
MOST_TRIES = 1 << 12
"""A component whose state has not recurred in so many examinations is left alone until it changes."""


@njit
def find_root(s: State, number: int) -> int:
    root = number
    while s.jobs[root].root != root:
        root = s.jobs[root].root
    s.jobs[number].root = root
    return root


@njit
def join_components(s: State, number: int, other: int) -> None:
    root, other_root = find_root(s, number), find_root(s, other)
    s.jobs[max(root, other_root)].root = min(root, other_root)


@njit
def join_neighbours(s: State, number: int) -> None:
    """Join a job to those on its GPUs, and to those whose transfers use its links."""
    run = s.run[0]
    job = s.jobs[number]
    if job.shared_gpus > 0:
        for worker in range(job.first_worker, job.first_worker + job.num_gpus):
            gpu = s.workers[worker].gpu
            if s.gpus[gpu].stamp != run.stamp:  # the first of its jobs joins them all
                s.gpus[gpu].stamp = run.stamp
                for place in range(s.gpus[gpu].num_residents):
                    join_components(s, number, s.workers[s.residents[gpu, place]].job)
    if job.shared_links > 0:
        for place in range(job.first_link, job.first_link + job.num_links):
            link = s.links[s.job_links[place]]
            if link.stamp == run.stamp:
                join_components(s, number, link.first_job)
            else:
                link.stamp, link.first_job = run.stamp, number


@njit
def find_components(s: State) -> None:
    """Group the running jobs by shared GPUs and links; nothing is known of the groups' past."""
    run = s.run[0]
    run.components_changed, run.first_due, run.num_words = 0, -1, 0
    for place in range(run.num_running):
        job = s.jobs[s.running[place]]
        job.root, job.next_member = s.running[place], -1
        job.anchor = job.due = 0
    run.stamp += 1
    for place in range(run.num_running):
        join_neighbours(s, s.running[place])
    for place in range(run.num_running):
        number = s.running[place]
        root = find_root(s, number)
        if root != number:
            s.jobs[number].next_member = s.jobs[root].next_member
            s.jobs[root].next_member = number
    for place in range(run.num_running):
        number = s.running[place]
        if s.jobs[number].root == number and s.jobs[number].dormant == 0:
            begin_component(s, number)


@njit
def begin_component(s: State, root: int) -> None:
    """Give a component room for a snapshot, and its most urgent job, which never starves, the part of the anchor."""
    run = s.run[0]
    anchor, number, count = root, root, 0
    while number >= 0:
        job = s.jobs[number]
        count += 1
        job.snapshot = run.num_words
        run.num_words += snapshot_words(job)
        if count > MOST_JOBS or run.num_words > len(s.snapshots):
            run.num_words = s.jobs[root].snapshot
            return
        if goes_before(s, number, anchor):
            anchor = number
        number = job.next_member
    job = s.jobs[anchor]
    job.anchor = 1
    job.tries = job.window = job.resting_until_ns = 0


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
        run.first_due = s.jobs[number].next_due
        s.jobs[number].due = 0
        examine(s, number)


@njit
def examine(s: State, anchor: int) -> None:
    """Jump if the state is that of the snapshot; take another after 1, 2, 4, 8 ... examinations."""
    run = s.run[0]
    job = s.jobs[anchor]
    if run.now_ns <= job.resting_until_ns:
        return
    if job.window == 0 or job.resting_until_ns > 0:
        job.resting_until_ns = 0
        save(s, anchor)
        return
    job.tries += 1
    if walk(s, anchor, COMPARING, ZERO):
        if run.jumps == 0:
            run.events_to_recurrence = run.events
        jump(s, anchor)
    elif job.tries >= job.window:
        job.window *= 2
        save(s, anchor)
        if job.window > MOST_TRIES:
            job.anchor = 0


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
def jump(s: State, anchor: int) -> None:
    """Let as many periods pass at once as nothing from outside breaks, and start from there."""
    run = s.run[0]
    job = s.jobs[anchor]
    period_ns = run.now_ns - job.saved_ns
    limit_ns = quiet_until_ns(s, job.root)
    if limit_ns - run.now_ns < period_ns:
        job.resting_until_ns = limit_ns
        return
    periods = min((limit_ns - run.now_ns) // period_ns, most_periods(s, job.root))
    if periods > 0:
        run.jumps += 1
        book_periods(s, job.root, periods, run.now_ns + periods * period_ns)
        walk(s, anchor, COMPARING, periods)
    now_ns = run.now_ns
    run.now_ns += max(periods, 0) * period_ns
    save(s, anchor)
    run.now_ns = now_ns


@njit
def quiet_until_ns(s: State, root: int) -> int:
    """Until when nothing comes from outside of the component of ``root``, and nothing looks at it."""
    run = s.run[0]
    limit_ns = min(run.pause_ns, run.next_sample_ns, np.int64(4e18), run.next_capacity_ns - 1)
    if run.record == 1:
        limit_ns = min(limit_ns, run.record_from_ns)
    if run.next_arrival < len(s.arrivals):
        limit_ns = min(limit_ns, s.jobs[s.arrivals[run.next_arrival]].arrival_ns - 1)
    if run.wake_placement_ns >= 0:
        limit_ns = min(limit_ns, run.wake_placement_ns - 1)
    if run.wake_communication_ns >= 0:
        limit_ns = min(limit_ns, run.wake_communication_ns - 1)
    if run.num_queued > 0 or run.asks_moves == 1:
        for place in range(run.num_running):
            number = s.running[place]
            if s.jobs[number].root != root:
                limit_ns = min(limit_ns, earliest_finish_ns(s, number) - 1)
    return limit_ns


@njit
def earliest_finish_ns(s: State, number: int) -> int:
    """A time before which a job surely does not finish."""
    run = s.run[0]
    job = s.jobs[number]
    if job.dormant == 1:
        return s.end_ns[s.position[run.num_gpus + len(s.transfers) + number]]
    iteration_ns = job.compute_ns
    if job.uneven == 1:
        iteration_ns = np.int64(0)
        for task in range(job.num_tasks):
            record = s.tasks[job.first_task + task]
            ours = job.grouped == 0 or record.worker == job.first_worker
            if ours and record.transfer < 0:
                iteration_ns += uneven_ns(s, job.first_worker, task)
    from_ns = max(run.now_ns, job.ahead_ns)
    most_iterations = (np.int64(4e18) - from_ns) // max(iteration_ns, 1)
    return from_ns + min(job.iterations_left - 1, most_iterations) * iteration_ns


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
        run.events += iterations * (compute_steps(job) + job.num_linked)
        number = job.next_member
