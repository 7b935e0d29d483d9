"""A job of groups of which some workers were simulated for others, as they did the same, goes on with fewer such."""

from __future__ import annotations

from ddlsched.engine.loop.heap import schedule, unschedule
from ddlsched.engine.loop.sharing.covers import join_placed, leave_placed
from ddlsched.engine.loop.sharing.forecast import count_units
from ddlsched.engine.loop.sharing.solver import leave_filling
from ddlsched.engine.loop.sharing.touched_links import touch_link
from ddlsched.engine.loop.tasks import join_ready, touch_gpu
from ddlsched.engine.loop.transfers import leave_list, leave_waiting_lists, link_waiting
from ddlsched.engine.native.jit import called_from_python, njit
from ddlsched.engine.records.field_values import TransferState
from ddlsched.engine.records.layout import Records, State


@called_from_python
def take_off_network(s: State, number: int) -> None:
    """Take a job's transfers off their links, for an instant; ``end_ns`` keeps when each would end, or -1."""
    run = s.run[0]
    job = s.jobs[number]
    for place in range(job.first_transfer, job.first_transfer + job.num_transfers):
        transfer = s.transfers[place]
        item = run.num_gpus + place
        transfer.end_ns = -1
        if s.position[item] >= 0:
            transfer.end_ns = s.end_ns[s.position[item]]
            unschedule(run, s.heap, s.position, s.end_ns, item)
        if transfer.state == TransferState.ACTIVE:
            run.num_active = leave_list(s.transfers, s.active, run.num_active, transfer.position)
            run.others_active -= transfer.others
            leave_filling(s, transfer)
            leave_links_now(s, transfer)
        elif transfer.state == TransferState.WAITING:
            run.num_waiting = leave_list(s.transfers, s.waiting, run.num_waiting, transfer.position)
            run.others_waiting -= transfer.others
            leave_waiting_lists(s, transfer)
        leave_placed(s, place)
    count = 0
    for place in range(run.num_fresh):
        if s.transfers[s.fresh[place]].job != number:
            s.fresh[count] = s.fresh[place]
            count += 1
    run.num_fresh = count


@njit
def leave_links_now(s: State, transfer: Records) -> None:
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        link = s.links[entry.link]
        link.count -= 1
        if entry.previous >= 0:
            s.entries[entry.previous].next = entry.next
        else:
            link.head = entry.next
        if entry.next >= 0:
            s.entries[entry.next].previous = entry.previous
        touch_link(s, entry.link)


@called_from_python
def put_on_network(s: State, number: int) -> None:
    """Put a job's transfers, each in the state that it has, on their links."""
    run = s.run[0]
    job = s.jobs[number]
    job.active_transfers = job.waiting_transfers = 0
    for place in range(job.first_transfer, job.first_transfer + job.num_transfers):
        transfer = s.transfers[place]
        transfer.step, transfer.num_binding, transfer.fresh = -1, 0, 0
        join_placed(s, place)
        count_units(s, transfer)
        if transfer.state == TransferState.ACTIVE:
            transfer.position = run.num_active
            s.active[run.num_active] = place
            run.num_active += 1
            run.others_active += transfer.others
            job.active_transfers += 1
            join_links_now(s, transfer)
        elif transfer.state == TransferState.WAITING:
            transfer.position = run.num_waiting
            s.waiting[run.num_waiting] = place
            run.num_waiting += 1
            run.others_waiting += transfer.others
            job.waiting_transfers += 1
            transfer.waits_on, transfer.fresh = -1, 1
            s.fresh[run.num_fresh] = place
            run.num_fresh += 1
            for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                link_waiting(s, e)
        if transfer.end_ns >= 0:
            schedule(run, s.heap, s.position, s.end_ns, run.num_gpus + place, transfer.end_ns)
    run.rerate = run.communicate = run.components_changed = 1


@njit
def join_links_now(s: State, transfer: Records) -> None:
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        link = s.links[entry.link]
        link.count += 1
        entry.previous, entry.next = -1, link.head
        if link.head >= 0:
            s.entries[link.head].previous = e
        link.head = e
        touch_link(s, entry.link)


@called_from_python
def stand_alone(s: State, number: int) -> None:
    """Simulate those workers again that stand for themselves from now on, from the state of who stood for them."""
    run = s.run[0]
    job = s.jobs[number]
    for place in range(job.first_worker, job.first_worker + job.num_gpus):
        worker = s.workers[place]
        before, leader = worker.leader, worker.stands_for
        if leader == before:
            continue
        first, gpu = s.gpus[s.workers[before].gpu], worker.gpu
        first.group_size -= 1
        if leader != place:
            worker.busy_ns += s.workers[before].busy_ns - s.workers[leader].busy_ns
            worker.leader = leader
            s.gpus[s.workers[leader].gpu].group_size += 1
            continue
        mate = s.workers[before]
        worker.leader = place
        worker.busy_ns += mate.busy_ns
        worker.done_ns, worker.load_left_ns = mate.done_ns, mate.load_left_ns
        take_ready_of(s, place, before)
        if first.worker == before:
            s.gpus[gpu].worker, s.gpus[gpu].started_ns = place, first.started_ns
            s.gpus[gpu].task = first.task
            job.running_workers += 1
            schedule(run, s.heap, s.position, s.end_ns, gpu, s.end_ns[s.position[s.workers[before].gpu]])
        elif first.touched == 1:
            touch_gpu(run, s.gpus, s.touched_gpus, gpu)


@njit
def take_ready_of(s: State, number: int, before: int) -> None:
    worker, mate = s.workers[number], s.workers[before]
    worker.num_ready, worker.first_ready = mate.num_ready, mate.first_ready
    if worker.num_ready > 0:
        join_ready(s, number)
