"""An iteration starts, ends, and is followed by the next."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import NEVER, Due, JobState
from ddlsched.engine.loop.gpu_groups import group_gpus, part_groups_of
from ddlsched.engine.loop.heap import schedule
from ddlsched.engine.loop.rates import alone_rate
from ddlsched.engine.loop.skipping.dormancy import fall_dormant
from ddlsched.engine.loop.skipping.due import count_iteration, make_due
from ddlsched.engine.loop.tasks import (
    begin_sources,
    compute_steps,
    end_all_reduce,
    should_be_lockstep,
    succeed,
    take_ready,
    uneven_ns,
)
from ddlsched.engine.loop.time_accounts import book_computing, count_time
from ddlsched.engine.loop.transfers import join_waiting
from ddlsched.engine.native.jit import NUMBER, STATE, called_from_python, njit
from ddlsched.engine.records import Records, State


@njit
def may_skip(s: State, job: Records) -> bool:
    """Whether the job's iterations are all alike and nothing that a policy decides depends on their instants."""
    run = s.run[0]
    if job.iterations_left < 2 or job.profiled < 0 or len(s.jitter) > 1:
        return False
    networked = job.num_linked > 0
    return not networked or (run.skipping_networked == 1 and job.shared_links == 0 and run.num_unsettled == 0)


@njit
def task_ns(s: State, job: Records, task: int) -> int:
    """How long a task takes on the job's first worker."""
    if job.uneven == 1:
        return uneven_ns(s, job.first_worker, task)
    return s.tasks[job.first_task + task].duration_ns


@njit
def alone_ns(s: State, number: int) -> int:
    """How long a transfer takes that meets nobody."""
    transfer = s.transfers[number]
    after_ns = np.ceil(transfer.latency_ns + transfer.bytes * (1e9 / alone_rate(s, number)) - 0.001)
    return np.int64(after_ns) if 0.0 < after_ns < 4e18 else np.int64(0)


@njit
def end_for_all(s: State, job: Records, task: int) -> None:
    """A task of a job in lockstep has ended."""
    record = s.tasks[job.first_task + task]
    succeed(s, job, record, job.first_worker, job.first_worker + 1, job.num_gpus if record.transfer < 0 else 1)


@njit
def profile_iteration(s: State, job: Records) -> bool:
    """Note when each task of an undisturbed iteration begins and ends; return whether such may be skipped over.

    They may not if transfers of the job overlap, whose rates and order would have to be known, or if something takes no
    time, so that it would matter in which round of an instant a job wakes. The iteration is then gone through
    nevertheless, in any order, which leaves all counts of predecessors as they were.
    """
    run = s.run[0]
    first = s.workers[job.first_worker]
    others_work = run.num_work
    computing, sending = -1, -1
    computed_ns = sent_ns = NEVER
    now_ns = job.period_busy_ns = job.period_load_ns = job.period_events = np.int64(0)
    regular = True
    left = job.num_tasks
    begin_sources(s, job)
    while left > 0:
        while run.num_work > others_work:
            run.num_work -= 1
            number = s.work[run.num_work]
            transfer = s.transfers[number]
            record = s.tasks[job.first_task + transfer.task]
            record.begins_ns = record.ends_ns = now_ns
            job.period_load_ns += record.load_ns
            if transfer.num_entries > 0 and sent_ns == NEVER:
                sending, sent_ns = transfer.task, now_ns + alone_ns(s, number)
                record.ends_ns = sent_ns
                regular = regular and sent_ns > now_ns
                job.period_events += 1
            else:
                regular = regular and transfer.num_entries == 0
                left -= 1
                end_for_all(s, job, transfer.task)
        if computed_ns == NEVER and first.num_ready > 0:
            computing = take_ready(s, job.first_worker)
            computed_ns = now_ns + task_ns(s, job, computing)
            regular = regular and computed_ns > now_ns
            record = s.tasks[job.first_task + computing]
            record.begins_ns, record.ends_ns = now_ns, computed_ns
            job.period_busy_ns += computed_ns - now_ns
            job.period_events += job.num_gpus
        if computed_ns == NEVER and sent_ns == NEVER:
            continue
        now_ns = min(computed_ns, sent_ns)  # all that ends now ends before anything begins
        if computed_ns == now_ns:
            computed_ns = NEVER
            left -= 1
            end_for_all(s, job, computing)
        if sent_ns == now_ns:
            sent_ns = NEVER
            left -= 1
            end_for_all(s, job, sending)
    job.period_ns = now_ns
    return regular and 0 < now_ns < 4e18


@njit
def start_iteration(s: State, job: Records) -> None:
    job.iteration_ns = s.run[0].now_ns
    job.parity = 1 - job.parity
    job.steps_left = compute_steps(job) + (job.num_tuples if job.grouped == 1 else job.num_transfers)
    lockstep = should_be_lockstep(job)
    if lockstep != job.lockstep:
        count_time(job, s.run[0].now_ns)
        if lockstep == 1:
            part_groups_of(s, job)
        if lockstep == 1 and len(s.penalties_ppm) > 0:
            book_computing(s, job)  # workers with other neighbours have computed for other times
        job.lockstep = lockstep
    if lockstep == 1 and may_skip(s, job):
        if job.profiled == 0:
            job.profiled = 1 if profile_iteration(s, job) else -1
        if job.profiled == 1 and fall_dormant(s, job):
            return
    if lockstep == 0 and job.uneven == 0 and s.run[0].grouping == 1:
        if job.group_wait == 0:
            group_gpus(s, s.workers[job.first_worker].job)
        else:
            job.group_wait -= 1
    if job.anchor == 1 and job.due == 0:
        make_due(s, s.workers[job.first_worker].job, Due.BEGINS.value)
    if job.counts == 1:
        count_iteration(s, job)
    begin_sources(s, job)


@njit
def hold_gpus(s: State, number: int, hold_ns: int) -> None:
    """A job that starts again, or with another size, holds its GPUs before its first task.

    ``hold_ns`` below 0: until its state has come, and then as long as the job's record says.
    """
    run = s.run[0]
    s.jobs[number].restarting = 1
    if hold_ns < 0:
        return
    end = run.now_ns + hold_ns
    if end < run.now_ns:
        run.clock_overflow = 1
        end = run.now_ns
    schedule(run, s.heap, s.position, s.end_ns, run.num_gpus + len(s.transfers) + number, end)


@njit
def end_restart(s: State, number: int) -> None:
    job = s.jobs[number]
    count_time(job, s.run[0].now_ns)
    job.restarting = 0
    job.checkpoint_ns = job.began_ns = s.run[0].now_ns
    start_iteration(s, job)


@njit
def settle_in(s: State, number: int) -> None:
    """All of a job's state has come to its GPUs: it starts again. Or to where it saves it, while it works."""
    run = s.run[0]
    run.num_unsettled -= 1
    run.components_changed = 1
    if s.jobs[number].hold_ns < 0:
        s.jobs[number].saved_ns = run.now_ns
    elif s.jobs[number].hold_ns > 0:
        hold_gpus(s, number, s.jobs[number].hold_ns)
    else:
        end_restart(s, number)


@called_from_python(STATE, NUMBER)
def go_on(s: State, number: int) -> None:
    """A job whose iteration has ended stays where it is after all."""
    run = s.run[0]
    s.jobs[number].leaving = 0
    run.num_unsettled -= 1
    start_iteration(s, s.jobs[number])
    do_work(s)
    if run.num_finished > 0:
        run.again = 1


@njit
def do_work(s: State) -> None:
    """Step 2: collectives become ready (without a link: end), and iterations end."""
    run = s.run[0]
    while run.num_work > 0:
        run.num_work -= 1
        code = s.work[run.num_work]
        if code >= 0:
            transfer = s.transfers[code]
            if transfer.task < 0:
                settle_in(s, transfer.job)
            elif transfer.num_entries == 0:
                end_all_reduce(s, code)
            else:
                transfer.bytes_left = transfer.bytes
                transfer.parts_sent = 0
                transfer.latency_left_ns = transfer.latency_ns
                join_waiting(s, code)
                run.communicate = 1
                if run.rerouting == 1:
                    transfer.unrouted = 1
                    run.num_unrouted += 1
            continue
        job = s.jobs[-1 - code]
        job.iterations_left -= 1
        if job.shared_gpus > 0 or job.shared_links > 0:
            run.contended_iterations += 1
        if (job.start_iterations_left - job.iterations_left) % run.checkpoint_iterations == 0:
            job.checkpoint_ns = run.now_ns
        if job.num_linked == 0 and job.num_tasks == job.num_transfers:
            job.iterations_left = 0  # nothing but collectives without a link takes no time, however often
        if job.iterations_left > 0 and job.leaving == 0:
            start_iteration(s, job)
        elif job.iterations_left > 0:
            job.leaving, job.iteration_ns, run.must_place = 2, run.now_ns, 1  # step 3 moves it
        else:
            count_time(job, run.now_ns)
            job.state = JobState.FINISHED
            job.finish_ns = run.now_ns
            s.finished[run.num_finished] = -1 - code
            run.num_finished += 1
