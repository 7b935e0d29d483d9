"""The tasks of an iteration: what is ready, what has ended, how long a task takes."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import KEY_WORDS, ONE, ZERO, SliceKind
from ddlsched.engine.loop.heap import schedule
from ddlsched.engine.loop.order import copy_key, key_before, write_key
from ddlsched.engine.loop.time_accounts import record_slice, start_computing, stop_computing
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State


@njit
def should_be_lockstep(job: Records) -> int:
    """Whether all workers of a job do the same from the start of its next iteration on: then the first is simulated."""
    return 1 if job.shared_gpus == 0 and (job.uneven == 0 or job.num_gpus == 1) else 0


@njit
def compute_steps(job: Records) -> int:
    """The compute tasks of an iteration, counted for each worker that runs them."""
    return job.group_steps if job.grouped == 1 else (job.num_tasks - job.num_transfers) * job.num_gpus


@njit
def touch_gpu(run: Records, gpus: np.ndarray, touched_gpus: np.ndarray, gpu: int) -> None:
    """Note that an idle GPU may have something to take in step 5."""
    if gpus[gpu].touched == 0:
        gpus[gpu].touched = 1
        touched_gpus[run.num_touched_gpus] = gpu
        run.num_touched_gpus += 1


@njit
def join_ready(s: State, number: int) -> None:
    """List a worker with those on its GPU that have something ready."""
    worker = s.workers[number]
    g = s.gpus[worker.gpu]
    worker.previous_ready, worker.next_ready = -1, g.first_ready
    if g.first_ready >= 0:
        s.workers[g.first_ready].previous_ready = number
    g.first_ready = number


@njit
def leave_ready(s: State, number: int) -> None:
    worker = s.workers[number]
    if worker.previous_ready >= 0:
        s.workers[worker.previous_ready].next_ready = worker.next_ready
    else:
        s.gpus[worker.gpu].first_ready = worker.next_ready
    if worker.next_ready >= 0:
        s.workers[worker.next_ready].previous_ready = worker.previous_ready


@njit
def make_ready(s: State, number: int, task: int) -> None:
    worker = s.workers[number]
    s.ready[worker.first_flag + task] = 1
    if worker.num_ready == 0:
        join_ready(s, number)
    if worker.num_ready == 0 or task < worker.first_ready:
        worker.first_ready = task
    worker.num_ready += 1
    touch_gpu(s.run[0], s.gpus, s.touched_gpus, worker.gpu)


@njit
def take_ready(s: State, number: int) -> int:
    """Take the worker's ready task of the smallest number."""
    worker = s.workers[number]
    task = worker.first_ready
    s.ready[worker.first_flag + task] = 0
    worker.num_ready -= 1
    if worker.num_ready > 0:
        following = task + 1
        while s.ready[worker.first_flag + following] == 0:
            following += 1
        worker.first_ready = following
    else:
        leave_ready(s, number)
    return task


@njit
def push_work(s: State, code: int) -> None:
    """Put off to step 2: a transfer's number, or minus one minus the number of a job whose iteration ended."""
    run = s.run[0]
    s.work[run.num_work] = code
    run.num_work += 1


@njit
def predecessor_ended(s: State, number: int, task: int) -> None:
    """One predecessor of a compute task has ended for this worker."""
    worker = s.workers[number]
    flag = worker.first_flag + task
    s.pending[flag] -= 1
    if s.pending[flag] == 0:
        record = s.tasks[s.jobs[worker.job].first_task + task]
        s.pending[flag] = record.compute_predecessors + record.reduce_predecessors
        make_ready(s, number, task)


@njit
def predecessors_ended(s: State, job: Records, task: int, weight: int) -> None:
    """``weight`` predecessors (counting workers) of an all-reduce have ended."""
    record = s.tasks[job.first_task + task]
    record.pending -= weight
    if record.pending == 0:
        record.pending = record.compute_predecessors * job.num_gpus + record.reduce_predecessors
        push_work(s, record.transfer)


@njit
def succeed(s: State, job: Records, task: Records, first: int, end: int, weight: int) -> None:
    """A task has ended, for the workers from a first one to before an end: its successors may go.

    Of one worker alone :func:`end_compute` goes through them itself, which is quicker.
    """
    for place in range(task.first_successor, task.first_successor + task.num_successors):
        successor = s.successors[place]
        if s.tasks[job.first_task + successor].transfer >= 0:
            predecessors_ended(s, job, successor, weight)
            continue
        for worker in range(first, end):
            if s.workers[worker].leader == worker:
                predecessor_ended(s, worker, successor)


@njit
def mix(h: int) -> int:
    """Scatter 32 bits; every product is below 2^63."""
    h ^= h >> 16
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h ^= h >> 15
    h = (h * 0x45D9F3B) & 0xFFFFFFFF
    return h ^ (h >> 16)


@njit
def slowness(s: State, job: Records, gpu: int) -> float:
    """How many times as long a job computes on a GPU as its times say."""
    if len(s.speeds) == 0:
        return s.gpus[gpu].slowness
    return s.gpus[gpu].slowness / s.speeds[job.speed_row, s.gpus[gpu].kind]


@njit
def uneven_ns(s: State, number: int, task: int) -> int:
    """How long a task takes on a worker's GPU: its speed, who else is there, and jitter, a hash of which task it is."""
    run = s.run[0]
    worker = s.workers[number]
    job = s.jobs[worker.job]
    duration_ns = s.tasks[job.first_task + task].duration_ns
    factor = slowness(s, job, worker.gpu)
    if len(s.jitter) > 1:
        h = mix((run.jitter_seed + worker.job) & 0xFFFFFFFF)
        h = mix((h + number - job.first_worker) & 0xFFFFFFFF)
        h = mix((h + job.iterations - job.iterations_left) & 0xFFFFFFFF)
        h = mix((h + s.tasks[job.first_task + task].dag_task) & 0xFFFFFFFF)
        h = mix((h + job.restarts) & 0xFFFFFFFF)
        factor *= s.jitter[h >> 20]
    factor *= (1_000_000 + worker.penalty_ppm) / 1_000_000
    if factor == 1.0:
        return duration_ns
    scaled_ns = np.rint(duration_ns * factor)
    if scaled_ns > 9.2e18:
        run.clock_overflow = 1
        return np.int64(0)
    return np.int64(scaled_ns)


@njit
def end_compute(s: State, gpu: int) -> None:
    """Step 1: a GPU's task ends."""
    run = s.run[0]
    g = s.gpus[gpu]
    number = g.worker
    worker = s.workers[number]
    job = s.jobs[worker.job]
    task = s.tasks[job.first_task + g.task]
    weight = job.num_gpus if job.lockstep == 1 else g.group_size
    job.remaining_service_ns -= task.duration_ns * weight
    job.steps_left -= weight
    worker.done_ns += task.duration_ns
    run.events += weight
    if run.record == 1:
        kind = SliceKind.LOCKSTEP.value if job.lockstep == 1 else SliceKind.COMPUTE.value
        record_slice(s, kind, number, job, g.task, g.started_ns, ZERO, 0.0)
    stop_computing(run, g, worker, job, weight)
    touch_gpu(run, s.gpus, s.touched_gpus, gpu)
    if job.grouped == 1:
        end_part(s, job, task)
    else:
        for place in range(task.first_successor, task.first_successor + task.num_successors):
            successor = s.successors[place]
            if s.tasks[job.first_task + successor].transfer < 0:
                predecessor_ended(s, number, successor)
            else:
                predecessors_ended(s, job, successor, weight)
    if job.steps_left == 0:
        push_work(s, -1 - worker.job)


@njit
def end_all_reduce(s: State, number: int) -> None:
    """An all-reduce is done: its successors may go."""
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    task = s.tasks[job.first_task + transfer.task]
    job.steps_left -= 1 + transfer.others
    if job.grouped == 1:
        for member in range(task.first_member, task.first_member + task.num_members):
            s.workers[job.first_worker + s.members[member]].load_left_ns -= task.load_ns
        end_part(s, job, task)
        if job.steps_left == 0:
            push_work(s, -1 - transfer.job)
        return
    job.load_left_ns -= task.load_ns
    simulated = 1 if job.lockstep == 1 else job.num_gpus
    succeed(s, job, task, job.first_worker, job.first_worker + simulated, ONE)
    if job.steps_left == 0:
        push_work(s, -1 - transfer.job)


@njit
def end_part(s: State, job: Records, task: Records) -> None:
    """A part of an iteration of a job of groups is done: what waits for it may go."""
    task.ended = job.parity
    for place in range(task.first_successor, task.first_successor + task.num_successors):
        successor = s.successors[place]
        record = s.tasks[job.first_task + successor]
        record.pending -= 1
        if record.pending == 0:
            record.pending = record.reduce_predecessors
            begin_part(s, job, successor)


@njit
def begin_part(s: State, job: Records, task: int) -> None:
    """A part of an iteration of a job of groups waits for nothing any more."""
    record = s.tasks[job.first_task + task]
    if record.transfer >= 0:
        push_work(s, record.transfer)
    else:
        make_ready(s, record.worker, task)


@njit
def begin_sources(s: State, job: Records) -> None:
    """Make ready the tasks that an iteration starts with."""
    simulated = 1 if job.lockstep == 1 else job.num_gpus
    for place in range(job.first_source, job.first_source + job.num_sources):
        task = s.successors[place]
        transfer = s.tasks[job.first_task + task].transfer
        if job.grouped == 1:
            begin_part(s, job, task)
        elif transfer >= 0:
            push_work(s, transfer)
        else:
            for worker in range(job.first_worker, job.first_worker + simulated):
                if s.workers[worker].leader == worker:
                    make_ready(s, worker, task)


@njit
def resident_to_run(s: State, gpu: int) -> int:
    """The worker whose ready task the GPU takes next, or -1."""
    run = s.run[0]
    best = s.gpus[gpu].first_ready
    if best < 0 or s.workers[best].next_ready < 0:
        return best  # most often no key is needed
    here = len(s.keys) // KEY_WORDS - 2
    best_job = s.workers[best].job
    write_key(s, best_job, here)
    number = s.workers[best].next_ready
    while number >= 0:
        job = s.workers[number].job
        write_key(s, job, here + 1)
        if key_before(s, run.key_words, here + 1, job, here, best_job):
            copy_key(s, run.key_words, here + 1, here)
            best, best_job = number, job
        number = s.workers[number].next_ready
    return best


@njit
def dispatch(s: State) -> None:
    """Step 5: every idle GPU takes a ready task."""
    run = s.run[0]
    for place in range(run.num_touched_gpus):
        gpu = s.touched_gpus[place]
        g = s.gpus[gpu]
        g.touched = 0
        if g.worker >= 0:
            continue
        number = resident_to_run(s, gpu)
        if number < 0:
            continue
        worker = s.workers[number]
        job = s.jobs[worker.job]
        start_computing(run, g, number, job, job.num_gpus if job.lockstep == 1 else g.group_size)
        g.task = take_ready(s, number)
        if job.uneven == 1 or worker.penalty_ppm > 0:
            end = run.now_ns + uneven_ns(s, number, g.task)
        else:
            end = run.now_ns + s.tasks[job.first_task + g.task].duration_ns
        if end < run.now_ns:
            run.clock_overflow = 1
            end = run.now_ns
        schedule(run, s.heap, s.position, s.end_ns, gpu, end)
    run.num_touched_gpus = 0
