"""Dormancy: a job that meets nobody skips its iterations and wakes in the state that it would have."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import ONE
from ddlsched.engine.loop.heap import schedule, unschedule
from ddlsched.engine.loop.rates import alone_rate_now
from ddlsched.engine.loop.tasks import make_ready
from ddlsched.engine.loop.time_accounts import count_time
from ddlsched.engine.loop.transfers import join_waiting, most_sharing, set_rate, start_transfer
from ddlsched.engine.native.jit import called_by_address, njit
from ddlsched.engine.records import Records, State


@njit
def fall_dormant(s: State, job: Records) -> bool:
    """At the start of an iteration: skip to the last one, or to where slices are recorded; return whether."""
    if job.flows_left > 0:  # its state waits for its turn on the links, by what the job has left
        return False
    run = s.run[0]
    number = s.workers[job.first_worker].job
    until_ns = np.int64(4e18) + run.now_ns // 2
    if run.record == 1 and run.now_ns < run.record_to_ns:
        until_ns = min(until_ns, run.record_from_ns)
    iterations = min(job.iterations_left - 1, (until_ns - run.now_ns) // job.period_ns)
    if iterations < 1:
        return False
    count_time(job, run.now_ns)
    job.dormant, job.dormant_since_ns, job.dormant_since_round = 1, run.now_ns, run.rounds
    job.dormant_place = run.num_dormant
    s.dormant[run.num_dormant] = number
    run.num_dormant += 1
    item = run.num_gpus + len(s.transfers) + number
    schedule(run, s.heap, s.position, s.end_ns, item, run.now_ns + iterations * job.period_ns)
    return True


@called_by_address("wake_address")
def wake(s: State, number: int) -> None:
    """Give a dormant job the state that it would have now."""
    run = s.run[0]
    job = s.jobs[number]
    item = run.num_gpus + len(s.transfers) + number
    if s.position[item] >= 0:
        unschedule(run, s.heap, s.position, s.end_ns, item)
    run.num_dormant -= 1
    last = s.dormant[run.num_dormant]
    s.dormant[job.dormant_place] = last
    s.jobs[last].dormant_place = job.dormant_place
    job.dormant = 0
    run.busy_ns += np.float64(job.num_gpus) * dormant_busy_ns(s, job, run.sampled_ns, run.now_ns)
    iterations = (run.now_ns - job.dormant_since_ns) // job.period_ns
    begin_ns = job.dormant_since_ns + iterations * job.period_ns
    book_iterations(s, job, iterations, begin_ns)
    resume_iteration(s, job, begin_ns)


@njit
def wake_all(s: State) -> None:
    run = s.run[0]
    while run.num_dormant > 0:
        wake(s, s.dormant[0])


@njit
def wake_linked(s: State) -> None:
    """Wake the jobs that use links: none of them may skip iterations while any link may carry state."""
    place = s.run[0].num_dormant - 1 if s.run[0].skipping_networked == 1 else np.int64(-1)
    while place >= 0:
        if s.jobs[s.dormant[place]].num_linked > 0:
            wake(s, s.dormant[place])  # whose place the last one takes, which has been looked at
        place -= 1


@njit
def book_iterations(s: State, job: Records, iterations: int, end_ns: int) -> None:
    """Write down whole iterations that were skipped over, the last of which ended at ``end_ns``."""
    run = s.run[0]
    run.events += iterations * job.period_events
    run.skipped_iterations += iterations
    done = job.start_iterations_left - job.iterations_left
    unsafe = (done + iterations) % run.checkpoint_iterations
    if iterations > unsafe:
        job.checkpoint_ns = end_ns - unsafe * job.period_ns
    job.iterations_left -= iterations
    job.remaining_service_ns -= iterations * job.compute_ns * job.num_gpus
    job.load_left_ns -= iterations * job.period_load_ns
    first = s.workers[job.first_worker]
    first.done_ns += iterations * job.compute_ns
    first.busy_ns += iterations * job.period_busy_ns
    communicating_ns = np.int64(0)
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        task = s.tasks[job.first_task + s.transfers[number].task]
        if s.transfers[number].num_entries > 0:
            book_transfers(s, s.transfers[number], iterations, iterations * (task.ends_ns - task.begins_ns))
            communicating_ns += task.ends_ns - task.begins_ns
    job.communicating_ns += iterations * communicating_ns
    job.computing_ns += iterations * (job.period_ns - communicating_ns)


@njit
def book_transfers(s: State, transfer: Records, times: int, busy_ns: int) -> None:
    """Write down transfers that were skipped over, and their time on the links, once each."""
    run = s.run[0]
    run.stamp += 1
    transfer.times_sent += times
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        if link.stamp != run.stamp:
            link.stamp = run.stamp
            link.busy_ns += busy_ns


@njit
def resume_iteration(s: State, job: Records, begin_ns: int) -> None:
    """Bring the iteration that began at ``begin_ns`` to where it is now."""
    run = s.run[0]
    passed_ns = run.now_ns - begin_ns
    job.iteration_ns = begin_ns
    job.steps_left = (job.num_tasks - job.num_transfers) * job.num_gpus + job.num_transfers
    communicating_ns = np.int64(0)
    for task in range(job.num_tasks):
        record = s.tasks[job.first_task + task]
        if record.transfer >= 0 and job.num_linked > 0:
            communicating_ns += max(min(passed_ns, record.ends_ns) - record.begins_ns, 0)
    job.communicating_ns += communicating_ns
    job.computing_ns += passed_ns - communicating_ns
    job.since_ns = run.now_ns
    for place in range(job.first_source, job.first_source + job.num_sources):
        resume_task(s, job, s.successors[place], begin_ns)
    for task in range(job.num_tasks):
        record = s.tasks[job.first_task + task]
        if record.ends_ns <= passed_ns:
            book_task(s, job, record)
            for place in range(record.first_successor, record.first_successor + record.num_successors):
                release(s, job, record, s.successors[place], begin_ns)


@njit
def book_task(s: State, job: Records, record: Records) -> None:
    """Write down one task that has ended since the iteration began."""
    run = s.run[0]
    duration_ns = record.ends_ns - record.begins_ns
    if record.transfer < 0:
        job.remaining_service_ns -= record.duration_ns * job.num_gpus
        job.steps_left -= job.num_gpus
        run.events += job.num_gpus
        s.workers[job.first_worker].done_ns += record.duration_ns
        s.workers[job.first_worker].busy_ns += duration_ns
        return
    job.steps_left -= 1
    job.load_left_ns -= record.load_ns
    if s.transfers[record.transfer].num_entries > 0:
        run.events += 1
        s.transfers[record.transfer].bytes_left = 0.0
        book_transfers(s, s.transfers[record.transfer], ONE, duration_ns)


@njit
def release(s: State, job: Records, ended: Records, task: int, begin_ns: int) -> None:
    """One predecessor of a task has ended, for all workers; after the last, the task is where it is now."""
    record = s.tasks[job.first_task + task]
    if record.transfer < 0:
        flag = s.workers[job.first_worker].first_flag + task
        s.pending[flag] -= 1
        if s.pending[flag] > 0:
            return
        s.pending[flag] = record.compute_predecessors + record.reduce_predecessors
    else:
        record.pending -= job.num_gpus if ended.transfer < 0 else 1
        if record.pending > 0:
            return
        record.pending = record.compute_predecessors * job.num_gpus + record.reduce_predecessors
    resume_task(s, job, task, begin_ns)


@njit
def resume_task(s: State, job: Records, task: int, begin_ns: int) -> None:
    """All predecessors of a task have ended: it has ended itself, or runs, or is ready."""
    run = s.run[0]
    record = s.tasks[job.first_task + task]
    now_ns = run.now_ns
    if begin_ns + record.ends_ns <= now_ns:
        return
    started_ns = begin_ns + record.begins_ns
    # What becomes ready at an instant begins at the end of that round.
    later_round = run.rounds > job.dormant_since_round if job.dormant_since_ns == now_ns else run.late == 1
    begun = started_ns < now_ns or (started_ns == now_ns and later_round)
    if record.transfer < 0:
        if begun:
            resume_compute(s, job, task, started_ns)
        else:
            make_ready(s, job.first_worker, task)
        return
    transfer = s.transfers[record.transfer]
    transfer.bytes_left = transfer.bytes
    transfer.latency_left_ns = transfer.latency_ns
    if begun:
        resume_transfer(s, record.transfer, started_ns)
    else:
        join_waiting(s, record.transfer)
        run.communicate = 1


@njit
def resume_compute(s: State, job: Records, task: int, started_ns: int) -> None:
    run = s.run[0]
    gpu = s.workers[job.first_worker].gpu
    g = s.gpus[gpu]
    g.worker, g.task, g.started_ns = job.first_worker, task, started_ns
    record = s.tasks[job.first_task + task]
    schedule(run, s.heap, s.position, s.end_ns, gpu, started_ns + record.ends_ns - record.begins_ns)
    run.computing_gpus += job.num_gpus
    run.busy_ns -= np.float64(job.num_gpus) * (run.now_ns - run.sampled_ns)


@njit
def resume_transfer(s: State, number: int, started_ns: int) -> None:
    """Start a transfer in the past."""
    run = s.run[0]
    now_ns = run.now_ns
    run.now_ns = started_ns
    join_waiting(s, number)
    start_transfer(s, number)
    set_rate(s, number, alone_rate_now(s, number), most_sharing(s, s.transfers[number]))
    run.now_ns = now_ns


# --- how far a dormant job is, worked out from its one profiled iteration


@njit
def dormant_busy_ns(s: State, job: Records, from_ns: int, to_ns: int) -> int:
    """For how long each GPU of a dormant job computes between two times."""
    return dormant_busy_until_ns(s, job, to_ns) - dormant_busy_until_ns(s, job, max(from_ns, job.dormant_since_ns))


@njit
def dormant_busy_until_ns(s: State, job: Records, time_ns: int) -> int:
    passed_ns = time_ns - job.dormant_since_ns
    busy_ns = passed_ns // job.period_ns * job.period_busy_ns
    passed_ns %= job.period_ns
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if s.tasks[task].transfer < 0:
            busy_ns += max(min(passed_ns, s.tasks[task].ends_ns) - s.tasks[task].begins_ns, 0)
    return busy_ns


@njit
def dormant_sending(s: State, job: Records, time_ns: int) -> int:
    """How many transfers of a dormant job run at a time."""
    if job.num_linked == 0:
        return 0
    passed_ns = (time_ns - job.dormant_since_ns) % job.period_ns
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        task = s.tasks[job.first_task + s.transfers[number].task]
        if task.begins_ns <= passed_ns < task.ends_ns:
            return 1
    return 0


@njit
def dormant_done_ns(s: State, job: Records) -> tuple[int, int]:
    """Compute time of the tasks, and load of the all-reduces, that a worker has ended while its job was dormant."""
    passed_ns = s.run[0].now_ns - job.dormant_since_ns
    periods = passed_ns // job.period_ns
    done_ns, sent_ns = periods * job.compute_ns, periods * job.period_load_ns
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if s.tasks[task].ends_ns <= passed_ns % job.period_ns:
            done_ns += s.tasks[task].duration_ns  # a collective's is 0
            sent_ns += s.tasks[task].load_ns  # a compute task's is 0
    return done_ns, sent_ns
