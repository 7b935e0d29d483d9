"""A job of groups of which some workers were simulated for others, as they did the same, goes on with fewer such."""

from __future__ import annotations

from ddlsched.engine.field_values import TransferState
from ddlsched.engine.loop.gpu_groups import copy_gpu, copy_worker
from ddlsched.engine.loop.heap import schedule, unschedule
from ddlsched.engine.loop.sharing.covers import join_placed, leave_placed
from ddlsched.engine.loop.sharing.forecast import count_units
from ddlsched.engine.loop.sharing.solver import leave_filling
from ddlsched.engine.loop.skipping.due import note_change
from ddlsched.engine.loop.transfers import join_link, leave_link, leave_list, leave_waiting_lists, list_waiting
from ddlsched.engine.native.jit import NUMBER, STATE, called_from_python
from ddlsched.engine.records import State


@called_from_python(STATE, NUMBER)
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
            for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                leave_link(s, e)
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


@called_from_python(STATE, NUMBER)
def put_on_network(s: State, number: int) -> None:
    """Put a job's transfers, each in the state that it has, on their links."""
    run = s.run[0]
    job = s.jobs[number]
    job.active_transfers = job.waiting_transfers = 0
    for place in range(job.first_transfer, job.first_transfer + job.num_transfers):
        transfer = s.transfers[place]
        transfer.step, transfer.num_binding, transfer.fresh, transfer.counted_share = -1, 0, 0, 0.0
        join_placed(s, place)
        count_units(s, transfer)
        if transfer.state == TransferState.ACTIVE:
            transfer.position = run.num_active
            s.active[run.num_active] = place
            run.num_active += 1
            run.others_active += transfer.others
            job.active_transfers += 1
            for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                join_link(s, e)
        elif transfer.state == TransferState.WAITING:
            transfer.position = run.num_waiting
            s.waiting[run.num_waiting] = place
            run.num_waiting += 1
            run.others_waiting += transfer.others
            job.waiting_transfers += 1
            transfer.fresh = 1
            s.fresh[run.num_fresh] = place
            run.num_fresh += 1
            list_waiting(s, transfer)
        if transfer.end_ns >= 0:
            schedule(run, s.heap, s.position, s.end_ns, run.num_gpus + place, transfer.end_ns)
    run.rerate = run.components_changed = 1
    note_change(s, number)
    job.component = 0  # with more workers and tasks it needs more room for a snapshot than was reserved


@called_from_python(STATE, NUMBER)
def stand_alone(s: State, number: int) -> None:
    """Simulate those workers again that stand for themselves from now on, from the state of who stood for them."""
    job = s.jobs[number]
    for place in range(job.first_worker, job.first_worker + job.num_gpus):
        worker = s.workers[place]
        before, leader = worker.leader, worker.stands_for
        if leader == before:
            continue
        s.gpus[s.workers[before].gpu].group_size -= 1
        if leader != place:
            worker.busy_ns += s.workers[before].busy_ns - s.workers[leader].busy_ns
            worker.leader = leader
            s.gpus[s.workers[leader].gpu].group_size += 1
            continue
        copy_worker(s, place)
        copy_gpu(s, worker.gpu, s.workers[before].gpu)
