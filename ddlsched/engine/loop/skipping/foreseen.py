"""Samples within periods that are jumped over: what a component does then is seen at their phases of a period before.

A component whose state has recurred does in each period what it does in the next one, which is simulated: at the phase
of each sample to come it is noted for how long its GPUs have computed since the period began, and how many transfers
run and wait. The jump hands this to the samples. ``foreseen`` holds, for the next sample and those after it, what is to
be added to what the others do and to what the component does at its start, where it stands until its time comes.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import NEVER, TransferState
from ddlsched.engine.loop.skipping.dormancy import dormant_busy_ns, dormant_sending
from ddlsched.engine.loop.skipping.period_snapshots import num_simulated, simulated_worker
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State

WORDS = 3
"""Of a sample to come: computed, running, waiting."""


@njit
def component_now(s: State, root: int, time_ns: int) -> tuple[int, int, int, int]:
    """For how long a component's GPUs have computed until a time, how many do, and transfers that run and wait."""
    computed_ns = computing = running = waiting = np.int64(0)
    number = root
    while number >= 0:
        job = s.jobs[number]
        for place in range(num_simulated(job)):
            simulated = simulated_worker(s, job, place)
            worker, g = s.workers[simulated], s.gpus[s.workers[simulated].gpu]
            if worker.leader == simulated:
                weight = job.num_gpus if job.lockstep == 1 else g.group_size
                computed_ns += weight * worker.busy_ns
                if g.worker == simulated:
                    computing += weight
                    computed_ns += weight * (time_ns - g.started_ns)
        for place in range(job.first_transfer, job.first_transfer + job.num_transfers):
            transfer = s.transfers[place]
            if transfer.state == TransferState.ACTIVE:
                running += 1 + transfer.others
            elif transfer.state == TransferState.WAITING:
                waiting += 1 + transfer.others
        number = job.next_member
    return computed_ns, computing, running, waiting


@njit
def seen_periods(s: State, root: int, period_ns: int, periods: int) -> int:
    """Over how many of some periods the samples are known: if the one that has just ended was looked at, over most."""
    run, job = s.run[0], s.jobs[root]
    if job.num_phases > 0 and job.phases_from_ns + period_ns == run.now_ns and job.phases_ns == period_ns:
        seen_ns = job.samples_from_ns + job.num_phases * job.samples_step_ns - run.now_ns
        seen = min(periods, seen_ns // period_ns)
        if settled(s, run.now_ns + seen * period_ns)[0] >= job.samples_step_ns:
            return seen
    return min(periods, (run.next_sample_ns - run.now_ns) // period_ns)


@njit
def look(s: State, root: int, until_ns: int, period_ns: int) -> None:
    """Have the period that begins now looked at, at the phases of the samples until a time that are left then."""
    run, job = s.run[0], s.jobs[root]
    job.samples_step_ns, job.samples_from_ns = settled(s, until_ns)
    job.num_phases = max((until_ns - 1 - job.samples_from_ns) // job.samples_step_ns + 1, 0)
    job.phases_from_ns, job.phases_ns, job.looks_ns = run.now_ns, period_ns, run.now_ns - 1
    job.computed_before_ns = component_now(s, root, run.now_ns)[0]
    next_look(s, job)


@njit
def look_ns(job: Records, place: int) -> int:
    """When the phase of a sample is looked at."""
    sample_ns = job.samples_from_ns + place * job.samples_step_ns
    return job.phases_from_ns + (sample_ns - job.phases_from_ns) % job.phases_ns


@njit
def next_look(s: State, job: Records) -> None:
    """Find when a component is looked at next."""
    following = NEVER
    for place in range(job.num_phases):
        if look_ns(job, place) > job.looks_ns:
            following = min(following, look_ns(job, place))
    job.looks_ns = following
    s.run[0].next_look_ns = min(s.run[0].next_look_ns, following)


@njit
def look_at_components(s: State, until_ns: int) -> None:
    """Note what components do at phases before ``until_ns``, until when all stays as it is."""
    run = s.run[0]
    run.next_look_ns = NEVER
    for running in range(run.num_running):
        number = s.running[running]
        job = s.jobs[number]
        while job.num_phases > 0 and job.looks_ns < until_ns:
            computed_ns, _, sending, waiting = component_now(s, number, job.looks_ns)
            for place in range(job.num_phases):
                if look_ns(job, place) == job.looks_ns:
                    at = job.phases + WORDS * place
                    s.snapshots[at] = computed_ns - job.computed_before_ns
                    s.snapshots[at + 1], s.snapshots[at + 2] = sending, waiting
            next_look(s, job)
        if job.num_phases > 0:
            run.next_look_ns = min(run.next_look_ns, job.looks_ns)


@njit
def foresee(s: State, root: int, periods: int) -> None:
    """Hand samples what a component does in periods that it is about to jump over."""
    run, job = s.run[0], s.jobs[root]
    computed_ns, computing, sending, waiting = component_now(s, root, run.now_ns)
    period_ns, whole_ns = job.phases_ns, computed_ns - job.computed_before_ns
    end_ns = run.now_ns + periods * period_ns
    before_ns, handed_ns = run.now_ns, np.int64(0)
    for place in range(job.num_phases + 1):
        sample_ns = job.samples_from_ns + place * job.samples_step_ns
        if sample_ns < run.now_ns:
            continue
        last = place == job.num_phases or sample_ns >= end_ns
        until_ns, done_ns = end_ns, periods * whole_ns
        if not last:
            until_ns = sample_ns
            done_ns = (sample_ns - run.now_ns) // period_ns * whole_ns + s.snapshots[job.phases + WORDS * place]
        added_ns = np.float64(done_ns - handed_ns - computing * (until_ns - before_ns))
        ahead = max(until_ns - run.next_sample_ns, 0)
        record = s.foreseen[-(-ahead // run.sample_step_ns)]
        record.busy_ns += added_ns
        run.busy_ns -= added_ns
        if last:
            return
        if until_ns >= run.next_sample_ns and ahead % run.sample_step_ns == 0:
            record.running += s.snapshots[job.phases + WORDS * place + 1] - sending
            record.waiting += s.snapshots[job.phases + WORDS * place + 2] - waiting
        before_ns, handed_ns = until_ns, done_ns


@njit
def hand_out(s: State, busy_ns: float, until_ns: int) -> None:
    """Hand samples before a time their parts of what has been added to ``busy_ns`` for all of the time until then."""
    run = s.run[0]
    added_ns, from_ns, place = run.busy_ns - busy_ns, run.now_ns, 0
    sample_ns = run.next_sample_ns
    while sample_ns < until_ns:
        part_ns = added_ns * ((sample_ns - from_ns) / (until_ns - run.now_ns))
        s.foreseen[place].busy_ns += part_ns
        run.busy_ns -= part_ns
        from_ns, place, sample_ns = sample_ns, place + 1, sample_ns + run.sample_step_ns
    if place > 0:
        s.foreseen[place].busy_ns += run.busy_ns - busy_ns
        run.busy_ns = busy_ns


@njit
def forget_foreseen(record: Records) -> None:
    record.busy_ns, record.running, record.waiting = 0.0, 0, 0


@njit
def settled(s: State, until_ns: int) -> tuple[int, int]:
    """How far samples are apart once a time is reached, and when the next of those is that are left then."""
    run = s.run[0]
    taken, step_ns, next_ns = run.num_samples, run.sample_step_ns, run.next_sample_ns
    while taken + max((until_ns - 1 - next_ns) // step_ns + 1, 0) > len(s.samples) - 1:
        next_ns += step_ns if taken % 2 == 0 else 0
        taken, step_ns = taken // 2, 2 * step_ns
    return step_ns, next_ns


@njit
def settle_samples(s: State, until_ns: int) -> None:
    """Take samples as seldom from now on as when a time is reached, which is sure to be."""
    step_ns = settled(s, until_ns)[0]
    while s.run[0].sample_step_ns < step_ns:
        merge_samples(s)


@njit
def merge_samples(s: State) -> None:
    """Make one of every two samples, and take half as many from now on; one left over joins the next."""
    run = s.run[0]
    odd = run.num_samples % 2
    for place in range(run.num_samples // 2):
        busy_ns = s.samples[2 * place].busy_ns
        s.samples[place] = s.samples[2 * place + 1]
        s.samples[place].busy_ns += busy_ns
    if odd == 1:
        run.busy_ns += s.samples[run.num_samples - 1].busy_ns
    else:
        run.next_sample_ns += run.sample_step_ns
    for place in range(len(s.foreseen)):
        last = 2 * place + 1 - odd
        busy_ns = 0.0
        for other in range(max(last - 1, 0), min(last + 1, len(s.foreseen))):
            busy_ns += s.foreseen[other].busy_ns
            s.foreseen[other].busy_ns = 0.0
        if last < len(s.foreseen):
            s.foreseen[place] = s.foreseen[last]
        else:
            forget_foreseen(s.foreseen[place])
        s.foreseen[place].busy_ns = busy_ns
    run.num_samples //= 2
    run.sample_step_ns *= 2


@njit
def take_samples(s: State, until_ns: int) -> None:
    """Record the state, which stays as it is until ``until_ns``, at each sampling time before that."""
    run = s.run[0]
    while run.next_sample_ns < until_ns:
        if run.num_samples == len(s.samples) - 1:  # the last is for the end of the run
            merge_samples(s)
            if run.next_sample_ns >= until_ns:
                return
        take_sample(s, run.next_sample_ns)
        take_foreseen(s)
        if run.next_sample_ns > NEVER - run.sample_step_ns:
            run.next_sample_ns = NEVER
        else:
            run.next_sample_ns += run.sample_step_ns


@njit
def take_sample(s: State, time_ns: int) -> None:
    run = s.run[0]
    record = s.samples[run.num_samples]
    run.num_samples += 1
    record.time_ns = time_ns
    record.busy_ns = run.busy_ns + np.float64(run.computing_gpus) * (time_ns - run.sampled_ns) + s.foreseen[0].busy_ns
    s.foreseen[0].busy_ns = 0.0
    record.allocated_gpus, record.queued_jobs = run.allocated_gpus, run.num_queued + run.num_elastic_queued
    record.active_transfers = run.num_active + run.others_active
    record.waiting_transfers = run.num_waiting + run.others_waiting
    for place in range(run.num_dormant):
        job = s.jobs[s.dormant[place]]
        record.busy_ns += np.float64(job.num_gpus) * dormant_busy_ns(s, job, run.sampled_ns, time_ns)
        record.active_transfers += dormant_sending(s, job, time_ns)
    run.busy_ns = 0.0
    run.sampled_ns = time_ns


@njit
def take_foreseen(s: State) -> None:
    """Add to the sample that was taken last the transfers of components that had jumped over its time."""
    record = s.samples[s.run[0].num_samples - 1]
    record.active_transfers += s.foreseen[0].running
    record.waiting_transfers += s.foreseen[0].waiting
    for place in range(len(s.foreseen) - 1):
        s.foreseen[place] = s.foreseen[place + 1]
    forget_foreseen(s.foreseen[len(s.foreseen) - 1])
