"""A job joins its GPUs and links, and leaves them."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import JobState
from ddlsched.engine.loop.gpu_groups import compare_again, part_group
from ddlsched.engine.loop.heap import schedule
from ddlsched.engine.loop.iterations import do_work, hold_gpus, start_iteration
from ddlsched.engine.loop.room import change_free_bytes
from ddlsched.engine.loop.sharing.covers import join_placed, leave_placed
from ddlsched.engine.loop.sharing.forecast import count_units
from ddlsched.engine.loop.skipping.dormancy import wake
from ddlsched.engine.loop.skipping.due import note_change
from ddlsched.engine.loop.tasks import join_ready, mix, slowness, touch_gpu
from ddlsched.engine.loop.time_accounts import book_computing, count_time
from ddlsched.engine.loop.transfers import bytes_sent, cut_state, leave_waiting_lists, link_waiting
from ddlsched.engine.native.jit import NUMBER, NUMBERS, REAL, REALS, STATE, called_from_python, njit
from ddlsched.engine.records import Records, State


@njit
def expand(s: State, job: Records) -> None:
    """End a job's lockstep: give every worker the state of the first."""
    run = s.run[0]
    count_time(job, run.now_ns)
    first = s.workers[job.first_worker]
    running = s.gpus[first.gpu].worker == job.first_worker
    job.running_workers = job.num_gpus if running else 0
    for number in range(job.first_worker + 1, job.first_worker + job.num_gpus):
        worker = s.workers[number]
        worker.done_ns, worker.busy_ns = first.done_ns, first.busy_ns
        if worker.num_ready == 0 and first.num_ready > 0:
            join_ready(s, number)
        worker.first_ready, worker.num_ready = first.first_ready, first.num_ready
        for task in range(job.num_tasks):
            s.pending[worker.first_flag + task] = s.pending[first.first_flag + task]
            s.ready[worker.first_flag + task] = s.ready[first.first_flag + task]
        if running:
            s.gpus[worker.gpu].worker = number
            s.gpus[worker.gpu].task = s.gpus[first.gpu].task
            s.gpus[worker.gpu].started_ns = s.gpus[first.gpu].started_ns
            schedule(run, s.heap, s.position, s.end_ns, worker.gpu, s.end_ns[s.position[first.gpu]])
        elif worker.num_ready > 0:
            touch_gpu(run, s.gpus, s.touched_gpus, worker.gpu)
    job.lockstep = 0


PLACE_JOB = STATE, NUMBER, NUMBER, NUMBERS, NUMBER, *[NUMBERS] * 3, *[REALS] * 3, NUMBERS, NUMBER


@called_from_python(*PLACE_JOB)
def place_job(
    s: State,
    number: int,
    stay: int,
    chosen: np.ndarray,
    num_servers: int,
    job_links: np.ndarray,
    num_links: np.ndarray,
    links: np.ndarray,
    shares: np.ndarray,
    wire_bytes: np.ndarray,
    latency_ns: np.ndarray,
    load_ns: np.ndarray,
    hold_ns: int,
) -> None:
    """Step 3: put a job on the GPUs ``chosen``, its stay number ``stay`` of the run.

    It holds them for ``hold_ns`` before its first task, if that is below 0 until its state has come. ``num_links``,
    ``wire_bytes``, ``latency_ns`` and ``load_ns`` have an entry for each of the job's transfers. Their links are one
    after another in ``links``, an entry a crossing, with the part of ``wire_bytes`` that the link carries in
    ``shares``, and each once in ``job_links``.
    """
    run = s.run[0]
    job = s.jobs[number]
    job.state = JobState.RUNNING
    job.stay = stay
    if job.restarts == 0:
        job.start_ns = run.now_ns
    job.start_iterations_left = job.iterations_left
    job.queueing_ns += run.now_ns - job.since_ns
    job.since_ns = job.checkpoint_ns = run.now_ns
    job.num_servers = num_servers
    job.uneven = 1 if len(s.jitter) > 1 or job.grouped == 1 else 0
    for i in range(job.num_gpus):
        join_gpu(s, job, job.first_worker + i, chosen[i])
        if slowness(s, job, chosen[i]) != 1.0:
            job.uneven = 1
    if job.grouped == 1:
        stand_for_others(s, job)
    join_links(s, number, job_links)
    job.running_place = run.num_running
    s.running[run.num_running] = number
    run.num_running += 1
    run.components_changed = 1
    job.profiled = 0
    job.num_linked = 0
    place = 0
    for i in range(job.num_transfers):
        transfer = s.transfers[job.first_transfer + i]
        transfer.bytes, transfer.latency_ns = wire_bytes[i], latency_ns[i]
        transfer.weight = 0.0  # not asked yet
        transfer.refused_at = 0
        transfer.first_entry, transfer.num_entries, transfer.uneven = run.num_entries, 0, 0
        if transfer.num_hops == 0:
            transfer.entry_room = num_links[i]
        if num_links[i] > 0:
            job.num_linked += 1 + transfer.others
        for _ in range(num_links[i]):
            add_entry(s, job.first_transfer + i, links[place], shares[place])
            place += 1
        run.num_entries += transfer.entry_room
        join_placed(s, job.first_transfer + i)
        task = s.tasks[job.first_task + transfer.task]
        task.load_ns = load_ns[i]
        if job.grouped == 0:
            job.load_left_ns += load_ns[i] * job.iterations_left
        for member in range(task.first_member, task.first_member + task.num_members):
            s.workers[job.first_worker + s.members[member]].load_left_ns += load_ns[i] * job.iterations_left
    if hold_ns != 0:
        hold_gpus(s, number, hold_ns)
        return
    start_iteration(s, job)
    do_work(s)
    if run.num_finished > 0:
        run.again = 1


@njit
def add_entry(s: State, number: int, link: int, share: float) -> None:
    """Have a transfer cross one more link, with a part of its bytes."""
    transfer = s.transfers[number]
    entry = s.entries[transfer.first_entry + transfer.num_entries]
    transfer.num_entries += 1
    entry.link, entry.share, entry.transfer = link, share, number
    if share != 1.0:
        transfer.uneven = 1


@njit
def stand_for_others(s: State, job: Records) -> None:
    """Have some workers of a job of groups, each on a GPU without others, simulated for those that do the same."""
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        leader = s.workers[number].leader = s.workers[number].stands_for
        if leader != number:
            s.gpus[s.workers[leader].gpu].group_size += 1


@njit
def leave_folded(s: State, job: Records) -> None:
    """A job leaves its links, of which those that no other uses are no longer simulated by another."""
    if job.folded == 1:
        job.folded = 0
        s.run[0].num_folded -= 1
        spread_links(s, job, 0)


@njit
def spread_links(s: State, job: Records, most_jobs: int) -> None:
    """Write down of a job's links with so many jobs for how long they were busy, as those simulated for them."""
    for place in range(job.first_link, job.first_link + job.num_links):
        link = s.links[s.job_links[place]]
        if link.num_jobs <= most_jobs and link.leader != s.job_links[place]:
            link.busy_ns += s.links[link.leader].busy_ns - link.leader_busy_ns
    for place in range(job.first_link, job.first_link + job.num_links):
        link = s.links[s.job_links[place]]
        if link.num_jobs <= most_jobs:
            link.leader, link.folded = s.job_links[place], 0


@njit
def join_gpu(s: State, job: Records, number: int, gpu: int) -> None:
    s.workers[number].gpu = gpu
    s.workers[number].done_ns = s.workers[number].busy_ns = s.workers[number].load_left_ns = 0
    g = s.gpus[gpu]
    part_group(s, gpu)
    # One that has the GPU for itself takes all and one byte more: no other job fits, however little it needs.
    alone = job.elastic == 1 or s.run[0].exclusive == 1
    s.workers[number].memory_bytes = g.free_bytes + 1 if alone else job.memory_bytes
    change_free_bytes(s, gpu, -s.workers[number].memory_bytes)
    if g.num_residents > 0:
        note_change(s, s.workers[s.residents[gpu, 0]].job)
        job.shared_gpus += 1
    else:
        s.run[0].allocated_gpus += 1
    if g.num_residents == 1:
        other = s.jobs[s.workers[s.residents[gpu, 0]].job]
        if other.dormant == 1:
            wake(s, s.workers[s.residents[gpu, 0]].job)
        other.shared_gpus += 1
        if other.lockstep == 1:
            expand(s, other)
    s.residents[gpu, g.num_residents] = number
    g.num_residents += 1
    s.workers[number].leader = number
    g.residents_hash += mix(s.workers[number].job + 1)
    compare_again(s, gpu)
    add_penalties(s, gpu)


@njit
def add_penalties(s: State, gpu: int) -> None:
    """Say of each job on a GPU how much longer its tasks take because of the others there."""
    if len(s.penalties_ppm) == 0:
        return
    count = s.gpus[gpu].num_residents
    for place in range(count):
        worker = s.workers[s.residents[gpu, place]]
        kind = s.jobs[worker.job].kind
        added = largest = 0
        for other in range(count):
            if other != place:
                penalty_ppm = s.penalties_ppm[kind, s.jobs[s.workers[s.residents[gpu, other]].job].kind]
                added += penalty_ppm
                largest = max(largest, penalty_ppm)
        worker.penalty_ppm = largest if s.run[0].penalised_once == 1 else added


@njit
def join_links(s: State, number: int, job_links: np.ndarray) -> None:
    """Count a job once on each of its links; ``link_jobs`` adds up jobs' numbers: of one alone it is its number."""
    run = s.run[0]
    job = s.jobs[number]
    job.shared_links = 0
    job.first_link, job.num_links = run.num_job_links, len(job_links)
    run.num_job_links += len(job_links)
    for place in range(len(job_links)):
        s.job_links[job.first_link + place] = job_links[place]
        link = s.links[job_links[place]]
        if link.num_jobs == 1 and s.jobs[link.link_jobs].dormant == 1:
            wake(s, link.link_jobs)
    for place in job_links:
        link = s.links[place]
        if link.num_jobs == 1:
            s.jobs[link.link_jobs].shared_links += 1
        if link.num_jobs > 0:
            note_change(s, link.link_jobs if link.num_jobs == 1 else link.first_job)
            job.shared_links += 1
        link.num_jobs += 1
        link.link_jobs += number


@njit
def leave_links(s: State, job: Records) -> None:
    number = s.workers[job.first_worker].job
    for place in range(job.first_link, job.first_link + job.num_links):
        link = s.links[s.job_links[place]]
        link.num_jobs -= 1
        link.link_jobs -= number
        if link.num_jobs == 1:
            s.jobs[link.link_jobs].shared_links -= 1


@njit
def leave_gpu(s: State, number: int) -> None:
    gpu = s.workers[number].gpu
    g = s.gpus[gpu]
    change_free_bytes(s, gpu, s.workers[number].memory_bytes)
    g.num_residents -= 1
    place = 0
    while s.residents[gpu, place] != number:
        place += 1
    s.residents[gpu, place] = s.residents[gpu, g.num_residents]
    s.workers[number].leader = number
    if s.jobs[s.workers[number].job].grouped == 1:
        g.group_size = 1
    g.residents_hash -= mix(s.workers[number].job + 1)
    compare_again(s, gpu)
    add_penalties(s, gpu)
    if g.num_residents == 1:
        s.jobs[s.workers[s.residents[gpu, 0]].job].shared_gpus -= 1
    if g.num_residents == 0:
        s.run[0].allocated_gpus -= 1


@njit
def book(s: State, job: Records) -> None:
    """Write down what a job has done on its GPUs and links since it was placed."""
    book_computing(s, job)
    for number in range(job.first_transfer, end_of_transfers(job)):
        book_bytes(s, s.transfers[number])


@njit
def end_of_transfers(job: Records) -> int:
    """Where the transfers of a job end, behind its collectives those of its state: no other has both."""
    return job.first_flow + job.num_flows if job.num_flows > 0 else job.first_transfer + job.num_transfers


@njit
def book_bytes(s: State, transfer: Records) -> None:
    """Write down on its links what a transfer has sent since that was done last."""
    sent_bytes = bytes_sent(transfer, s.run[0].now_ns)
    transfer.times_sent = 0
    for place in range(transfer.first_crossing, transfer.first_crossing + transfer.num_crossings):
        s.links[s.crossings[place].link].bytes += sent_bytes * s.crossings[place].share
    if transfer.num_crossings > 0:
        return
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].bytes += sent_bytes * s.entries[e].share


@called_from_python(STATE, NUMBER, NUMBERS, REALS, REAL)
def reroute_transfer(s: State, number: int, links: np.ndarray, shares: np.ndarray, latency_ns: int) -> None:
    """Give a transfer that waits, and has sent nothing, other links, as :func:`place_job` gave it its first."""
    begin_rerouting(s, number, len(links))
    for place in range(len(links)):
        cross(s, number, links[place], shares[place])
    end_rerouting(s, number, latency_ns)


@njit
def begin_rerouting(s: State, number: int, most_links: int) -> None:
    """A transfer that waits loses its links, and may get so many."""
    run = s.run[0]
    transfer = s.transfers[number]
    leave_waiting_lists(s, transfer)
    book_bytes(s, transfer)
    leave_placed(s, number)
    if most_links > transfer.entry_room:
        transfer.first_entry, transfer.entry_room = run.num_entries, most_links
        run.num_entries += most_links
    transfer.num_entries = transfer.uneven = transfer.unrouted = 0


@njit
def cross(s: State, number: int, link: int, share: float) -> None:
    """Have a transfer that is rerouted cross a link with a part of its bytes."""
    add_entry(s, number, link, share)
    link_waiting(s, s.transfers[number].first_entry + s.transfers[number].num_entries - 1)


@njit
def end_rerouting(s: State, number: int, latency_ns: int) -> None:
    """A transfer has all its new links."""
    transfer = s.transfers[number]
    transfer.latency_ns = transfer.latency_left_ns = latency_ns
    join_placed(s, number)
    count_units(s, transfer)


@njit
def leave_running(s: State, job: Records) -> None:
    run = s.run[0]
    run.num_running -= 1
    last = s.running[run.num_running]
    s.running[job.running_place] = last
    s.jobs[last].running_place = job.running_place
    note_change(s, s.workers[job.first_worker].job)
    job.anchor = job.due = 0
    run.components_changed = 1


@njit
def remove_job(s: State, job: Records) -> None:
    """A job leaves its GPUs."""
    book(s, job)
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        leave_gpu(s, number)
    leave_links(s, job)
    for number in range(job.first_transfer, end_of_transfers(job)):
        leave_placed(s, number)
    leave_running(s, job)
    if job.leaving > 0:
        job.leaving = 0
        s.run[0].num_unsettled -= 1
    s.run[0].must_place = 1


@njit
def remove_finished(s: State) -> None:
    run = s.run[0]
    for place in range(run.num_finished):
        cut_state(s, s.jobs[s.finished[place]])
        remove_job(s, s.jobs[s.finished[place]])
        leave_folded(s, s.jobs[s.finished[place]])
        run.num_jobs_left -= 1
    run.num_finished = 0
