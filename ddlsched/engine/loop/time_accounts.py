"""Where the time of placed jobs goes, and the slices that a recorded window keeps."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State


@njit
def record_slice(
    s: State, kind: int, owner: int, job: Records, task: int, start_ns: int, sharing: int, rate: float
) -> None:
    run = s.run[0]
    if run.now_ns > run.record_from_ns and start_ns < run.record_to_ns:
        record = s.slices[run.num_slices]
        run.num_slices += 1
        record.kind, record.owner, record.stay = kind, owner, job.stay
        record.task = s.tasks[job.first_task + task].part if task >= 0 else task
        record.iteration = job.iterations - job.iterations_left
        record.start_ns, record.end_ns, record.sharing, record.rate = start_ns, run.now_ns, sharing, rate


@njit
def count_time(job: Records, now_ns: int) -> None:
    """Add the time since the last change to the phase that a placed job was in."""
    passed_ns = now_ns - job.since_ns
    if passed_ns > 0:
        job.since_ns = now_ns
        if job.active_transfers > 0:
            job.communicating_ns += passed_ns
        elif job.waiting_transfers > 0:
            job.network_wait_ns += passed_ns
        elif job.restarting == 1:
            job.restarting_ns += passed_ns
        elif job.lockstep == 1 or job.running_workers > 0:
            job.computing_ns += passed_ns
        else:
            job.gpu_wait_ns += passed_ns


@njit
def start_computing(run: Records, g: Records, number: int, job: Records, weight: int) -> None:
    """A GPU takes a task of a worker; ``busy_ns`` and ``computing_gpus`` are for the samples."""
    if job.lockstep == 0:
        if job.running_workers == 0:
            count_time(job, run.now_ns)
        job.running_workers += 1
    g.worker = number
    g.started_ns = run.now_ns
    run.computing_gpus += weight
    run.busy_ns -= np.float64(weight) * (run.now_ns - run.sampled_ns)


@njit
def stop_computing(run: Records, g: Records, worker: Records, job: Records, weight: int) -> None:
    if job.lockstep == 0:
        if job.running_workers == 1:
            count_time(job, run.now_ns)
        job.running_workers -= 1
    g.worker = -1
    worker.busy_ns += run.now_ns - g.started_ns
    run.computing_gpus -= weight
    run.busy_ns += np.float64(weight) * (run.now_ns - run.sampled_ns)


@njit
def simulated_for(s: State, job: Records, number: int) -> int:
    """The worker of the job whose tasks are simulated for this one."""
    return job.first_worker if job.lockstep == 1 else s.workers[number].leader


@njit
def computed_ns(s: State, job: Records, number: int) -> int:
    """For how long a worker has computed, tasks that have ended."""
    source = simulated_for(s, job, number)
    busy_ns = s.workers[source].busy_ns
    if job.lockstep == 0 and source != number:
        busy_ns += s.workers[number].busy_ns  # by how much it differs from the leader's
    return busy_ns


@njit
def book_computing(s: State, job: Records) -> None:
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        busy_ns = computed_ns(s, job, number)
        job.busy_ns += busy_ns
        job.busy_per_gpu_ns += busy_ns / job.num_gpus
        s.gpus[s.workers[number].gpu].busy_ns += busy_ns
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        s.workers[number].busy_ns = 0
