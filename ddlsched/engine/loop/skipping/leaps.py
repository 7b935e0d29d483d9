"""How a sampled run leaps: what jobs that share GPUs or links did in a stretch goes on at the same rates.

A leap keeps the state within each job's iteration and lets whole iterations pass, as many as the job's rate in the
stretch makes of the leap's time; what is left of an iteration is carried to the next leap. Time and compute pass at
the rates of the stretch, bytes and service with the iterations, links' use with the bytes.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import KEY_WORDS, ZERO, TransferState
from ddlsched.engine.loop.heap import schedule
from ddlsched.engine.loop.order import sort_items
from ddlsched.engine.loop.skipping.foreseen import hand_out
from ddlsched.engine.loop.skipping.measuring import holds_back, order_key
from ddlsched.engine.loop.skipping.period_snapshots import shifted
from ddlsched.engine.loop.tasks import compute_steps, uneven_ns
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State

SLOPES = 1e6
"""Slopes of keys are compared in whole millionths."""


@njit
def longest_leap_ns(s: State, root: int, most_ns: int) -> int:
    """How long a leap may be before a job ends its last iteration but one, or, being in its last, ends by its rate.

    A job that starves in its last iteration thus holds up nobody.
    """
    number = root
    while number >= 0:
        job = s.jobs[number]
        rate = -job.stretch_work / job.iteration_work / max(job.measured_ns, 1)
        left = max(job.iterations_left - 1, 1) - job.leap_carry
        if rate > 0.0 and left / rate < most_ns:
            most_ns = int(max(left, 0.0) / rate)
        number = job.next_member
    return most_ns


@njit
def key_slope(job: Records) -> float:
    """How fast the first number of a job's key rises, each nanosecond."""
    return job.stretch_key / max(job.measured_ns, 1)


@njit
def sort_by_key(s: State, root: int) -> int:
    """List a component's jobs in ``items``, in the order in which they go from now on; return how many."""
    count, number = 0, root
    while number >= 0:
        job = s.jobs[number]
        job.key_now = order_key(s, number)
        s.items[count] = number
        s.keys[count * KEY_WORDS] = job.key_now
        s.keys[count * KEY_WORDS + 1] = np.int64(key_slope(job) * SLOPES)
        count += 1
        number = job.next_member
    sort_items(s, s.items, 2, count)
    return count


@njit
def until_cross_ns(job: Records, other: Records, most_ns: int) -> int:
    """How long it is until the keys of two jobs cross, if that is less."""
    nears, gap = key_slope(job) - key_slope(other), np.float64(other.key_now - job.key_now)
    return int(gap / nears) if nears != 0.0 and 0.0 < gap / nears < most_ns else most_ns


@njit
def until_keys_cross_ns(s: State, root: int, most_ns: int) -> int:
    """How long a leap may be before two of the component's jobs that meet change their order.

    The first two to do so on a link are neighbours there.
    """
    run = s.run[0]
    if run.key_is_periodic == 1 or not holds_back(s, root):
        return most_ns
    count = sort_by_key(s, root)
    run.stamp += 1
    for place in range(count):
        number = s.items[place]
        job = s.jobs[number]
        for at in range(job.first_link, job.first_link + job.num_links):
            link = s.links[s.job_links[at]]
            if link.stamp == run.stamp:
                most_ns = until_cross_ns(job, s.jobs[link.first_job], most_ns)
            link.stamp, link.first_job = run.stamp, number
        if job.shared_gpus > 0:
            for worker in range(job.first_worker, job.first_worker + job.num_gpus):
                gpu = s.workers[worker].gpu
                for resident in range(s.gpus[gpu].num_residents):
                    most_ns = until_cross_ns(job, s.jobs[s.workers[s.residents[gpu, resident]].job], most_ns)
    return most_ns


@njit
def leap(s: State, root: int, leap_ns: int, stretch_ns: int) -> None:
    """Let a component go on for ``leap_ns`` at the rates of its stretch."""
    run = s.run[0]
    run.leaps += 1
    busy_ns, number = run.busy_ns, root
    while number >= 0:
        job = s.jobs[number]
        share = leap_ns / max(job.measured_ns, 1)
        carried = job.leap_carry
        passed = carried - job.stretch_work / job.iteration_work * share
        iterations = min(max(np.int64(passed), 0), job.iterations_left - 1)
        job.leap_carry = max(passed - iterations, 0.0)
        leap_job(s, job, iterations, iterations + job.leap_carry - carried, leap_ns, stretch_ns)
        number = job.next_member
    hand_out(s, busy_ns, run.now_ns + leap_ns)
    if run.rerouting == 1:
        spread_bytes(s, root)
    place = s.jobs[root].first_of_links
    while place >= 0:
        leap_link(s.links[place], leap_ns)
        place = s.links[place].next_link


@njit
def spread_bytes(s: State, root: int) -> None:
    """Where transfers choose their paths anew, what they send in a leap goes over the links as in the stretch."""
    in_leap = passing = in_stretch = 0.0
    place = s.jobs[root].first_of_links
    while place >= 0:
        link = s.links[place]
        in_leap += link.leap_bytes
        passing += link.passing_bytes
        in_stretch += link.stretch_bytes
        place = link.next_link
    place = s.jobs[root].first_of_links
    while place >= 0:
        link = s.links[place]
        if in_stretch > 0.0:
            link.leap_bytes = link.stretch_bytes * (in_leap / in_stretch)
            link.passing_bytes = link.stretch_bytes * (passing / in_stretch)
        link.bytes += link.leap_bytes
        place = link.next_link


@njit
def leap_link(link: Records, leap_ns: int) -> None:
    """A link is busy for each byte as long as in the stretch, but no less than they take at its speed."""
    busy_ns = 0.0
    if link.stretch_bytes > 0.0:  # little more than a latency, or what rounding left of nothing, it may be
        busy_ns = link.passing_bytes / link.stretch_bytes * link.stretch_busy_ns
    least_ns = link.passing_bytes / link.bandwidth_bytes_per_s * 1e9
    link.busy_ns += np.int64(min(max(busy_ns, least_ns), np.float64(leap_ns)))
    link.busy_since_ns += leap_ns
    link.leap_bytes = link.passing_bytes = 0.0


@njit
def leap_job(s: State, job: Records, iterations: int, passing: float, leap_ns: int, stretch_ns: int) -> None:
    """Let as many iterations end as do in a leap, and as many pass as do with their parts."""
    run = s.run[0]
    from_ns = run.now_ns - stretch_ns
    leap_phases(job, leap_ns, leap_ns / max(job.measured_ns, 1))
    run.leapt_iterations += iterations
    run.contended_iterations += iterations
    run.events += iterations * (compute_steps(job) + job.num_linked)
    unsafe = (job.start_iterations_left - job.iterations_left) % run.checkpoint_iterations + iterations
    job.iterations_left -= iterations
    job.remaining_service_ns -= iterations * (job.service_ns // job.iterations)
    job.since_ns += leap_ns
    job.iteration_ns += leap_ns
    if unsafe >= run.checkpoint_iterations:
        behind = (job.start_iterations_left - job.iterations_left) % run.checkpoint_iterations
        job.checkpoint_ns = max(job.iteration_ns - np.int64(behind * (leap_ns / iterations)), run.now_ns)
    job.ahead_ns = run.now_ns + leap_ns
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        leap_transfer(s, job, number, iterations, passing, leap_ns, from_ns)
    task = ZERO
    for number in range(job.first_worker, job.first_worker + (1 if job.lockstep == 1 else job.num_gpus)):
        if s.workers[number].leader == number:
            task = leap_worker(s, job, number, task, iterations, leap_ns)


@njit
def leap_phases(job: Records, leap_ns: int, share: float) -> None:
    """What a job does and waits for takes the parts of the time that it took in the stretch."""
    gpu_wait_ns = np.int64(job.stretch_gpu_wait_ns * share)
    communicating_ns = np.int64(job.stretch_communicating_ns * share)
    network_wait_ns = np.int64(job.stretch_network_wait_ns * share)
    job.gpu_wait_ns += gpu_wait_ns
    job.communicating_ns += communicating_ns
    job.network_wait_ns += network_wait_ns
    job.computing_ns += leap_ns - gpu_wait_ns - communicating_ns - network_wait_ns


@njit
def leap_transfer(
    s: State, job: Records, number: int, iterations: int, passing: float, leap_ns: int, from_ns: int
) -> None:
    run = s.run[0]
    transfer = s.transfers[number]
    task = s.tasks[job.first_task + transfer.task]
    if job.grouped == 0:
        job.load_left_ns -= iterations * task.load_ns
    for member in range(task.first_member, task.first_member + task.num_members):
        s.workers[job.first_worker + s.members[member]].load_left_ns -= iterations * task.load_ns
    if transfer.num_entries == 0:
        return
    if run.rerouting == 0:
        transfer.times_sent += iterations
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        link.leap_bytes += iterations * transfer.bytes * s.entries[e].share
        link.passing_bytes += passing * transfer.bytes * s.entries[e].share
    if transfer.state == TransferState.ACTIVE:
        transfer.since_ns += leap_ns
        transfer.segment_ns += leap_ns
        item = run.num_gpus + number
        if s.position[item] >= 0:
            schedule(run, s.heap, s.position, s.end_ns, item, s.end_ns[s.position[item]] + leap_ns)
    elif transfer.state == TransferState.WAITING:
        transfer.since_ns = shifted(transfer.since_ns, from_ns, leap_ns)


@njit
def leap_worker(s: State, job: Records, number: int, task: int, iterations: int, leap_ns: int) -> int:
    """Let a worker go on; return where the next one's tasks begin, which in a job of groups come after its own."""
    run = s.run[0]
    worker = s.workers[number]
    g = s.gpus[worker.gpu]
    busy_ns = np.int64(0)
    while task < job.num_tasks and (job.grouped == 0 or s.tasks[job.first_task + task].worker == number):
        record = s.tasks[job.first_task + task]
        if record.transfer < 0 and iterations > 0:
            worker.done_ns += iterations * record.duration_ns
            busy_ns += iterations * uneven_ns(s, number, task)
        task += 1
    worker.busy_ns += busy_ns
    if g.worker == number:
        busy_ns -= leap_ns
        g.started_ns += leap_ns
        schedule(run, s.heap, s.position, s.end_ns, worker.gpu, s.end_ns[s.position[worker.gpu]] + leap_ns)
    run.busy_ns += np.float64(job.num_gpus if job.lockstep == 1 else g.group_size) * busy_ns
    return task if job.grouped == 1 else ZERO
