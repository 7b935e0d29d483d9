"""Weighted max-min shares in strict levels on a small network: a component is filled from nothing at each change.

Where a change reaches most of the links anyway, that is up to twice as fast as to keep account of what it reaches.
"""

from __future__ import annotations

from ddlsched.engine.field_values import ZERO
from ddlsched.engine.loop.order import sort_numbers
from ddlsched.engine.loop.sharing.forecast import enter_level, gather, rate_on, share_left, take
from ddlsched.engine.loop.sharing.resting_links import touch_link
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State

MOST_LINKS = 40
"""Of a small network."""


@njit
def fill_component(s: State) -> int:
    """List in ``items`` the transfers joined by links to a touched link, with their ``new_rate``; return how many."""
    count = collect_component(s)
    left = count
    for level in range(s.filling[0].num_levels):
        if level > 0:
            for place in range(s.run[0].num_touched_links):
                enter_level(s, s.links[s.touched_links[place]], level)
        while left > 0:
            filled = fill_tightest_link(s, level)
            if filled == 0:
                break
            left -= filled
    return count


@njit
def collect_component(s: State) -> int:
    """List the transfers; let ``touched_links`` be all their links, of which each counts what it fills at level 0."""
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    place = 0
    while place < run.num_touched_links:
        link = s.links[s.touched_links[place]]
        link.free = 1.0 / run.per_byte_s * link.relative_bandwidth
        link.unfilled, link.num_unfilled = 0.0, 0
        link.taken_share = link.tied_share = -1.0
        e = link.head
        while e >= 0:
            entry = s.entries[e]
            transfer = s.transfers[entry.transfer]
            if transfer.level == 0:
                link.unfilled += entry.units
                link.num_unfilled += 1
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                transfer.new_rate = -1.0
                s.items[count] = entry.transfer
                count += 1
                for other in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                    touch_link(s, s.entries[other].link)
            e = entry.next
        place += 1
    return count


@njit
def fill_tightest_link(s: State, level: int) -> int:
    """Fill the level's transfers on the link with the least share (ties: lower number); return how many."""
    tightest, least = -1, 0.0
    for place in range(s.run[0].num_touched_links):
        number = s.touched_links[place]
        link = s.links[number]
        if link.num_unfilled > 0:
            share = share_left(link)
            if tightest < 0 or share < least or (share == least and number < tightest):
                tightest, least = number, share
    count, mixed = 0, False
    e = s.links[tightest].head if tightest >= 0 else -1
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if transfer.level == level and transfer.new_rate < 0.0:
            count, mixed = gather(s, s.entries[e].transfer, count, mixed)
        e = s.entries[e].next
    if mixed:
        sort_numbers(s.scratch, ZERO, count)  # what rounding does must not depend on who came first
    filled = ZERO
    for place in range(count):
        transfer = s.transfers[s.scratch[place]]
        if transfer.new_rate < 0.0:  # a ring may cross a link more than once
            filled += 1
            fill_one(s, transfer, least, tightest)
    return filled


@njit
def fill_one(s: State, transfer: Records, share: float, tightest: int) -> None:
    transfer.new_rate = transfer.weight * share
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        link = s.links[entry.link]
        take(s, link, rate_on(transfer, entry), entry.units, share, entry.link == tightest)
