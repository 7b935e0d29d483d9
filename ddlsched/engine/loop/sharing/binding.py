"""Which links can bind a transfer, of those not covered: all that it shares now, and one that it has for itself.

Links that carry one transfer only have shares that stay as they are until it is filled, which is at the latest when the
least of these shares (ties: least link number) is due. At the others nothing is left to fill then, so they are *asleep*
and take no part in the filling. On a large network most links of a transfer are.

A transfer that meets nobody takes no part either, and its links sleep. What binds another is found when it starts, or
first meets one. A link that a second transfer comes to wakes up; if it was the one of its
first transfer's own links that could bind, the next of these wakes up in its place. Links that a transfer comes to have
for itself stay awake until it starts again.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.sharing.slack import be_held, is_full, taken_of, tighten
from ddlsched.engine.loop.sharing.touched_links import touch_link
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.layout import Records, State


@njit
def settle_binding(s: State) -> None:
    """Bring up to date what binds the transfers on touched links; rate those that meet nobody."""
    s.filling[0].num_rated = 0
    num_touched = s.run[0].num_touched_links
    for place in range(num_touched):
        link = s.links[s.touched_links[place]]
        if link.count > 1 and link.covered == 0:
            share_link(s, s.touched_links[place])
    for place in range(num_touched):
        e = s.links[s.touched_links[place]].head
        if e >= 0 and s.links[s.touched_links[place]].count == 1:
            transfer = s.transfers[s.entries[e].transfer]
            if e == s.entries[transfer.first_entry].open and is_alone(s, transfer):
                rate_alone(s, s.entries[e].transfer)
            continue
        while e >= 0:
            transfer = s.transfers[s.entries[e].transfer]
            if transfer.num_binding == 0:
                bind(s, transfer)
                for own in range(transfer.first_entry, transfer.first_entry + transfer.num_open):
                    if transfer.rate > 0.0:  # it was alone
                        touch_link(s, s.entries[s.entries[own].open].link)
            e = s.entries[e].next


@njit
def is_alone(s: State, transfer: Records) -> bool:
    """Whether a transfer that takes no part in the filling meets nobody."""
    if transfer.num_binding > 0:
        return False
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_open):
        if s.links[s.entries[s.entries[place].open].link].count > 1:
            return False
    return True


@njit
def rate_alone(s: State, number: int) -> None:
    """Give a transfer that meets nobody the least share of its links, which are asleep until another comes."""
    run, filling, transfer = s.run[0], s.filling[0], s.transfers[number]
    share = np.inf
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_open):
        entry = s.entries[s.entries[place].open]
        link = s.links[entry.link]
        link.asleep = max(link.asleep, 1)
        if transfer.alone_rate == 0.0:
            share = min(share, 1.0 / run.per_byte_s * link.relative_bandwidth / entry.units)
    if transfer.alone_rate == 0.0:
        transfer.alone_rate = transfer.weight * share
    transfer.new_rate = transfer.alone_rate
    s.items[filling.num_rated] = number
    filling.num_rated += 1


@njit
def share_link(s: State, number: int) -> None:
    """Let a link bind the transfer that had it for itself; those that have just started are bound later."""
    link = s.links[number]
    e = link.head
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if transfer.num_binding > 0:
            if link.asleep > 0:
                take_in(s, transfer, e)
            elif transfer.own_link == number:
                replace_own_link(s, transfer)
        e = s.entries[e].next
    link.asleep = 0


@njit
def bind(s: State, transfer: Records) -> None:
    """Find what binds a transfer that has just started."""
    least = transfer.own_link = -1
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_open):
        e = s.entries[place].open
        link = s.links[s.entries[e].link]
        if link.count > 1:
            append_binding(s, transfer, e)
        else:
            link.asleep = max(link.asleep, 1)
            if least < 0 or binds_before(s, s.entries[e], s.entries[least]):
                least = e
    if least >= 0:
        transfer.own_link = s.entries[least].link
        s.links[transfer.own_link].asleep = 0
        append_binding(s, transfer, least)
    be_held(s, transfer)


@njit
def binds_before(s: State, entry: Records, other: Records) -> bool:
    """Whether a link has a lower share for the one transfer on it than another link has."""
    free = 1.0 / s.run[0].per_byte_s * s.links[entry.link].relative_bandwidth
    free_on_other = 1.0 / s.run[0].per_byte_s * s.links[other.link].relative_bandwidth
    share, share_of_other = free / entry.units, free_on_other / other.units
    return share < share_of_other or (share == share_of_other and entry.link < other.link)


@njit
def replace_own_link(s: State, transfer: Records) -> None:
    """Wake the link that binds a transfer instead of one that it no longer has for itself."""
    least = -1
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_open):
        e = s.entries[place].open
        link = s.links[s.entries[e].link]
        sleeps = link.asleep > 0 and link.count == 1
        if sleeps and (least < 0 or binds_before(s, s.entries[e], s.entries[least])):
            least = e
    transfer.own_link = -1
    if least >= 0:
        transfer.own_link = s.entries[least].link
        s.links[transfer.own_link].asleep = 0
        take_in(s, transfer, least)
        touch_link(s, transfer.own_link)


@njit
def take_in(s: State, transfer: Records, e: int) -> None:
    """Let a transfer that may have its rate already be bound by the entry at a link that was asleep."""
    append_binding(s, transfer, e)
    link = s.links[s.entries[e].link]
    if link.tight == 0:
        link.taken += taken_of(s, link, s.entries[e].units, transfer.counted_share)
        if is_full(link):
            tighten(s, s.entries[e].link)
            touch_link(s, s.entries[e].link)
    elif transfer.step >= 0:
        s.links[s.entries[e].link].first_filled = e
        s.entries[e].previous_filled = s.entries[e].next_filled = -1


@njit
def append_binding(s: State, transfer: Records, e: int) -> None:
    s.entries[transfer.first_entry + transfer.num_binding].binding = e
    transfer.num_binding += 1
