"""What a link goes through in the filling, as far as it is known, and when its own next step is due."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.sharing.resting_links import look_for_slack, precedes
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State

NEGLIGIBLE = 1e-9
"""Rounding leaves as much: less than this part of a link's bandwidth is nothing to lower levels, and shares that differ
by less than this part of them are tied."""


WEIGHT_UNIT = 2.0**-20
"""Weights count in whole multiples of this, so that their sums are exact."""


@njit
def count_units(s: State, transfer: Records) -> None:
    """Note the weight with which a transfer counts on each link: in proportion to what it sends there, rounded up."""
    transfer.alone_rate = 0.0
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        entry.units = np.ceil(transfer.weight * entry.share / WEIGHT_UNIT) * WEIGHT_UNIT


@njit
def rate_on(transfer: Records, entry: Records) -> float:
    """What a transfer that is filled takes of a link, bytes per second."""
    return transfer.new_rate * entry.share


@njit
def is_past(s: State, number: int) -> bool:
    """Whether a step comes at or before where the filling stands."""
    now, step = s.filling[0], s.steps[number]
    return step.level < now.level or (step.level == now.level and precedes(step, now))


@njit
def is_pending(s: State, number: int) -> bool:
    """Whether the last filling had a step that this one has not come to yet."""
    return s.steps[number].chosen == 1 and not is_past(s, number)


@njit
def join(s: State, number: int) -> None:
    """Let a link take part in this filling, if it does not yet."""
    now, link = s.filling[0], s.links[number]
    if link.fill_stamp != now.stamp:
        link.fill_stamp = now.stamp
        link.cursor = link.last_step = link.fill_level = link.due_place = -1
        link.num_unfilled = 0
        link.free = 1.0 / s.run[0].per_byte_s * link.relative_bandwidth
        look_for_slack(s, number)


@njit
def wake(s: State, number: int) -> None:
    """Let a link take part in this filling, and note that its forecast is stale."""
    now, link = s.filling[0], s.links[number]
    if link.tight == 0:
        return
    join(s, number)
    if link.stale == 0 and link.tight == 1 and link.asleep == 0 and link.covered == 0:
        link.stale = 1
        s.stale_links[now.num_stale] = number
        now.num_stale += 1


@njit
def gather(s: State, number: int, count: int, mixed: bool) -> tuple[int, bool]:
    """List a transfer in ``scratch``; return how many there are, and whether they take unequal rates from links."""
    s.scratch[count] = number
    transfer = s.transfers[number]
    return count + 1, mixed or transfer.uneven == 1 or s.transfers[s.scratch[0]].weight != transfer.weight


@njit
def entry_after_cursor(s: State, link: Records) -> int:
    return s.entries[link.cursor].next_filled if link.cursor >= 0 else link.first_filled


@njit
def enter_level(s: State, link: Records, level: int) -> None:
    """Count what a link has to fill at a level."""
    link.fill_level, link.last_step = level, -1
    link.unfilled, link.num_unfilled = 0.0, 0
    link.taken_share = link.tied_share = -1.0
    if level > 0 and link.free < NEGLIGIBLE / s.run[0].per_byte_s * link.relative_bandwidth:
        link.free = 0.0
    e = link.head
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if transfer.level == level:
            link.unfilled += s.entries[e].units
            link.num_unfilled += 1
        e = s.entries[e].next


@njit
def catch_up(s: State, link: Records) -> None:
    """Subtract from a link what has been filled up to where the filling stands."""
    e = entry_after_cursor(s, link)
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if not is_past(s, transfer.step):
            return
        if transfer.level != link.fill_level:
            enter_level(s, link, transfer.level)
        subtract(s, link, e, transfer)
        e = s.entries[e].next_filled


@njit
def subtract(s: State, link: Records, e: int, transfer: Records) -> None:
    entry, number = s.entries[e], s.steps[transfer.step].level * len(s.links) + s.entries[e].link
    take(s, link, rate_on(transfer, entry), entry.units, s.steps[transfer.step].share, number == transfer.step)
    link.cursor, link.last_step = e, transfer.step


@njit
def take(s: State, link: Records, taken: float, units: float, share: float, own: bool) -> None:
    """Subtract from a link what a transfer that is filled at a share takes of it.

    If the link has this share itself, but for rounding, before any step takes as much of it, it keeps it.
    """
    if share != link.taken_share:
        link.tied_share = tied(link.free, link.unfilled, share)
        link.taken_share, link.first_taken = share, taken
    link.free = max(link.free - taken, 0.0)
    link.unfilled -= units
    link.num_unfilled -= 1
    if link.folded == 1:
        doubt_ties(s, link, taken, own)


@njit
def tied(free: float, unfilled: float, share: float) -> float:
    """The share itself if a link has it, too, but for rounding; if not, -1."""
    return share if free / unfilled <= share * (1.0 + NEGLIGIBLE) else -1.0


@njit
def share_left(link: Records) -> float:
    """The share of a link that has something left to fill."""
    return link.tied_share if link.tied_share >= 0.0 else link.free / link.unfilled


@njit
def doubt_ties(s: State, link: Records, taken: float, own: bool) -> None:
    """Note if rounding may tell links apart of which one stands for others.

    Steps of equal shares come in the order of links, which differs among those: it leaves no trace where they take
    equal amounts, and no share that is not tied comes below theirs.
    """
    goes_on = not own and link.num_unfilled > 0
    below = goes_on and link.tied_share < 0.0 and link.free <= link.taken_share * (1.0 + NEGLIGIBLE / 2) * link.unfilled
    if below or (taken != link.first_taken and (goes_on or s.filling[0].num_levels > 1)):
        s.run[0].doubt = 1


@njit
def next_level(s: State, number: int, level: int) -> int:
    """The next level at which a link has transfers or a step to be withdrawn, or -1."""
    num_levels = s.filling[0].num_levels
    if num_levels == 1:
        return 0 if level < 0 else -1
    least = num_levels
    e = s.links[number].head
    while e >= 0:
        other = s.transfers[s.entries[e].transfer].level
        if level < other < least:
            least = other
        e = s.entries[e].next
    for other in range(level + 1, least):
        if is_pending(s, other * len(s.links) + number):
            return other
    return least if least < num_levels else -1


@njit
def set_due(link: Records, level: int, lead_share: float, lead: int, follower: int, own_share: float) -> None:
    link.due_level, link.due_share, link.due_lead = level, lead_share, lead
    link.due_follower, link.own_share = follower, own_share


@njit
def set_due_pending(link: Records, step: Records) -> None:
    """Due is the step of the last filling, which no longer is one; -1 is no share that a link can have."""
    set_due(link, step.level, step.lead_share, step.lead, 0 if step.index == 0 else 1, -1.0)


@njit
def leads_before(share: float, number: int, step: Records) -> bool:
    """Whether a batch that a link would begin comes before that of a step."""
    return share < step.lead_share or (share == step.lead_share and number < step.lead)


@njit
def look_ahead(s: State, number: int) -> bool:
    """Find when the link's next step is due if the steps of other links stay as they are; return whether it has one."""
    link = s.links[number]
    level, last = link.fill_level, link.last_step
    free, unfilled, count = link.free, link.unfilled, link.num_unfilled
    taken_share, tied_share = link.taken_share, link.tied_share
    own = level * len(s.links) + number
    pending = is_pending(s, own)
    e = entry_after_cursor(s, link)
    while True:
        following = s.transfers[s.entries[e].transfer].step if e >= 0 else -1
        if following >= 0 and s.steps[following].level != level:
            following = -1
        share = -1.0
        if count > 0:
            share = tied_share if tied_share >= 0.0 else free / unfilled
            if last >= 0 and leads_before(share, number, s.steps[last]):
                set_due(link, level, s.steps[last].lead_share, s.steps[last].lead, 1, share)
                return True
            if following < 0 or leads_before(share, number, s.steps[following]):
                if pending and not leads_before(share, number, s.steps[own]) and share != s.steps[own].lead_share:
                    set_due_pending(link, s.steps[own])
                else:
                    set_due(link, level, share, number, 0, share)
                return True
        if pending and (following < 0 or precedes(s.steps[own], s.steps[following])):
            if s.steps[own].index == 0 and share == s.steps[own].lead_share:
                set_due(link, level, share, number, 0, share)
            else:
                set_due_pending(link, s.steps[own])
            return True
        if following < 0:
            above = next_level(s, number, level)
            set_due(link, above, -1.0, -1, 0, -1.0)
            return above >= 0
        last = following
        if s.steps[last].share != taken_share:
            taken_share = s.steps[last].share
            tied_share = tied(free, unfilled, taken_share)
        while e >= 0 and s.transfers[s.entries[e].transfer].step == following:
            transfer = s.transfers[s.entries[e].transfer]
            free = max(free - rate_on(transfer, s.entries[e]), 0.0)
            unfilled -= s.entries[e].units
            count -= 1
            e = s.entries[e].next_filled


@njit
def forecast(s: State, number: int) -> None:
    link = s.links[number]
    catch_up(s, link)
    while link.fill_level < 0 or (
        link.num_unfilled == 0 and not is_pending(s, link.fill_level * len(s.links) + number)
    ):
        level = next_level(s, number, link.fill_level)
        if level < 0:
            drop_due(s, number)
            return
        enter_level(s, link, level)
    if look_ahead(s, number):
        put_due(s, number)
    else:
        drop_due(s, number)


@njit
def forecast_stale(s: State) -> None:
    now = s.filling[0]
    for place in range(now.num_stale):
        number = s.stale_links[place]
        s.links[number].stale = 0
        forecast(s, number)
    now.num_stale = 0


# --- the links that have a step of the filling before them, as a heap: the earliest first


@njit
def is_due_before(s: State, number: int, other: int) -> bool:
    """By level; by batch, in the order of their first steps; the first step of a batch; the least share."""
    a, b = s.links[number], s.links[other]
    mine = a.due_level, a.due_share, a.due_lead, a.due_follower, a.own_share, number
    return mine < (b.due_level, b.due_share, b.due_lead, b.due_follower, b.own_share, other)


@njit
def sift_due_up(s: State, place: int) -> None:
    number = s.due_links[place]
    while place > 0:
        parent = (place - 1) >> 1
        if not is_due_before(s, number, s.due_links[parent]):
            break
        s.due_links[place] = s.due_links[parent]
        s.links[s.due_links[place]].due_place = place
        place = parent
    s.due_links[place] = number
    s.links[number].due_place = place


@njit
def sift_due_down(s: State, place: int) -> None:
    size, number = s.filling[0].num_due, s.due_links[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and is_due_before(s, s.due_links[child + 1], s.due_links[child]):
            child += 1
        if not is_due_before(s, s.due_links[child], number):
            break
        s.due_links[place] = s.due_links[child]
        s.links[s.due_links[place]].due_place = place
        place = child
    s.due_links[place] = number
    s.links[number].due_place = place


@njit
def put_due(s: State, number: int) -> None:
    """Insert a link, or move it to where it now belongs."""
    place = s.links[number].due_place
    if place < 0:
        filling = s.filling[0]
        place = filling.num_due
        filling.num_due += 1
        s.due_links[place] = number
    sift_due_up(s, place)
    sift_due_down(s, s.links[number].due_place)


@njit
def drop_due(s: State, number: int) -> None:
    """Take a link out, if it is there."""
    place = s.links[number].due_place
    if place < 0:
        return
    filling = s.filling[0]
    filling.num_due -= 1
    s.links[number].due_place = -1
    last = s.due_links[filling.num_due]
    if last != number:
        s.due_links[place] = last
        s.links[last].due_place = place
        sift_due_up(s, place)
        sift_due_down(s, s.links[last].due_place)
