"""The state of a component, kept, compared and moved on: what a jump over periods looks at."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import TransferState
from ddlsched.engine.loop.heap import schedule
from ddlsched.engine.loop.tasks import should_be_lockstep
from ddlsched.engine.loop.time_accounts import count_time
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State

COMPARING, SAVING = np.int64(0), np.int64(1)


@njit
def snapshot_words(job: Records) -> int:
    """The most words that :func:`walk_job` uses."""
    simulated = num_simulated(job)
    words = 13 + job.num_tasks + simulated * (9 + 2 * flags_of(job)) + (job.num_tasks if job.grouped == 1 else 0)
    if job.num_linked > 0:
        words += 8 * job.num_transfers + 2 * job.num_links
    return words


@njit
def flags_of(job: Records) -> int:
    """How many tasks each worker has flags of its own for; those of a job of groups have them together."""
    return 0 if job.grouped == 1 else job.num_tasks


@njit
def num_simulated(job: Records) -> int:
    """How many of a job's workers are simulated from the start of an iteration on."""
    if job.grouped == 1:
        return job.num_leaders
    return 1 if should_be_lockstep(job) == 1 else job.num_gpus


@njit
def simulated_worker(s: State, job: Records, place: int) -> int:
    return job.first_worker + (s.members[job.first_leader + place] if job.grouped == 1 else place)


@njit
def kept(words: np.ndarray, at: int, value: int, saving: bool) -> bool:
    if saving:
        words[at] = value
    return words[at] == value


@njit
def all_kept(words: np.ndarray, at: int, values: tuple[int, ...], saving: bool) -> bool:
    for value in values:
        if not kept(words, at, value, saving):
            return False
        at += 1
    return True


@njit
def moved(words: np.ndarray, at: int, value: int, saving: bool, times: int) -> int:
    if saving:
        words[at] = value
    return value + times * (value - words[at])


@njit
def shifted(time_ns: int, saved_ns: int, shift_ns: int) -> int:
    """What happened in the last period happens in each; what did not, never."""
    return time_ns + shift_ns if time_ns > saved_ns else time_ns


@njit
def bits(value: float) -> int:
    """The bits of a float: equal if and only if it is the same."""
    return np.float64(value).view(np.int64)


@njit
def ends_in_ns(s: State, item: int) -> int:
    """In what time an item of the heap ends, or -1."""
    return s.end_ns[s.position[item]] - s.run[0].now_ns if s.position[item] >= 0 else np.int64(-1)


@njit
def walk(s: State, anchor: int, saving: bool, times: int) -> bool:
    """Save a component's state, or move it on by so many periods if it is the saved one; return whether it is."""
    run = s.run[0]
    run.stamp += 1
    saved_ns = s.jobs[anchor].saved_ns
    shift_ns = times * (run.now_ns - saved_ns)
    number = s.jobs[anchor].root
    while number >= 0:
        if not walk_job(s, number, saving, times, saved_ns, shift_ns):
            return False
        number = s.jobs[number].next_member
    return True


@njit
def walk_job(s: State, number: int, saving: bool, times: int, saved_ns: int, shift_ns: int) -> bool:
    job, words = s.jobs[number], s.snapshots
    if job.restarting == 1 or job.lockstep != should_be_lockstep(job):
        return False
    unsafe = (job.start_iterations_left - job.iterations_left) % s.run[0].checkpoint_iterations
    at = job.snapshot + 7
    values = job.steps_left, job.active_transfers, job.waiting_transfers, job.running_workers, job.lockstep, unsafe
    if not all_kept(words, at, values, saving):
        return False
    at += len(values)
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if not kept(words, at, s.tasks[task].pending, saving):
            return False
        at += 1
    if job.grouped == 1 and not walk_flags(s, job, at, saving):
        return False
    at += job.num_tasks if job.grouped == 1 else 0
    if job.num_linked > 0:
        for transfer in range(job.first_transfer, job.first_transfer + job.num_transfers):
            if not walk_transfer(s, transfer, at, saving, times, saved_ns, shift_ns):
                return False
            at += 8
    for place in range(num_simulated(job)):
        if not walk_worker(s, simulated_worker(s, job, place), at, saving, times, shift_ns):
            return False
        at += 9 + 2 * flags_of(job)
    if saving or times > 0:
        if job.num_linked > 0:
            walk_links(s, job, at, saving, times)
        count_time(job, s.run[0].now_ns)
        walk_amounts(s, job, saving, times)
        job.since_ns += shift_ns
        job.checkpoint_ns = shifted(job.checkpoint_ns, saved_ns, shift_ns)
        job.iteration_ns = shifted(job.iteration_ns, saved_ns, shift_ns)
    return True


@njit
def walk_flags(s: State, job: Records, at: int, saving: bool) -> bool:
    """Whether the same tasks of a job of groups are ready."""
    first = s.workers[job.first_worker].first_flag
    task = 0
    while task < job.num_tasks and kept(s.snapshots, at + task, np.int64(s.ready[first + task]), saving):
        task += 1
    return task == job.num_tasks


@njit
def walk_amounts(s: State, job: Records, saving: bool, times: int) -> None:
    words, at = s.snapshots, job.snapshot
    job.iterations_left = moved(words, at, job.iterations_left, saving, times)
    job.remaining_service_ns = moved(words, at + 1, job.remaining_service_ns, saving, times)
    job.load_left_ns = moved(words, at + 2, job.load_left_ns, saving, times)
    job.computing_ns = moved(words, at + 3, job.computing_ns, saving, times)
    job.gpu_wait_ns = moved(words, at + 4, job.gpu_wait_ns, saving, times)
    job.communicating_ns = moved(words, at + 5, job.communicating_ns, saving, times)
    job.network_wait_ns = moved(words, at + 6, job.network_wait_ns, saving, times)


@njit
def walk_transfer(s: State, number: int, at: int, saving: bool, times: int, saved_ns: int, shift_ns: int) -> bool:
    run, words = s.run[0], s.snapshots
    transfer = s.transfers[number]
    item = run.num_gpus + number
    since_ns = run.now_ns - transfer.since_ns if transfer.state == TransferState.ACTIVE else np.int64(0)
    left, latency, rate = bits(transfer.bytes_left), bits(transfer.latency_left_ns), bits(transfer.rate)
    values = transfer.state, ends_in_ns(s, item), since_ns, left, latency, rate, transfer.sharing
    if not all_kept(words, at, values, saving):
        return False
    at += len(values)
    transfer.since_ns = shifted(transfer.since_ns, saved_ns, shift_ns)
    transfer.segment_ns = shifted(transfer.segment_ns, saved_ns, shift_ns)
    transfer.times_sent = moved(words, at, transfer.times_sent, saving, times)
    if shift_ns > 0 and s.position[item] >= 0:
        schedule(run, s.heap, s.position, s.end_ns, item, s.end_ns[s.position[item]] + shift_ns)
    return True


@njit
def walk_worker(s: State, number: int, at: int, saving: bool, times: int, shift_ns: int) -> bool:
    run, words = s.run[0], s.snapshots
    worker = s.workers[number]
    job = s.jobs[worker.job]
    g = s.gpus[worker.gpu]
    running = g.worker == number
    task = g.task if running else np.int64(-1)
    ends_ns = ends_in_ns(s, worker.gpu) if running else np.int64(-1)
    if worker.leader != number:
        return kept(words, at, worker.leader, saving)
    # With equal ends a task may have begun earlier, when others on its GPU made it last longer.
    begun_ns = run.now_ns - g.started_ns if running else np.int64(-1)
    values = worker.leader, task, begun_ns, ends_ns, worker.num_ready, worker.first_ready
    if not all_kept(words, at, values, saving):
        return False
    at += len(values)
    for flag in range(worker.first_flag, worker.first_flag + flags_of(job)):
        if not (kept(words, at + 3, s.pending[flag], saving) and kept(words, at + 4, np.int64(s.ready[flag]), saving)):
            return False
        at += 2
    at -= 2 * flags_of(job)
    if times > 0:
        busy_ns = times * (worker.busy_ns - words[at + 1]) - (shift_ns if running else 0)
        run.busy_ns += np.float64(job.num_gpus if job.lockstep == 1 else g.group_size) * busy_ns
    worker.done_ns = moved(words, at, worker.done_ns, saving, times)
    worker.busy_ns = moved(words, at + 1, worker.busy_ns, saving, times)
    worker.load_left_ns = moved(words, at + 2, worker.load_left_ns, saving, times)
    if running:
        g.started_ns += shift_ns
        if shift_ns > 0:
            schedule(run, s.heap, s.position, s.end_ns, worker.gpu, s.end_ns[s.position[worker.gpu]] + shift_ns)
    return True


@njit
def walk_links(s: State, job: Records, at: int, saving: bool, times: int) -> None:
    """Each link once, though several jobs use it."""
    run, words = s.run[0], s.snapshots
    for place in range(job.first_link, job.first_link + job.num_links):
        link = s.links[s.job_links[place]]
        if link.stamp != run.stamp:
            link.stamp = run.stamp
            link.busy_since_ns = moved(words, at, link.busy_since_ns, saving, times)
            link.busy_ns = moved(words, at + 1, link.busy_ns, saving, times)
            at += 2
