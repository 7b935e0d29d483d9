"""Transfers between servers: waiting, running, paused, ended; their bytes and their rate."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import ZERO, SliceKind, TransferState
from ddlsched.engine.loop.heap import schedule, unschedule
from ddlsched.engine.loop.sharing.resting_links import touch_link
from ddlsched.engine.loop.sharing.solver import leave_filling
from ddlsched.engine.loop.tasks import end_all_reduce, push_work
from ddlsched.engine.loop.time_accounts import count_time, record_slice
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State

NOWHERE = -2
"""A transfer that has just become ready waits in no link's list: most often it starts within the instant."""


@njit
def holds_up(job: Records, transfer: Records) -> bool:
    """Whether a job waits for a transfer of its own: not for state that it saves while it works."""
    return transfer.task >= 0 or job.hold_ns >= 0


@njit
def join_waiting(s: State, number: int) -> None:
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    if holds_up(job, transfer):
        count_time(job, run.now_ns)
        job.waiting_transfers += 1
    transfer.state = TransferState.WAITING
    transfer.rate = 0.0
    transfer.since_ns = run.now_ns
    transfer.position = run.num_waiting
    s.waiting[run.num_waiting] = number
    run.num_waiting += 1
    run.others_waiting += transfer.others
    run.rerate = 1
    transfer.waits_on = NOWHERE
    if run.rerouting == 1:
        list_waiting(s, transfer)
    if transfer.fresh == 0:
        transfer.fresh = 1
        s.fresh[run.num_fresh] = number
        run.num_fresh += 1


@njit
def list_waiting(s: State, transfer: Records) -> None:
    """List a transfer with those that wait on each of its links."""
    transfer.waits_on = -1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link_waiting(s, e)


@njit
def link_waiting(s: State, e: int) -> None:
    entry = s.entries[e]
    link = s.links[entry.link]
    entry.previous = -1
    entry.next = link.waiting_head
    if link.waiting_head >= 0:
        s.entries[link.waiting_head].previous = e
    link.waiting_head = e


@njit
def unlink_waiting(s: State, e: int) -> None:
    entry = s.entries[e]
    if entry.previous >= 0:
        s.entries[entry.previous].next = entry.next
    else:
        s.links[entry.link].waiting_head = entry.next
    if entry.next >= 0:
        s.entries[entry.next].previous = entry.previous


@njit
def leave_waiting_lists(s: State, transfer: Records) -> None:
    """Take a waiting transfer out of the lists of its links, or of the one whose list it is in."""
    if transfer.waits_on >= 0:
        unlink_waiting(s, transfer.waits_on)
        transfer.waits_on = -1
    elif transfer.waits_on != NOWHERE:
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            unlink_waiting(s, e)


@njit
def wait_on_fullest(s: State, transfer: Records) -> None:
    """Keep a refused transfer in the list of its fullest link only: until one leaves that link it stays refused."""
    fullest = transfer.first_entry if transfer.waits_on < 0 else transfer.waits_on
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        if s.links[s.entries[e].link].count > s.links[s.entries[fullest].link].count:
            fullest = e
    transfer.refused_at = s.links[s.entries[fullest].link].count
    wait_on(s, transfer, fullest)


@njit
def wait_on(s: State, transfer: Records, e: int) -> None:
    if transfer.waits_on != e:
        leave_waiting_lists(s, transfer)
        link_waiting(s, e)
        transfer.waits_on = e


@njit
def stays_refused(s: State, transfer: Records) -> bool:
    """Whether a link is as full as the fullest was when a transfer was refused: then it is again, and waits there."""
    if transfer.refused_at == 0:
        return False
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        if s.links[s.entries[e].link].count >= transfer.refused_at:
            wait_on(s, transfer, e)
            return True
    return False


@njit
def leave_list(transfers: np.ndarray, members: np.ndarray, count: int, position: int) -> int:
    """Take the member at a position out of a list of ``count`` and return its new length."""
    last = members[count - 1]
    members[position] = last
    transfers[last].position = position
    return count - 1


@njit
def leave_waiting(s: State, number: int) -> None:
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    if run.record == 1 and transfer.since_ns < run.now_ns:
        record_slice(s, SliceKind.WAIT.value, number, job, transfer.task, transfer.since_ns, ZERO, 0.0)
    if holds_up(job, transfer):
        count_time(job, run.now_ns)
        job.waiting_transfers -= 1
    run.num_waiting = leave_list(s.transfers, s.waiting, run.num_waiting, transfer.position)
    run.others_waiting -= transfer.others
    leave_waiting_lists(s, transfer)
    transfer.state = TransferState.IDLE


@njit
def join_link(s: State, e: int) -> None:
    """List a running transfer with those on one of its links."""
    entry = s.entries[e]
    link = s.links[entry.link]
    link.count += 1
    entry.previous, entry.next = -1, link.head
    if link.head >= 0:
        s.entries[link.head].previous = e
    link.head = e
    touch_link(s, entry.link)


@njit
def leave_link(s: State, e: int) -> None:
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


@njit
def start_transfer(s: State, number: int) -> None:
    """Step 4: a waiting transfer runs; its rate comes after the step."""
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    leave_waiting(s, number)
    if holds_up(job, transfer):
        job.active_transfers += 1
    transfer.state = TransferState.ACTIVE
    transfer.position = run.num_active
    s.active[run.num_active] = number
    run.num_active += 1
    run.others_active += transfer.others
    transfer.since_ns = run.now_ns
    transfer.segment_ns = run.now_ns
    if transfer.weight == 0.0:
        run.unweighed = 1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        if link.count == 0:
            link.busy_since_ns = run.now_ns
        join_link(s, e)
    run.rerate = 1


@njit
def stop_transfer(s: State, number: int) -> None:
    """An active transfer ends or pauses: it leaves its links."""
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    if run.record == 1:
        record_transfer(s, number)
    if holds_up(job, transfer):
        count_time(job, run.now_ns)
        job.active_transfers -= 1
    run.num_active = leave_list(s.transfers, s.active, run.num_active, transfer.position)
    run.others_active -= transfer.others
    transfer.state = TransferState.IDLE
    leave_filling(s, transfer)
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        leave_link(s, e)
        if link.count == 0:
            link.busy_ns += run.now_ns - link.busy_since_ns
    run.rerate = 1


@njit
def record_transfer(s: State, number: int) -> None:
    """Record the time since the transfer's last change of rate."""
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    record_slice(
        s, SliceKind.TRANSFER.value, number, job, transfer.task, transfer.segment_ns, transfer.sharing, transfer.rate
    )


@njit
def pause_transfer(s: State, number: int) -> None:
    run = s.run[0]
    transfer = s.transfers[number]
    settle(transfer, run.now_ns)
    if transfer.rate > 0.0:
        unschedule(run, s.heap, s.position, s.end_ns, run.num_gpus + number)
    stop_transfer(s, number)
    join_waiting(s, number)


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


@njit
def end_transfer(s: State, number: int) -> None:
    """Step 1: an active transfer has sent its last byte."""
    run = s.run[0]
    run.events += 1 + s.transfers[number].others
    run.communicate = 1
    stop_transfer(s, number)
    s.transfers[number].bytes_left = 0.0
    s.transfers[number].times_sent += 1
    if s.transfers[number].task >= 0:
        end_all_reduce(s, number)
        return
    job = s.jobs[s.transfers[number].job]
    job.flows_left -= 1
    if job.flows_left == 0:  # all of its state has come: it goes on, or its checkpoint is whole
        push_work(s, number)


@njit
def bytes_left_now(transfer: Records, now_ns: int) -> float:
    """Bytes left at ``now_ns``, without changing the transfer."""
    if transfer.state != TransferState.ACTIVE or transfer.rate == 0.0:
        return transfer.bytes_left
    sending_ns = now_ns - transfer.since_ns - transfer.latency_left_ns
    if sending_ns <= 0.0:
        return transfer.bytes_left
    return max(transfer.bytes_left - sending_ns / transfer.ns_per_byte, 0.0)


@njit
def bytes_sent(transfer: Records, now_ns: int) -> float:
    """Bytes that a transfer has sent, in all its iterations, since they were written down on its links last."""
    sent = transfer.bytes * transfer.times_sent
    if transfer.state != TransferState.IDLE:
        sent += transfer.bytes - bytes_left_now(transfer, now_ns)
    return sent


@njit
def settle(transfer: Records, now_ns: int) -> None:
    """Subtract what was sent since the last change of rate; a transfer with rate 0 still sits out its latency."""
    transfer.bytes_left = bytes_left_now(transfer, now_ns)
    transfer.latency_left_ns = max(transfer.latency_left_ns - (now_ns - transfer.since_ns), 0.0)
    transfer.since_ns = now_ns


@njit
def set_rate(s: State, number: int, rate: float, sharing: int) -> None:
    """Give an active transfer its rate; only if that is a change, settle it and predict its end anew.

    With rate 0, which a strict priority may leave it, it stands still and has no end until its rate rises.
    """
    run = s.run[0]
    transfer = s.transfers[number]
    if run.record == 1 and (rate != transfer.rate or sharing != transfer.sharing):
        if transfer.segment_ns < run.now_ns:
            record_transfer(s, number)
        transfer.segment_ns = run.now_ns
    transfer.sharing = sharing
    if rate == transfer.rate:
        return
    settle(transfer, run.now_ns)
    if rate == 0.0:
        unschedule(run, s.heap, s.position, s.end_ns, run.num_gpus + number)
        transfer.rate = rate
        return
    transfer.rate = rate
    transfer.ns_per_byte = 1e9 / rate
    schedule_transfer(s, number)


@njit
def schedule_transfer(s: State, number: int) -> None:
    """Predict when a transfer that was settled last at ``since_ns`` ends, or ends a part of its message."""
    run = s.run[0]
    transfer = s.transfers[number]
    to_send = transfer.bytes_left
    if run.message_parts > 1:
        transfer.ends_part = 1 if transfer.parts_sent + 1 < run.message_parts else 0
        if transfer.ends_part == 1:
            to_send = max(to_send - left_after(run, transfer, transfer.parts_sent + 1), 0.0)
    after_ns = np.ceil(transfer.latency_left_ns + to_send * transfer.ns_per_byte - 0.001)
    if after_ns > 9.2e18 - transfer.since_ns:
        run.clock_overflow = 1
        after_ns = 0.0
    end = transfer.since_ns + max(np.int64(after_ns), 0)
    schedule(run, s.heap, s.position, s.end_ns, run.num_gpus + number, max(end, run.now_ns))


@njit
def left_after(run: Records, transfer: Records, parts: int) -> float:
    """Bytes that a transfer has left when it has sent so many parts of its message."""
    return transfer.bytes * ((run.message_parts - parts) / run.message_parts)


@njit
def end_part(s: State, number: int) -> None:
    """Step 1: an active transfer has sent a part of its message, or several: rates are asked anew on its links."""
    run = s.run[0]
    transfer = s.transfers[number]
    left = bytes_left_now(transfer, run.now_ns)
    transfer.parts_sent += 1
    while transfer.parts_sent + 1 < run.message_parts and left <= left_after(run, transfer, transfer.parts_sent + 1):
        transfer.parts_sent += 1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        touch_link(s, s.entries[e].link)
    run.rerate = 1
    schedule_transfer(s, number)


@njit
def most_sharing(s: State, transfer: Records) -> int:
    """The most transfers on any one of the transfer's links."""
    most = 0
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        most = max(most, s.links[s.entries[e].link].count)
    return most
