"""Step 4: transfers that have become ready get their paths from a compiled path policy; then, which ready ones run."""

from __future__ import annotations

from ddlsched.engine.field_values import FAILED, ZERO, Communication, Door, TransferState
from ddlsched.engine.loop.order import asked_beforehand, call_policy, insert, sort_items, write_key
from ddlsched.engine.loop.placement import begin_rerouting, cross, end_rerouting
from ddlsched.engine.loop.transfers import (
    NOWHERE,
    list_waiting,
    pause_transfer,
    start_transfer,
    stays_refused,
    wait_on_fullest,
)
from ddlsched.engine.native.jit import call_address, called_by_address, njit
from ddlsched.engine.records import Records, State


@called_by_address("choosing_address")
def choose_paths(s: State, number: int) -> None:  # noqa: ARG001 (all have one signature)
    """Give all transfers that are ready their paths, by number; where that is Python's, leave all of them to it."""
    run = s.run[0]
    count = ZERO
    for place in range(run.num_waiting):
        waiting = s.waiting[place]
        if s.transfers[waiting].unrouted == 1:
            if s.transfers[waiting].num_hops == 0:
                return
            insert(s.items, ZERO, count, waiting)
            count += 1
    for place in range(count):
        if not route(s, s.items[place]):
            return
        run.num_unrouted -= 1


@njit
def route(s: State, number: int) -> bool:
    """Give a transfer the links of the paths that its hops take now; return whether the policy answered for all."""
    run = s.run[0]
    transfer = s.transfers[number]
    run.path_stamp += 1
    for h in range(transfer.first_hop, transfer.first_hop + transfer.num_hops):
        answer = call_policy(s, Door.PATH.value, run.path_address, h, ZERO, run.path_fields)
        if run.failed_door >= 0:
            return False
        s.hops[h].chosen = s.hops[h].first_path + answer
        count_links(s, s.paths[s.hops[h].chosen])
    begin_rerouting(s, number, transfer.entry_room)
    slowest_s = 0.0
    for h in range(transfer.first_hop, transfer.first_hop + transfer.num_hops):
        cross(s, number, s.hops[h].source, 1.0)
    for h in range(transfer.first_hop, transfer.first_hop + transfer.num_hops):
        path = s.paths[s.hops[h].chosen]
        slowest_s = max(slowest_s, path.latency_s)
        for place in range(path.first_link, path.first_link + path.num_links):
            cross(s, number, s.path_links[place], 1.0)
    end_rerouting(s, number, (run.latency_s + transfer.steps * slowest_s) * 1e9)
    return True


@njit
def count_links(s: State, path: Records) -> None:
    """Count a path that a hop has got for the hops of its transfer that are asked about next."""
    stamp = s.run[0].path_stamp
    for place in range(path.first_link, path.first_link + path.num_links):
        cover = s.covers[s.path_links[place]]
        if cover.chosen_stamp != stamp:
            cover.chosen, cover.chosen_stamp = 0, stamp
        cover.chosen += 1


@njit
def just_chosen(s: State, link: int) -> int:
    """How many hops of the transfer that is asked about have got a link."""
    return s.covers[link].chosen if s.covers[link].chosen_stamp == s.run[0].path_stamp else 0


@njit
def jobs_on(s: State, link: int) -> int:
    """How many placed jobs may send over a link, plus the flows that have just got it."""
    return s.links[link].num_jobs + just_chosen(s, link)


@njit
def flows_on(s: State, link: int) -> int:
    """How many flows of transfers that run or wait cross a link, plus those that have just got it."""
    count = s.links[link].count + just_chosen(s, link)
    e = s.links[link].waiting_head
    while e >= 0:
        count += 1 - s.transfers[s.entries[e].transfer].unrouted
        e = s.entries[e].next
    return count


@njit
def add_candidate(s: State, count: int, number: int) -> int:
    """List a transfer in ``items``, but for one that has jumped ahead: nothing changes for it before that time."""
    if s.jobs[s.transfers[number].job].ahead_ns > s.run[0].now_ns:
        return count
    s.items[count] = number
    return count + 1


@njit
def gather_transfers(s: State) -> int:
    """Sort the waiting transfers (for a preemptive policy: the active too) into ``items``; return how many."""
    run = s.run[0]
    preemptive = run.communication >= Communication.KEYS or run.communication == Communication.ASKED_TO_SELECT
    count = ZERO
    for place in range(run.num_waiting):
        count = add_candidate(s, count, s.waiting[place])
    if preemptive:
        for place in range(run.num_active):
            count = add_candidate(s, count, s.active[place])
    sort_transfers(s, count)
    return count


@njit
def gather_candidates(s: State) -> int:
    """List in ``items`` the waiting transfers that a policy whose refusals last may start now; return how many.

    They are those that have just become ready and those on a link that a transfer has left.
    """
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    for place in range(run.num_fresh):
        number = s.fresh[place]
        transfer = s.transfers[number]
        if transfer.state == TransferState.WAITING:
            transfer.stamp = run.stamp
            count = add_candidate(s, count, number)
    for place in range(run.num_touched_links):
        e = s.links[s.touched_links[place]].waiting_head
        while e >= 0:
            transfer = s.transfers[s.entries[e].transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                count = add_candidate(s, count, s.entries[e].transfer)
            e = s.entries[e].next
    return count


@njit
def in_order(s: State, count: int) -> int:
    """Sort those of ``items`` that the policy does not refuse before any other starts; return how many.

    No start takes back a refusal, so the others need no place in the order.
    """
    s.run[0].first_admitted = 0
    if count > 1:
        count = keep_admissible(s, count)
    sort_transfers(s, count)
    return count


@njit
def keep_admissible(s: State, count: int) -> int:
    """Drop from ``items`` what is refused as it is; return how many are left.

    What a policy fails at stays: it may never be asked about it once others have started.
    """
    run = s.run[0]
    kept = ZERO
    run.first_admitted = 1
    for place in range(count):
        number = s.items[place]
        if stays_refused(s, s.transfers[number]):
            continue
        answer = asked_beforehand(s, number)
        if answer == FAILED:
            run.first_admitted = 0
        if answer != 0:
            s.items[kept] = number
            kept += 1
        elif run.refused_by_link == 1:
            wait_on_fullest(s, s.transfers[number])
    return kept


@njit
def sort_transfers(s: State, count: int) -> None:
    """Bring the transfers in ``items`` into the order in which the communication policy takes them."""
    run = s.run[0]
    if count < 2:
        return
    words = run.key_words
    for place in range(count):
        number = s.items[place]
        if run.communication == Communication.KEYS:
            words = run.transfer_key_words
            door, address, fields = Door.COMMUNICATION.value, run.communication_address, run.communication_fields
            call_policy(s, door, address, number, place, fields)
        else:
            write_key(s, s.transfers[number].job, place)
    sort_items(s, s.items, words, count)


@njit
def all_admitted(s: State, count: int) -> bool:
    """Whether the policy admits each transfer in ``items`` even if all others have started.

    Then it does so in whatever order they are asked, as no start takes back a refusal.
    """
    run, admitted = s.run[0], True
    for place in range(count):
        count_crossings(s, s.transfers[s.items[place]], 1)
    for place in range(count if count > 1 or s.transfers[s.items[0]].others > 0 else ZERO):
        if admitted:
            number = s.items[place]
            count_once(s, s.transfers[number], -1)
            admitted = call_address(run.communication_address, s, number, ZERO, run.communication_fields) == 1
            count_once(s, s.transfers[number], 1)
    for place in range(count):
        count_crossings(s, s.transfers[s.items[place]], -1)
    return admitted


@njit
def meet_alike(s: State, count: int) -> bool:
    """Whether of the transfers in ``items``, in order, two of a task meet of which one stands for others.

    Otherwise all that one stands for come before or behind whatever they meet: by their keys, or by the number of their
    job or of their task. They are asked with the same beside them, and answered alike.
    """
    run, job, task = s.run[0], -1, -1
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        if s.jobs[transfer.job].folded == 0:
            continue
        own = s.tasks[s.jobs[transfer.job].first_task + transfer.task].dag_task
        if (transfer.job, own) != (job, task):
            job, task = transfer.job, own
            run.stamp += 1
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            link = s.links[s.entries[e].link]
            if link.stamp == run.stamp:
                return True
            link.stamp = run.stamp
    return False


@njit
def order_matters(s: State, count: int) -> bool:
    """Whether a transfer in ``items`` may be kept from starting by one that is alike; each is then asked by itself.

    A policy that looks only at how many there are on the fullest link is asked as if all others had started.
    """
    run = s.run[0]
    if not meet_alike(s, count) or (run.refused_by_link == 1 and all_admitted(s, count)):
        return False
    run.doubt = 1
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        if transfer.fresh == 0:
            transfer.fresh = 1
            s.fresh[run.num_fresh] = s.items[place]
            run.num_fresh += 1
    return True


@njit
def count_crossings(s: State, transfer: Records, change: int) -> None:
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].count += change


@njit
def count_once(s: State, transfer: Records, change: int) -> None:
    """Count a transfer more, or less, on each of its links once."""
    run = s.run[0]
    run.stamp += 1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        if link.stamp != run.stamp:
            link.stamp = run.stamp
            link.count += change


@njit
def admit_transfers(s: State) -> None:
    """Ask a compiled ``admit``."""
    run = s.run[0]
    count = gather_candidates(s) if run.refusal_lasts == 1 else gather_transfers(s)
    together = run.num_folded > 0 and run.refused_by_link == 1 and count > 1 and all_admitted(s, count)
    if run.refusal_lasts == 1 and not together:
        count = in_order(s, count)
    if run.num_folded > 0 and not together and order_matters(s, count):
        return
    for place in range(count):
        number = s.items[place]
        if together or (place == 0 and run.refusal_lasts == 1 and run.first_admitted == 1):
            start_transfer(s, number)
            continue
        if stays_refused(s, s.transfers[number]):
            continue
        door, address, fields = Door.COMMUNICATION.value, run.communication_address, run.communication_fields
        admitted = call_policy(s, door, address, number, ZERO, fields)
        if run.failed_door >= 0:
            return
        if admitted == 1:
            start_transfer(s, number)
        elif run.refused_by_link == 1:
            wait_on_fullest(s, s.transfers[number])
    if run.refusal_lasts == 1:
        list_refused(s)


@njit
def list_refused(s: State) -> None:
    """List those that have just become ready and wait on with the others on their links."""
    run = s.run[0]
    for place in range(run.num_fresh):
        transfer = s.transfers[s.fresh[place]]
        transfer.fresh = 0
        if transfer.state == TransferState.WAITING and transfer.waits_on == NOWHERE:
            list_waiting(s, transfer)
    run.num_fresh = 0


@njit
def blocked(s: State, transfer: Records) -> bool:
    stamp = s.run[0].stamp
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        if s.links[s.entries[e].link].stamp == stamp:
            return True
    return False


@njit
def select_transfers(s: State) -> None:
    """Take transfers in the order of their keys, each that shares no link with one already taken."""
    run = s.run[0]
    count = gather_transfers(s)
    if run.num_folded > 0 and meet_alike(s, count):
        run.doubt = 1
        return
    run.stamp += 1
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
