"""How fast the jobs of a sampled component go: measured over its stretches.

What is measured adds up over the stretches of a component. When a job comes or goes, all are measured from nothing:
what it does to its neighbours reaches theirs.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import KEY_WORDS, TransferState
from ddlsched.engine.loop.order import write_key
from ddlsched.engine.loop.tasks import should_be_lockstep
from ddlsched.engine.loop.time_accounts import count_time
from ddlsched.engine.loop.transfers import bytes_left_now, bytes_sent
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State


@njit
def may_be_measured(s: State, root: int) -> bool:
    """Whether all jobs of a component run, none is about to begin or to end its lockstep."""
    number = root
    while number >= 0:
        job = s.jobs[number]
        if job.restarting == 1 or job.lockstep != should_be_lockstep(job):
            return False
        number = job.next_member
    return True


@njit
def load_ns(s: State, job: Records, transfer: Records) -> float:
    """How long a transfer takes alone, and those that it stands for, for an average worker of its job."""
    task = s.tasks[job.first_task + transfer.task]
    if job.grouped == 0:
        return np.float64(task.load_ns)
    taking_part = 0
    for member in range(task.first_member, task.first_member + task.num_members):
        taking_part += s.gpus[s.workers[job.first_worker + s.members[member]].gpu].group_size
    return task.load_ns * (taking_part / job.num_gpus)


@njit
def note_work(s: State, job: Records) -> None:
    """Note the work of an iteration: compute of a worker, and transfers as they take alone, nanoseconds."""
    sent_ns = 0.0
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        sent_ns += load_ns(s, job, s.transfers[number])
    job.iteration_work = job.service_ns / job.iterations / job.num_gpus + sent_ns


@njit
def work_left(s: State, job: Records) -> float:
    """The work that a job has left, that under way in part."""
    run = s.run[0]
    left = job.remaining_service_ns / job.num_gpus + job.load_left_ns
    for number in range(job.first_worker, job.first_worker + (1 if job.lockstep == 1 else job.num_gpus)):
        worker, g = s.workers[number], s.gpus[s.workers[number].gpu]
        if job.grouped == 1 and worker.leader == number:
            left += worker.load_left_ns * (g.group_size / job.num_gpus)
        if g.worker == number:
            weight = 1.0 if job.lockstep == 1 else g.group_size / job.num_gpus
            lasts_ns = s.end_ns[s.position[s.workers[number].gpu]] - g.started_ns
            done = (run.now_ns - g.started_ns) / max(lasts_ns, 1)
            left -= weight * done * s.tasks[job.first_task + g.task].duration_ns
    if job.num_linked > 0:
        for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
            transfer = s.transfers[number]
            if transfer.state != TransferState.IDLE and transfer.bytes > 0.0:
                sent = 1.0 - bytes_left_now(transfer, run.now_ns) / transfer.bytes
                left -= sent * load_ns(s, job, transfer)
    return left


@njit
def link_busy_ns(run: Records, link: Records) -> int:
    return link.busy_ns + (run.now_ns - link.busy_since_ns if link.count > 0 else 0)


@njit
def order_key(s: State, number: int) -> int:
    """The first number of a job's key."""
    spare = len(s.keys) // KEY_WORDS - 2
    write_key(s, number, spare)
    return s.keys[spare * KEY_WORDS]


@njit
def measure_job(s: State, number: int) -> None:
    """Let what is noted of a job become how much it has changed since; once more: what it is now, less that."""
    run = s.run[0]
    job = s.jobs[number]
    count_time(job, run.now_ns)
    job.measuring = 1 - job.measuring
    job.measured_ns = run.now_ns - job.measured_ns
    job.stretch_gpu_wait_ns = job.gpu_wait_ns - job.stretch_gpu_wait_ns
    job.stretch_communicating_ns = job.communicating_ns - job.stretch_communicating_ns
    job.stretch_network_wait_ns = job.network_wait_ns - job.stretch_network_wait_ns
    job.stretch_work = work_left(s, job) - job.stretch_work
    if run.key_is_periodic == 0:
        job.stretch_key = order_key(s, number) - job.stretch_key


@njit
def measure(s: State, root: int) -> None:
    """Let what is noted of each job and link become how much it has changed since; once more: what it is now."""
    run = s.run[0]
    number = root
    while number >= 0:
        measure_job(s, number)
        number = s.jobs[number].next_member
    place = s.jobs[root].first_of_links
    while place >= 0:
        link = s.links[place]
        link.stretch_busy_ns = link_busy_ns(run, link) - link.stretch_busy_ns
        link.stretch_bytes = link.bytes - link.stretch_bytes
        place = link.next_link
    number = root
    while number >= 0:
        job = s.jobs[number]
        for sender in range(job.first_transfer, job.first_transfer + job.num_transfers):
            transfer = s.transfers[sender]
            for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                s.links[s.entries[e].link].stretch_bytes += bytes_sent(transfer, run.now_ns) * s.entries[e].share
        number = job.next_member


@njit
def forget_job(job: Records) -> None:
    """Begin to measure a job from nothing."""
    job.measuring = job.measured_ns = 0
    job.stretch_gpu_wait_ns = job.stretch_communicating_ns = job.stretch_network_wait_ns = job.stretch_key = 0
    job.stretch_work = 0.0


@njit
def forget_stretch(s: State, root: int) -> None:
    """Begin to measure all jobs of a component, and their links, from nothing."""
    s.jobs[root].stretches_ns = 0
    number = root
    while number >= 0:
        forget_job(s.jobs[number])
        number = s.jobs[number].next_member
    forget_links(s, root)


@njit
def list_links(s: State, root: int) -> None:
    """Chain the links of a component, each once."""
    run = s.run[0]
    run.stamp += 1
    first = last = -1
    number = root
    while number >= 0:
        job = s.jobs[number]
        for place in range(job.first_link, job.first_link + job.num_links):
            link = s.links[s.job_links[place]]
            if link.stamp != run.stamp:
                link.stamp, link.next_link = run.stamp, -1
                if first < 0:
                    first = s.job_links[place]
                else:
                    s.links[last].next_link = s.job_links[place]
                last = s.job_links[place]
        number = job.next_member
    s.jobs[root].first_of_links = first


@njit
def forget_links(s: State, root: int) -> None:
    place = s.jobs[root].first_of_links
    while place >= 0:
        s.links[place].stretch_busy_ns = 0
        s.links[place].stretch_bytes = 0.0
        place = s.links[place].next_link


@njit
def holds_back(s: State, root: int) -> bool:
    """Whether the order of a component's jobs may matter: a transfer has been held back, or GPUs are shared."""
    number = root
    while number >= 0:
        if s.jobs[number].network_wait_ns > 0 or s.jobs[number].shared_gpus > 0:
            return True
        number = s.jobs[number].next_member
    return False
