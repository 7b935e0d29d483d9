"""Links that take no part in the filling: *slack* ones, and of those that one transfer has for itself all but one.

A *slack* link has something to spare, so that it binds nobody as long as that is so. It only adds up what its transfers
take of it: of each the units with which it counts there, times the share of the step that filled it. That is at least
what it sends. If the sum stays below the link's bandwidth by more than ``SPARE``, its share is above that of every step
that fills one of its transfers: those that are not filled yet get no less than that share, and beside them there is
room. So it has no step and is tied with none, whatever else is there. Once a filling has left more on it, it becomes
*tight*, and the filling goes on with it: its list of filled entries is sorted anew. A tight link that has had no step
in some fillings and has enough to spare becomes slack again. Sums are of whole numbers, each rounded up, so they do not
drift. A transfer in the filling crosses at least one tight link, as it must be filled.

Of links that are not covered, all that a transfer shares now can bind it, and one that it has for itself. Links that
carry one transfer only have shares that stay as they are until it is filled, which is at the latest when the least of
these shares (ties: least link number) is due. At the others nothing is left to fill then, so they are *asleep*. On a
large network most links of a transfer are. A transfer that meets nobody takes no part either, and its links sleep. What
binds another is found when it starts, or first meets one. A link that a second transfer comes to wakes up; if it was
the one of its first transfer's own links that could bind, the next of these wakes up in its place. Links that a
transfer comes to have for itself stay awake until it starts again.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State


@njit
def touch_link(s: State, link: int) -> None:
    if s.links[link].touched == 0:
        s.links[link].touched = 1
        run = s.run[0]
        s.touched_links[run.num_touched_links] = link
        run.num_touched_links += 1


@njit
def forget_touched_links(s: State) -> None:
    run = s.run[0]
    for place in range(run.num_touched_links):
        s.links[s.touched_links[place]].touched = 0
    run.num_touched_links = 0
    run.rerate = 0


WHOLE = 2.0**40
"""A link's bandwidth, in the units of sums."""
SPARE = 1e-6
"""Of its bandwidth a slack link has at least so much to spare, far more than rounding and what counts as tied."""
ENOUGH = 0.95
"""A tight link becomes slack again if no more than this part of its bandwidth is taken."""
PATIENCE = 4
"""In so many fillings that reach it a tight link has to have no step before it is looked at."""


@njit
def taken_of(s: State, link: Records, units: float, share: float) -> int:
    """What a transfer that is filled at a share counts for in a slack link's sum."""
    return np.int64(np.ceil(units * share * (WHOLE * s.run[0].per_byte_s / link.relative_bandwidth)))


@njit
def is_full(link: Records) -> bool:
    """Whether a slack link has too little to spare."""
    return link.tight == 0 and link.taken > WHOLE * (1.0 - SPARE)


@njit
def count_in_sums(s: State, transfer: Records, share: float) -> bool:
    """Let a transfer count by another share at its slack links; return whether one of them has too little to spare."""
    full = False
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_binding):
        entry = s.entries[s.entries[place].binding]
        link = s.links[entry.link]
        if link.tight == 0:
            link.taken -= taken_of(s, link, entry.units, transfer.counted_share)
            link.taken += taken_of(s, link, entry.units, share)
            full = full or is_full(link)
    transfer.counted_share = share
    return full


@njit
def precedes(step: Records, other: Records) -> bool:
    """Whether a step comes before another of its level, or where the filling stands, or is it."""
    return (step.lead_share, step.lead, step.index) <= (other.lead_share, other.lead, other.index)


@njit
def is_filled_before(s: State, e: int, other: int) -> bool:
    """Whether an entry's transfer was filled before another's; those of one step by number."""
    number, number_of_other = s.entries[e].transfer, s.entries[other].transfer
    if number == number_of_other:
        return e < other
    step, step_of_other = s.transfers[number].step, s.transfers[number_of_other].step
    if step == step_of_other:
        return number < number_of_other
    mine, others = s.steps[step], s.steps[step_of_other]
    return mine.level < others.level or (mine.level == others.level and precedes(mine, others))


@njit
def tighten(s: State, number: int) -> None:
    """Let a slack link take part in the filling, and list what was filled on it in the order of the steps."""
    link = s.links[number]
    link.tight, link.unused, link.first_filled = 1, 0, -1
    e = link.head
    while e >= 0:
        if s.transfers[s.entries[e].transfer].step >= 0:
            before, following = -1, link.first_filled
            while following >= 0 and is_filled_before(s, following, e):
                before, following = following, s.entries[following].next_filled
            s.entries[e].previous_filled, s.entries[e].next_filled = before, following
            if following >= 0:
                s.entries[following].previous_filled = e
            if before >= 0:
                s.entries[before].next_filled = e
            else:
                link.first_filled = e
        e = s.entries[e].next


@njit
def look_for_slack(s: State, number: int) -> None:
    """A filling has come to a tight link: if it has been without a step for long and has enough to spare, leave it out.

    Its transfers must all be filled, elsewhere, by a link that is tight.
    """
    link = s.links[number]
    for level in range(s.filling[0].num_levels):
        if s.steps[level * len(s.links) + number].chosen == 1:
            link.unused = 0
            return
    link.unused += 1
    if link.unused < PATIENCE:
        return
    taken = np.int64(0)
    e = link.head
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if transfer.step < 0:
            return
        taken += taken_of(s, link, s.entries[e].units, transfer.counted_share)
        e = s.entries[e].next
    link.unused = 0
    if taken < WHOLE * ENOUGH:
        link.tight, link.taken, link.first_filled = 0, taken, -1


@njit
def be_held(s: State, transfer: Records) -> None:
    """Let the tightest link of a transfer take part in the filling if none does."""
    tightest, least = -1, np.inf
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_binding):
        entry = s.entries[s.entries[place].binding]
        link = s.links[entry.link]
        if link.tight == 1:
            return
        share = max(WHOLE - link.taken, 0.0) * link.relative_bandwidth / entry.units
        if tightest < 0 or share < least:
            tightest, least = entry.link, share
    if tightest >= 0:
        tighten(s, tightest)
        touch_link(s, tightest)


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
