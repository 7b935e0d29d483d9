"""Weighted max-min shares in strict levels, by progressive filling that is done again only where it changes.

It knows links and the transfers that cross them, neither jobs nor time. A link's share is what is free on it over the
weights not yet filled. Level by level, the link with the least (share, number) takes a step: each transfer of the level
that crosses it and is not filled gets its weight times the share, which is subtracted at each of its crossings. What a
level leaves, a lower one shares; rounding aside it may be nothing.

**Order.** Were numbers exact, the pairs (share, number) of successive steps would ascend. Rounding, or an equal share,
may bring a link below the pair of the step that touched it: then it is next. One that has the share of a step which
touches it, but for rounding, keeps that share: the order of links changes no rate. So steps come in batches. The first
of a batch, its lead, has a pair above all before it; the others, its followers, have come below the lead's pair within
the batch, and are taken the least first. As leads ascend, (level, lead's pair, index in the batch) orders all steps.

**Exactness.** A step depends on its link alone, on what is free and who is unfilled there, and touches only the links
that its transfers cross. By induction over that order: as long as no step has touched a link that the last filling did
not have, and none is missing that it had, the link has had the same subtractions in the same order, so its values are
the same to the bit, and its own step comes in the same place with the same share and transfers. Therefore only links
wake whose transfers have changed, or that a changed step touches: one taken, or one that was due and is withdrawn. An
awake link subtracts anew, from all its bandwidth, what its list of filled entries holds, which is in the order of the
steps. Its step is due at its own pair, as soon as that is below the lead of the next step in the list; if that is below
the lead of the step before, in that batch. Only the order of followers depends on other links than their own: if an
awake link is one, all that the batch had are withdrawn, and the batch goes on from its lead. To withdraw a step too
early, or to wake too many links, costs time only: what is filled anew is filled by the same rule.
"""

from __future__ import annotations

from ddlsched.engine.field_values import ZERO
from ddlsched.engine.loop.order import sort_numbers
from ddlsched.engine.loop.sharing.forecast import (
    catch_up,
    drop_due,
    enter_level,
    entry_after_cursor,
    forecast_stale,
    gather,
    is_past,
    join,
    subtract,
    wake,
)
from ddlsched.engine.loop.sharing.resting_links import count_in_sums, is_full, tighten
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State


@njit
def fill(s: State) -> int:
    """Add to ``items`` the transfers that are filled anew, with their ``new_rate``; return how many there are."""
    s.run[0].seen += 1
    begin_filling(s)
    for place in range(s.run[0].num_touched_links):
        number = s.touched_links[place]
        link = s.links[number]
        if link.tight == 0:
            continue
        if link.head < 0 or link.asleep > 0 or link.covered > 0:
            if link.asleep < 2 and link.covered < 2:
                withdraw_all(s, number)
            link.asleep, link.covered = min(2 * link.asleep, 2), min(2 * link.covered, 2)
        else:
            wake(s, number)
    now, first = s.filling[0], s.filling[0].num_rated
    while now.num_stale > 0:
        forecast_stale(s)
        while now.num_due > 0:
            go_on(s, s.due_links[0])
            forecast_stale(s)
        begin_filling(s)
        tighten_full(s, first)
    return now.num_rated


@njit
def begin_filling(s: State) -> None:
    now = s.filling[0]
    now.stamp += 1
    now.level = now.lead = now.index = -1
    now.num_due = now.num_stale = 0


@njit
def tighten_full(s: State, first: int) -> None:
    """Count the transfers that were filled, from one on, at their slack links; then wake those links that are full."""
    some_are_full = False
    for place in range(first, s.filling[0].num_rated):
        transfer = s.transfers[s.items[place]]
        share = s.steps[transfer.step].share
        if share != transfer.counted_share and count_in_sums(s, transfer, share):
            some_are_full = True
    for place in range(first, s.filling[0].num_rated if some_are_full else first):
        transfer = s.transfers[s.items[place]]
        for own in range(transfer.first_entry, transfer.first_entry + transfer.num_binding):
            number = s.entries[s.entries[own].binding].link
            if is_full(s.links[number]):
                tighten(s, number)
                wake(s, number)


@njit
def go_on(s: State, number: int) -> None:
    """Do what is due at a link: its step, or that it has none any more where it had one, or another level."""
    now, link = s.filling[0], s.links[number]
    wake(s, number)
    if link.due_follower == 1:
        if now.open == 1 and (now.level, now.lead_share, now.lead) == (link.due_level, link.due_share, link.due_lead):
            now.index += 1
            take_step(s, number)
            return
        now.level, now.lead_share, now.lead = link.due_level, link.due_share, link.due_lead
        now.index, now.open = 0, 1
        withdraw_followers(s, now.level * len(s.links) + now.lead)
        return
    now.level, now.lead_share, now.lead = link.due_level, link.due_share, link.due_lead
    now.index, now.open = 0, 1
    if link.own_share >= 0.0:
        take_step(s, number)
    elif s.steps[now.level * len(s.links) + number].chosen == 1:
        now.index = -1
        withdraw(s, now.level * len(s.links) + number)


@njit
def take_step(s: State, number: int) -> None:
    """Fill the transfers of this level that cross a link and are not filled yet."""
    now, link = s.filling[0], s.links[number]
    own = now.level * len(s.links) + number
    step, link.unused = s.steps[own], 0
    if step.chosen == 1:
        if is_unchanged(s, link):
            now.open = 0
            return
        withdraw(s, own)
    step.chosen, step.level, step.share, step.next_follower = 1, now.level, link.own_share, -1
    step.lead_share, step.lead, step.index = now.lead_share, now.lead, now.index
    if now.index > 0:
        first = s.steps[now.level * len(s.links) + now.lead]
        step.next_follower = first.next_follower
        first.next_follower = own
    count, mixed = 0, False
    e = link.head
    while e >= 0:
        if is_unfilled(s, s.transfers[s.entries[e].transfer]):
            count, mixed = gather(s, s.entries[e].transfer, count, mixed)
        e = s.entries[e].next
    if mixed:
        sort_numbers(s.scratch, ZERO, count)  # what rounding does must not depend on who came first
    for place in range(count):
        if is_unfilled(s, s.transfers[s.scratch[place]]):  # a ring may cross a link more than once
            give_rate(s, s.scratch[place], own)


@njit
def is_unfilled(s: State, transfer: Records) -> bool:
    return transfer.level == s.filling[0].level and (transfer.step < 0 or not is_past(s, transfer.step))


@njit
def is_unchanged(s: State, link: Records) -> bool:
    """Whether a step is where it was in the last filling: it then has filled all already."""
    e = link.head
    while e >= 0:
        if is_unfilled(s, s.transfers[s.entries[e].transfer]):
            return False
        e = s.entries[e].next
    return True


@njit
def give_rate(s: State, number: int, step: int) -> None:
    now, transfer = s.filling[0], s.transfers[number]
    if transfer.step >= 0:
        unfill(s, number)
    transfer.step = step
    transfer.new_rate = transfer.weight * s.steps[step].share
    if transfer.seen != s.run[0].seen:  # by an earlier pass of this filling
        transfer.seen = s.run[0].seen
        s.items[now.num_rated] = number
        now.num_rated += 1
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_binding):
        e = s.entries[place].binding
        number = s.entries[e].link
        link = s.links[number]
        if link.tight == 1:
            join(s, number)
        if link.tight == 0:
            continue
        catch_up(s, link)
        if link.fill_level != transfer.level:
            enter_level(s, link, transfer.level)
        insert_filled(s, link, e)
        subtract(s, link, e, transfer)
        if link.num_unfilled == 0 and now.num_levels == 1 and s.steps[number].chosen == 0:
            drop_due(s, number)
        else:
            wake(s, number)


@njit
def insert_filled(s: State, link: Records, e: int) -> None:
    entry, following = s.entries[e], entry_after_cursor(s, link)
    entry.previous_filled, entry.next_filled = link.cursor, following
    if following >= 0:
        s.entries[following].previous_filled = e
    if link.cursor >= 0:
        s.entries[link.cursor].next_filled = e
    else:
        link.first_filled = e


@njit
def unfill(s: State, number: int) -> None:
    """Take back a transfer's rate, which its links have not come to yet."""
    transfer = s.transfers[number]
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_binding):
        wake(s, s.entries[s.entries[place].binding].link)
    leave_filled(s, transfer)


@njit
def leave_filling(s: State, transfer: Records) -> None:
    """Take a transfer out of the filling; its links count as touched."""
    if transfer.num_binding > 0:
        leave_filled(s, transfer)
        if transfer.counted_share > 0.0:
            count_in_sums(s, transfer, 0.0)
        transfer.num_binding = 0


@njit
def leave_filled(s: State, transfer: Records) -> None:
    """Take a transfer off the lists of what is filled on links."""
    if transfer.step < 0:
        return
    transfer.step = -1
    for place in range(transfer.first_entry, transfer.first_entry + transfer.num_binding):
        entry = s.entries[s.entries[place].binding]
        if s.links[entry.link].tight == 0:
            continue
        if entry.previous_filled >= 0:
            s.entries[entry.previous_filled].next_filled = entry.next_filled
        else:
            s.links[entry.link].first_filled = entry.next_filled
        if entry.next_filled >= 0:
            s.entries[entry.next_filled].previous_filled = entry.previous_filled


@njit
def withdraw(s: State, number: int) -> None:
    """Take back a step of the last filling, and those that it brought forth in its batch."""
    leave_batch(s, number)
    withdraw_one(s, number)


@njit
def leave_batch(s: State, number: int) -> None:
    """Take a step out of its batch; without its first, the others are taken back."""
    step = s.steps[number]
    if step.index == 0:
        withdraw_followers(s, number)
        return
    before = s.steps[step.level * len(s.links) + step.lead]
    while before.next_follower != number:
        before = s.steps[before.next_follower]
    before.next_follower = step.next_follower


@njit
def withdraw_all(s: State, link: int) -> None:
    """Take back the steps of a link that takes no part in the filling: all transfers have left it, or it is asleep."""
    for level in range(s.filling[0].num_levels):
        number = level * len(s.links) + link
        if s.steps[number].chosen == 1:
            leave_batch(s, number)
            s.steps[number].chosen = 0


@njit
def withdraw_followers(s: State, first: int) -> None:
    number = s.steps[first].next_follower
    s.steps[first].next_follower = -1
    while number >= 0:
        withdraw_one(s, number)
        number = s.steps[number].next_follower


@njit
def withdraw_one(s: State, number: int) -> None:
    step = s.steps[number]
    step.chosen = 0
    link = number - step.level * len(s.links)
    wake(s, link)
    e = s.links[link].head
    while e >= 0:
        if s.transfers[s.entries[e].transfer].step == number:
            unfill(s, s.entries[e].transfer)
        e = s.entries[e].next
