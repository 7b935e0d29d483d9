"""Links that have something to spare: they bind nobody, so they take no part in the filling, as long as that is so.

A *slack* link only adds up what its transfers take of it: of each the units with which it counts there, times the share
of the step that filled it. That is at least what it sends. If the sum stays below the link's bandwidth by more than
``SPARE``, its share is above that of every step that fills one of its transfers: those that are not filled yet get no
less than that share, and beside them there is room. So it has no step and is tied with none, whatever else is there.
Once a filling has left more on it, it becomes *tight*, and the filling goes on with it: its list of filled entries is
sorted anew. A tight link that has had no step in some fillings and has enough to spare becomes slack again.

Sums are of whole numbers, each rounded up, so they do not drift. A transfer in the filling crosses at least one tight
link, as it must be filled.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.sharing.touched_links import touch_link
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.layout import Records, State

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
def leave_sums(s: State, transfer: Records) -> None:
    """Take a transfer out of the sums of its slack links."""
    if transfer.counted_share > 0.0:
        count_in_sums(s, transfer, 0.0)


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
    if step.lead_share != other.lead_share:
        return step.lead_share < other.lead_share
    if step.lead != other.lead:
        return step.lead < other.lead
    return step.index <= other.index


@njit
def is_filled_before(s: State, e: int, other: int) -> bool:
    """Whether an entry's transfer was filled before another's; those of one step by number."""
    number, number_of_other = s.entries[e].transfer, s.entries[other].transfer
    if number == number_of_other:
        return e < other
    step, step_of_other = s.transfers[number].step, s.transfers[number_of_other].step
    if step == step_of_other:
        return number < number_of_other
    if s.steps[step].level != s.steps[step_of_other].level:
        return s.steps[step].level < s.steps[step_of_other].level
    return precedes(s.steps[step], s.steps[step_of_other])


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
