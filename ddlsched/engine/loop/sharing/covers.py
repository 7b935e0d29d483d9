"""Links that never bind, whoever sends: another link, which all of their transfers cross too, binds first.

A link *covers* another if each transfer placed on that one crosses it at least as often, with as large a part of its
bytes, and it has less bandwidth, or as much and a smaller number. Whatever has been filled, it then has at most as much
free and at least as much left to fill, rounding included, as both subtract the same, the covered one perhaps less
often: so its share is at most the other's, and its step comes first and fills all that the other has. A covered link
therefore takes no part in the filling. Most links of a ring are covered: of those that only one job uses, all but one.

What is placed changes seldom, what sends changes all the time: links are compared when jobs come and go.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import Contention, TransferState
from ddlsched.engine.loop.sharing.resting_links import touch_link
from ddlsched.engine.loop.sharing.small_components import MOST_LINKS
from ddlsched.engine.loop.sharing.solver import leave_filling
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State

MARGIN = 1e-9
"""By such a part, a link's bandwidth must be above that of the one that covers it if its number is not: then rounding
does not make their shares equal."""


@njit
def keeps_covers(s: State) -> bool:
    """Whether the run's transfers share by weights, on a large network."""
    contention = s.run[0].contention
    shares = contention == Contention.SHARES or contention == Contention.ASKED_FOR_SHARES
    return shares and len(s.links) > MOST_LINKS


@njit
def join_placed(s: State, number: int) -> None:
    """A transfer has got its links."""
    if not keeps_covers(s):
        return
    transfer = s.transfers[number]
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        cover = s.covers[entry.link]
        entry.previous_placed, entry.next_placed = -1, cover.head
        if cover.head >= 0:
            s.entries[cover.head].previous_placed = e
        cover.head = e
        doubt(s, entry.link)


@njit
def leave_placed(s: State, number: int) -> None:
    """A transfer loses its links."""
    if not keeps_covers(s):
        return
    transfer = s.transfers[number]
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        if entry.previous_placed >= 0:
            s.entries[entry.previous_placed].next_placed = entry.next_placed
        else:
            s.covers[entry.link].head = entry.next_placed
        if entry.next_placed >= 0:
            s.entries[entry.next_placed].previous_placed = entry.previous_placed
        doubt(s, entry.link)


@njit
def doubt(s: State, number: int) -> None:
    """Note that a link may be covered now where it was not, or the other way round."""
    if s.covers[number].doubted == 0:
        s.covers[number].doubted = 1
        run = s.run[0]
        s.doubted_links[run.num_doubted_links] = number
        run.num_doubted_links += 1


@njit
def settle_covers(s: State) -> None:
    """Find which of the doubted links are covered now, and what that leaves to bind the transfers on them."""
    run = s.run[0]
    count = run.num_doubted_links
    run.num_doubted_links = 0
    for place in range(count):
        number = s.doubted_links[place]
        s.covers[number].doubted = 0
        s.links[number].covered = 1 if is_covered(s, number) else 0
    run.seen += 1
    for place in range(count):
        e = s.covers[s.doubted_links[place]].head
        while e >= 0:
            transfer = s.transfers[s.entries[e].transfer]
            if transfer.seen != run.seen:
                transfer.seen = run.seen
                list_open(s, transfer)
            e = s.entries[e].next_placed


@njit
def list_open(s: State, transfer: Records) -> None:
    """List a transfer's entries at links that are not covered; one that sends is filled anew."""
    if transfer.state == TransferState.ACTIVE:
        leave_filling(s, transfer)
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            touch_link(s, s.entries[e].link)
    transfer.num_open, transfer.alone_rate = 0, 0.0
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        if s.links[s.entries[e].link].covered == 0:
            s.entries[transfer.first_entry + transfer.num_open].open = e
            transfer.num_open += 1


@njit
def is_covered(s: State, number: int) -> bool:
    """Whether some link covers this one: of those that its first transfer crosses, one that all its others do, too."""
    run = s.run[0]
    run.seen += 1
    mark = run.seen
    passed = 0
    e = s.covers[number].head
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if transfer.seen != mark:
            transfer.seen = mark
            count_crossings(s, transfer)
            if pass_links(s, transfer, number, mark, passed) == 0:
                return False
            passed += 1
        e = s.entries[e].next_placed
    return passed > 0


@njit
def count_crossings(s: State, transfer: Records) -> None:
    """Count how often a transfer crosses each of its links, and the least and greatest part of its bytes there."""
    run = s.run[0]
    run.seen += 1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        cover = s.covers[entry.link]
        if cover.stamp != run.seen:
            cover.stamp, cover.crossings, cover.least_share, cover.greatest_share = run.seen, 0, np.inf, 0.0
        cover.crossings += 1
        cover.least_share = min(cover.least_share, entry.share)
        cover.greatest_share = max(cover.greatest_share, entry.share)


@njit
def pass_links(s: State, transfer: Records, number: int, mark: int, passed: int) -> int:
    """Of the links that may still cover this one, pass those that do for one more transfer; return how many."""
    stamp, count = s.run[0].seen, 0
    covered = s.covers[number]
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        other = s.entries[e].link
        cover = s.covers[other]
        if cover.stamp == stamp and cover.passed_stamp != stamp:
            enough = cover.crossings >= covered.crossings and cover.least_share >= covered.greatest_share
            if passed == 0:
                may_cover = other != number and binds_first(s, other, number)
            else:
                may_cover = cover.mark == mark and cover.passed == passed
            if enough and may_cover:
                cover.mark, cover.passed, cover.passed_stamp = mark, passed + 1, stamp
                count += 1
    return count


@njit
def binds_first(s: State, number: int, other: int) -> bool:
    """Whether a link's step comes before another's where the same transfers cross both."""
    mine, others = s.links[number].relative_bandwidth, s.links[other].relative_bandwidth
    if mine * (1.0 + MARGIN) < others:
        return True
    return mine == others and number < other
