"""One undisturbed iteration, gone through in advance."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.rates import alone_rate
from ddlsched.engine.loop.tasks import begin_sources, predecessor_ended, predecessors_ended, take_ready, uneven_ns
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import NEVER
from ddlsched.engine.records.layout import Records, State


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
def succeed(s: State, job: Records, task: int) -> None:
    """A task of a job in lockstep has ended: its successors may go."""
    record = s.tasks[job.first_task + task]
    weight = job.num_gpus if record.transfer < 0 else 1
    for place in range(record.first_successor, record.first_successor + record.num_successors):
        successor = s.successors[place]
        if s.tasks[job.first_task + successor].transfer < 0:
            predecessor_ended(s, job.first_worker, successor)
        else:
            predecessors_ended(s, job, successor, weight)


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
                succeed(s, job, transfer.task)
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
            succeed(s, job, computing)
        if sent_ns == now_ns:
            sent_ns = NEVER
            left -= 1
            succeed(s, job, sending)
    job.period_ns = now_ns
    return regular and 0 < now_ns < 4e18
