"""Rates of the transfers on links whose transfers have changed."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.codes import ZERO, Contention, Door
from ddlsched.engine.loop.jit import called_from_python, njit
from ddlsched.engine.loop.policy_calls import call_policy
from ddlsched.engine.loop.transfers import most_sharing, set_rate, touch_link


@njit
def local_rate(s, number):
    """Rate of a transfer under a model that says how fast it goes on each link."""
    run = s.run[0]
    transfer = s.transfers[number]
    least = np.inf
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.entries[e].link
        call_policy(s, Door.CONTENTION.value, run.rate_address, number, link, run.contention_fields)
        if run.failed_door >= 0:
            return 1.0
        least = min(least, run.answer)
    return least


@njit
def weigh(s, number):
    """Ask the weight and the level of a transfer."""
    run = s.run[0]
    call_policy(s, Door.CONTENTION.value, run.rate_address, number, ZERO, run.contention_fields)
    call_policy(s, Door.CONTENTION.value, run.level_address, number, ZERO, run.contention_fields)


@njit
def alone_rate_now(s, number):
    """Rate of a transfer that runs and meets nobody."""
    run = s.run[0]
    if run.contention == Contention.LINK_RATES:
        return local_rate(s, number)
    transfer = s.transfers[number]
    weigh(s, number)
    least = np.inf
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        units = 0.0
        for _ in range(link.count):
            units += transfer.weight
        least = min(least, 1.0 / run.per_byte_s * link.relative_bandwidth / units)
    return transfer.weight * least


@njit
def alone_rate(s, number):
    """Rate that a transfer would have if it ran now and met nobody; a ring may cross one link more than once."""
    transfer = s.transfers[number]
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].count += 1
    rate = alone_rate_now(s, number)
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].count -= 1
    return rate


@njit
def rerate_neighbours(s):
    """Rate every transfer on a link whose transfers have changed."""
    run = s.run[0]
    run.stamp += 1
    for place in range(run.num_touched_links):
        e = s.links[s.touched_links[place]].head
        while e >= 0:
            entry = s.entries[e]
            transfer = s.transfers[entry.transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                set_rate(s, entry.transfer, local_rate(s, entry.transfer), most_sharing(s, transfer))
            e = entry.next


@called_from_python
def collect_component(s):
    """List in ``items`` the transfers joined by links to a touched link; let ``touched_links`` be all their links."""
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    place = 0
    while place < run.num_touched_links:
        e = s.links[s.touched_links[place]].head
        while e >= 0:
            entry = s.entries[e]
            transfer = s.transfers[entry.transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                s.items[count] = entry.transfer
                count += 1
                for other in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                    touch_link(s, s.entries[other].link)
            e = entry.next
        place += 1
    return count


@njit
def weigh_all(s, count):
    """Ask the weights and levels of the transfers in ``items``, unless theirs are fixed."""
    run = s.run[0]
    for place in range(count):
        number = s.items[place]
        if run.weights_are_fixed == 0 or s.transfers[number].weight == 0.0:
            weigh(s, number)


@njit
def rerate_shares(s):
    """Ask what is not known, and share."""
    count = collect_component(s)
    weigh_all(s, count)
    rerate_max_min(s, count)


@called_from_python
def rerate_max_min(s, count):
    """Progressive filling over the touched component; ``minor`` holds the rates found."""
    run = s.run[0]
    for place in range(count):
        s.minor[place] = 0.0
        s.transfers[s.items[place]].fill_index = place
    for place in range(run.num_touched_links):
        link = s.links[s.touched_links[place]]
        link.free = 1.0 / run.per_byte_s * link.relative_bandwidth
        link.unfilled = link.count
    left = count
    while left > 0:
        left -= fill_tightest_link(s)
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        set_rate(s, s.items[place], s.minor[place], most_sharing(s, transfer))


@njit
def fill_tightest_link(s):
    """Freeze the transfers on the link with the least share (ties: lower number); return how many."""
    tightest, least = -1, 0.0
    for place in range(s.run[0].num_touched_links):
        number = s.touched_links[place]
        link = s.links[number]
        if link.unfilled > 0:
            share = link.free / link.unfilled
            if tightest < 0 or share < least or (share == least and number < tightest):
                tightest, least = number, share
    frozen = 0
    e = s.links[tightest].head
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if s.minor[transfer.fill_index] == 0.0:
            s.minor[transfer.fill_index] = least
            frozen += 1
            for other in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                link = s.links[s.entries[other].link]
                link.free = max(link.free - least, 0.0)
                link.unfilled -= 1
        e = s.entries[e].next
    return frozen


@njit
def forget_touched_links(s):
    run = s.run[0]
    for place in range(run.num_touched_links):
        s.links[s.touched_links[place]].touched = 0
    run.num_touched_links = 0
    run.rerate = 0


@called_from_python
def apply_rates(s, numbers, rates):
    """Give active transfers the rates that a Python model answered."""
    for place in range(len(numbers)):
        number = numbers[place]
        set_rate(s, number, rates[place], most_sharing(s, s.transfers[number]))
    forget_touched_links(s)
