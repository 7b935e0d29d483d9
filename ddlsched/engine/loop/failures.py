"""Jobs that are stopped, and servers that go and come back."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.gpu_groups import part_groups_of
from ddlsched.engine.loop.heap import unschedule
from ddlsched.engine.loop.placement import expand, leave_folded, remove_job
from ddlsched.engine.loop.room import change_free_bytes
from ddlsched.engine.loop.skipping.dormancy import wake
from ddlsched.engine.loop.tasks import leave_ready, touch_gpu
from ddlsched.engine.loop.time_accounts import count_time, record_slice, stop_computing
from ddlsched.engine.loop.transfers import leave_waiting, pause_transfer
from ddlsched.engine.native.jit import called_from_python, njit
from ddlsched.engine.records.field_values import OFFLINE_BYTES, ZERO, JobState, SliceKind, TransferState
from ddlsched.engine.records.layout import Records, State


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
def cut_transfer(s: State, number: int) -> None:
    """A transfer vanishes, running or waiting."""
    run = s.run[0]
    transfer = s.transfers[number]
    if transfer.state == TransferState.ACTIVE:
        pause_transfer(s, number)
    if transfer.state == TransferState.WAITING:
        leave_waiting(s, number)
        run.rerate = run.communicate = 1


@njit
def cut_state(s: State, job: Records) -> None:
    """What is on its way of a job's state vanishes."""
    for transfer in range(job.first_flow, job.first_flow + job.num_flows):
        cut_transfer(s, transfer)
    if job.flows_left > 0:
        job.flows_left = 0
        s.run[0].num_unsettled -= 1
    job.num_flows = 0


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
def stop_job(s: State, number: int, checkpoint_iterations: int) -> None:
    """A job loses its GPUs and its work since its last checkpoint, and goes back to the queue."""
    run = s.run[0]
    job = s.jobs[number]
    if job.dormant == 1:
        wake(s, number)
    if job.lockstep == 1:
        expand(s, job)
    if job.grouped == 0:
        part_groups_of(s, job)
    for worker in range(job.first_worker, job.first_worker + job.num_gpus):
        cut_compute(s, job, worker)
    count_time(job, run.now_ns)
    remove_job(s, job)
    for transfer in range(job.first_transfer, job.first_transfer + job.num_transfers):
        cut_transfer(s, transfer)
    cut_state(s, job)
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
    if job.grouped == 1:
        job.remaining_service_ns = job.iterations_left * (job.service_ns // job.iterations)
    else:
        job.remaining_service_ns = job.iterations_left * job.compute_ns * job.num_gpus
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


@called_from_python
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


@called_from_python
def restore_gpus(s: State, gpus: np.ndarray) -> None:
    for gpu in gpus:
        change_free_bytes(s, gpu, OFFLINE_BYTES)
    s.run[0].must_place = 1
