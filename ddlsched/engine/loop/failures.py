"""Jobs that are stopped, and servers that go and come back."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import OFFLINE_BYTES, ZERO, JobState, SliceKind
from ddlsched.engine.loop.gpu_groups import part_groups_of
from ddlsched.engine.loop.heap import unschedule
from ddlsched.engine.loop.placement import expand, leave_folded, remove_job
from ddlsched.engine.loop.room import change_free_bytes
from ddlsched.engine.loop.skipping.dormancy import wake
from ddlsched.engine.loop.skipping.due import note_change
from ddlsched.engine.loop.tasks import leave_ready, touch_gpu
from ddlsched.engine.loop.time_accounts import count_time, record_slice, stop_computing
from ddlsched.engine.loop.transfers import cut_state, cut_transfer
from ddlsched.engine.native.jit import NUMBER, NUMBERS, REAL, STATE, called_from_python, njit
from ddlsched.engine.records import Records, State


@njit
def cut_compute(s: State, job: Records, number: int) -> None:
    """The task that a worker's GPU is running for it ends undone."""
    run = s.run[0]
    worker = s.workers[number]
    g = s.gpus[worker.gpu]
    if g.worker == number:
        if run.record == 1:
            record_slice(s, SliceKind.CUT.value, number, job, g.task, g.started_ns, ZERO, 0.0)
        stop_computing(run, g, worker, job, g.group_size)
        unschedule(run, s.heap, s.position, s.end_ns, worker.gpu)
        touch_gpu(run, s.gpus, s.touched_gpus, worker.gpu)


@njit
def forget_iteration(s: State, job: Records) -> None:
    """Withdraw all that is ready and all that has ended of the current iteration."""
    for task in range(job.first_task, job.first_task + job.num_tasks):
        record = s.tasks[task]
        record.pending = record.compute_predecessors * job.num_gpus + record.reduce_predecessors
    if job.grouped == 1:
        first = s.workers[job.first_worker].first_flag
        for flag in range(first, first + job.num_tasks):
            s.ready[flag] = 0
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        worker = s.workers[number]
        if worker.num_ready > 0:
            leave_ready(s, number)
        worker.num_ready = 0
        if job.grouped == 1:
            continue
        for task in range(job.num_tasks):
            record = s.tasks[job.first_task + task]
            s.ready[worker.first_flag + task] = 0
            s.pending[worker.first_flag + task] = record.compute_predecessors + record.reduce_predecessors


@njit
def tell_workers_apart(s: State, number: int) -> None:
    """Give each worker of a job the state that it has now."""
    job = s.jobs[number]
    if job.dormant == 1:
        wake(s, number)
    if job.lockstep == 1:
        expand(s, job)
    if job.grouped == 0:
        part_groups_of(s, job)


@njit
def stop_job(s: State, number: int, checkpoint_iterations: int) -> None:
    """A job loses its GPUs and its work since its last checkpoint, and goes back to the queue."""
    run = s.run[0]
    job = s.jobs[number]
    tell_workers_apart(s, number)
    for worker in range(job.first_worker, job.first_worker + job.num_gpus):
        cut_compute(s, job, worker)
    count_time(job, run.now_ns)
    remove_job(s, job)
    for transfer in range(job.first_transfer, job.first_transfer + job.num_transfers):
        cut_transfer(s, transfer)
    cut_state(s, job)
    job.num_flows = 0
    leave_folded(s, job)
    forget_iteration(s, job)
    if job.restarting == 1:
        if s.position[run.num_gpus + len(s.transfers) + number] >= 0:
            unschedule(run, s.heap, s.position, s.end_ns, run.num_gpus + len(s.transfers) + number)
        job.restarting = 0
    else:
        job.lost_ns += run.now_ns - (job.iteration_ns if checkpoint_iterations == 1 else job.checkpoint_ns)
    lost = (job.start_iterations_left - job.iterations_left) % checkpoint_iterations
    job.iterations_left += lost
    job.samples_left = max(job.samples_left - (job.start_iterations_left - job.iterations_left) * job.batch, 0)
    job.lost_samples += lost * job.batch
    job.start_iterations_left = job.iterations_left
    job.cut_service_ns -= job.remaining_service_ns
    if job.grouped == 1:
        job.remaining_service_ns = job.iterations_left * (job.service_ns // job.iterations)
    else:
        job.remaining_service_ns = job.iterations_left * job.compute_ns * job.num_gpus
    job.cut_service_ns += job.remaining_service_ns
    job.load_left_ns = job.communication_ns = job.num_servers = job.shared_gpus = 0
    job.restarts += 1
    job.state = JobState.QUEUED
    join_queue(s, number)


@njit
def join_queue(s: State, number: int) -> None:
    """A job waits: for the placement policy, or if it is elastic for the allocation policy."""
    run = s.run[0]
    if s.jobs[number].elastic == 1:
        run.num_elastic_queued += 1
    else:
        s.queue[run.num_queued] = number
        run.num_queued += 1


@called_from_python(STATE, NUMBERS, NUMBER)
def fail_gpus(s: State, gpus: np.ndarray, checkpoint_iterations: int) -> None:
    """After step 2: every job with one of these GPUs stops, but for those that have just finished."""
    for gpu in gpus:
        place = 0
        while place < s.gpus[gpu].num_residents:
            number = s.workers[s.residents[gpu, place]].job
            if s.jobs[number].state == JobState.RUNNING:
                stop_job(s, number, checkpoint_iterations)
            else:
                place += 1
        change_free_bytes(s, gpu, -OFFLINE_BYTES)
    s.run[0].must_place = 1


@called_from_python(STATE, NUMBERS, REAL)
def slow_gpus(s: State, gpus: np.ndarray, slowdown: float) -> None:
    """The tasks that GPUs begin from now on take so many times as long."""
    for gpu in gpus:
        for place in range(s.gpus[gpu].num_residents):
            number = s.workers[s.residents[gpu, place]].job
            tell_workers_apart(s, number)
            s.jobs[number].uneven, s.jobs[number].profiled = 1, 0
            note_change(s, number)
            s.jobs[number].component_stay = -1  # what was known of its periods is no more
        s.gpus[gpu].slowness *= slowdown
    s.run[0].components_changed = 1


@called_from_python(STATE, NUMBERS)
def restore_gpus(s: State, gpus: np.ndarray) -> None:
    for gpu in gpus:
        change_free_bytes(s, gpu, OFFLINE_BYTES)
    s.run[0].must_place = 1
