"""Step 4: which ready transfers run."""

from __future__ import annotations

from ddlsched.engine.loop.codes import ZERO, TransferState
from ddlsched.engine.loop.jit import called_from_python, njit
from ddlsched.engine.loop.order import major_key, minor_key, sort_items
from ddlsched.engine.loop.rules import (
    ADADUAL,
    BY_BYTES,
    BY_SERVICE,
    BY_SERVICE_PER_GPU,
    BY_TIME,
    PER_GPU,
    PYTHON_SELECT,
    REMAINING_SERVICE,
    REMAINING_TIME,
)
from ddlsched.engine.loop.transfers import bytes_left_now, most_sharing, pause_transfer, start_transfer


@njit
def add_candidate(s, count, number):
    """List a transfer in ``items``, but for one that has jumped ahead: nothing changes for it before that time."""
    if s.jobs[s.transfers[number].job].ahead_ns > s.run[0].now_ns:
        return count
    s.items[count] = number
    return count + 1


@called_from_python
def gather_transfers(s):
    """Sort the waiting transfers (for a preemptive rule: the active too) into ``items``; return how many."""
    run = s.run[0]
    preemptive = run.communication_rule >= BY_SERVICE or run.communication_rule == PYTHON_SELECT
    count = ZERO
    for place in range(run.num_waiting):
        count = add_candidate(s, count, s.waiting[place])
    if preemptive:
        for place in range(run.num_active):
            count = add_candidate(s, count, s.active[place])
    sort_transfers(s, count)
    return count


@njit
def gather_candidates(s):
    """Sort into ``items`` the waiting transfers that a rule of the links' transfers may start now; return how many.

    Those are the ones that have just become ready, and those on a link that a transfer has left: the others were
    refused before, and since then their links have only got more transfers, or the same with fewer bytes left.
    """
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    for place in range(run.num_fresh):
        number = s.fresh[place]
        transfer = s.transfers[number]
        transfer.fresh = 0
        if transfer.state == TransferState.WAITING:
            transfer.stamp = run.stamp
            count = add_candidate(s, count, number)
    run.num_fresh = 0
    for place in range(run.num_touched_links):
        e = s.links[s.touched_links[place]].waiting_head
        while e >= 0:
            transfer = s.transfers[s.entries[e].transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                count = add_candidate(s, count, s.entries[e].transfer)
            e = s.entries[e].next
    sort_transfers(s, count)
    return count


@njit
def sort_transfers(s, count):
    """Bring the transfers in ``items`` into the order in which the communication rule takes them."""
    run = s.run[0]
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        job = s.jobs[transfer.job]
        s.major[place], s.minor[place] = 0, 0.0
        if run.communication_rule == BY_BYTES:
            s.minor[place] = bytes_left_now(transfer, run.now_ns)
        else:
            rule = run.order_rule
            if run.communication_rule == BY_SERVICE:
                rule = REMAINING_SERVICE
            elif run.communication_rule == BY_SERVICE_PER_GPU:
                rule = PER_GPU
            elif run.communication_rule == BY_TIME:
                rule = REMAINING_TIME
            s.major[place] = major_key(rule, job)
            s.minor[place] = minor_key(rule, job)
    sort_items(s.items, s.major, s.minor, count)


@njit
def adadual_admits(s, transfer):
    run = s.run[0]
    most = most_sharing(s, transfer)
    if most != 1:
        return most == 0
    cost = transfer.bytes * 2.0 * (run.per_byte_s + run.penalty_per_byte_s)
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        head = s.links[s.entries[e].link].head
        if head >= 0:
            old = s.transfers[s.entries[head].transfer]
            if cost > bytes_left_now(old, run.now_ns) * run.per_byte_s * (1 + 1e-9):
                return False
    return True


@njit
def admit_transfers(s):
    run = s.run[0]
    count = gather_candidates(s)
    for place in range(count):
        number = s.items[place]
        transfer = s.transfers[number]
        if run.communication_rule == ADADUAL:
            admitted = adadual_admits(s, transfer)
        else:
            admitted = most_sharing(s, transfer) < run.overlap_limit
        if admitted:
            start_transfer(s, number)


@njit
def blocked(s, transfer):
    stamp = s.run[0].stamp
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        if s.links[s.entries[e].link].stamp == stamp:
            return True
    return False


@njit
def select_transfers(s):
    """Preemptive shortest-first: a greedy set without a shared link."""
    run = s.run[0]
    run.stamp += 1
    count = gather_transfers(s)
    for place in range(count):
        number = s.items[place]
        transfer = s.transfers[number]
        if blocked(s, transfer):
            if transfer.state == TransferState.ACTIVE:
                pause_transfer(s, number)
            continue
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            s.links[s.entries[e].link].stamp = run.stamp
        if transfer.state == TransferState.WAITING:
            start_transfer(s, number)
