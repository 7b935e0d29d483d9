"""Rates of the transfers on links whose transfers have changed."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import ZERO, Contention, Door, TransferState
from ddlsched.engine.loop.order import call_policy
from ddlsched.engine.loop.sharing.covers import settle_covers
from ddlsched.engine.loop.sharing.forecast import count_units
from ddlsched.engine.loop.sharing.resting_links import forget_touched_links, settle_binding, touch_link
from ddlsched.engine.loop.sharing.small_components import MOST_LINKS, fill_component
from ddlsched.engine.loop.sharing.solver import fill, leave_filling
from ddlsched.engine.loop.transfers import most_sharing, set_rate
from ddlsched.engine.native.jit import NUMBERS, REALS, STATE, called_by_address, called_from_python, njit
from ddlsched.engine.records import State


@njit
def local_rate(s: State, number: int) -> float:
    """Rate of a transfer under a model that says how fast it goes on each link."""
    run = s.run[0]
    transfer = s.transfers[number]
    least, uneven = np.inf, transfer.uneven == 1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.entries[e].link
        call_policy(s, Door.CONTENTION.value, run.rate_address, number, link, run.contention_fields)
        if run.failed_door >= 0:
            return 1.0
        least = min(least, run.answer / s.entries[e].share if uneven else run.answer)
    return least


@njit
def alone_rate_now(s: State, number: int) -> float:
    """Rate of a transfer that runs and meets nobody."""
    run = s.run[0]
    if run.contention == Contention.LINK_RATES:
        return local_rate(s, number)
    transfer = s.transfers[number]
    weigh(s, number)
    least = np.inf
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        units = s.entries[e].units * link.count
        least = min(least, 1.0 / run.per_byte_s * link.relative_bandwidth / units)
    return transfer.weight * least


@njit
def alone_rate(s: State, number: int) -> float:
    """Rate that a transfer would have if it ran now and met nobody; a ring may cross one link more than once."""
    transfer = s.transfers[number]
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].count += 1
    rate = alone_rate_now(s, number)
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].count -= 1
    return rate


@njit
def rerate_neighbours(s: State) -> None:
    """Rate every transfer on a link whose transfers have changed."""
    for place in range(list_touched(s)):
        number = s.items[place]
        set_rate(s, number, local_rate(s, number), most_sharing(s, s.transfers[number]))


# --- weighted max-min


@njit
def weigh(s: State, number: int) -> None:
    """Ask the weight and the level of a transfer."""
    run = s.run[0]
    call_policy(s, Door.CONTENTION.value, run.rate_address, number, ZERO, run.contention_fields)
    weight = run.answer
    call_policy(s, Door.CONTENTION.value, run.level_address, number, ZERO, run.contention_fields)
    if run.failed_door < 0:
        change_share(s, number, weight, np.int64(run.answer))


@njit
def change_share(s: State, number: int, weight: float, level: int) -> None:
    """Give a transfer its weight and level; if these are others than before, it is filled anew."""
    transfer = s.transfers[number]
    s.filling[0].num_levels = max(s.filling[0].num_levels, level + 1)
    if weight == transfer.weight and level == transfer.level:
        return
    if transfer.state == TransferState.ACTIVE:
        leave_filling(s, transfer)
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            touch_link(s, s.entries[e].link)
    transfer.weight, transfer.level = weight, level
    count_units(s, transfer)


@njit
def list_touched(s: State) -> int:
    """List in ``items`` the transfers on touched links; return how many."""
    run = s.run[0]
    run.stamp += 1
    run.seen += 1
    count = ZERO
    for place in range(run.num_touched_links):
        count = list_transfers(s, s.touched_links[place], count)
    return count


@njit
def list_component(s: State) -> int:
    """List in ``items`` the transfers that links connect to a touched link; return how many."""
    count = list_touched(s)
    place = 0
    while place < count:
        transfer = s.transfers[s.items[place]]
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            count = list_transfers(s, s.entries[e].link, count)
        place += 1
    return count


@njit
def list_transfers(s: State, number: int, count: int) -> int:
    """Add those of a link that are not listed yet."""
    run, link = s.run[0], s.links[number]
    if link.stamp == run.stamp:
        return count
    link.stamp = run.stamp
    e = link.head
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if transfer.seen != run.seen:
            transfer.seen = run.seen
            s.items[count] = s.entries[e].transfer
            count += 1
        e = s.entries[e].next
    return count


@njit
def weigh_new(s: State) -> None:
    """Ask the weights of the transfers that have just started: the others have theirs until they stop."""
    run = s.run[0]
    for place in range(run.num_touched_links):
        e = s.links[s.touched_links[place]].head
        while e >= 0:
            if s.transfers[s.entries[e].transfer].weight == 0.0:
                weigh(s, s.entries[e].transfer)
            e = s.entries[e].next


@called_by_address("shares_address")
def rerate_shares(s: State, number: int) -> None:  # noqa: ARG001
    """Ask the weights that are not known, and share; ``number`` means nothing."""
    run = s.run[0]
    if run.weights_are_fixed == 0:  # they may be others of all that a change can reach
        for place in range(list_component(s)):
            weigh(s, s.items[place])
    elif run.unweighed == 1:
        weigh_new(s)
    run.unweighed = 0
    if run.failed_door < 0:  # who has no weight cannot be filled, and the run ends in this instant
        rerate_max_min(s)


@njit
def rerate_max_min(s: State) -> None:
    """Fill the links anew that a change reaches, and rate the transfers on them."""
    run = s.run[0]
    if len(s.links) <= MOST_LINKS:
        count = fill_component(s)
    else:
        settle_covers(s)
        settle_binding(s)
        count = fill(s)
    if run.doubt == 1:  # fill all of it again, once nobody stands for others
        for place in range(count):
            transfer = s.transfers[s.items[place]]
            leave_filling(s, transfer)
            for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                touch_link(s, s.entries[e].link)
        return
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        set_rate(s, s.items[place], transfer.new_rate, transfer.sharing)
    for place in range(list_touched(s) if run.record == 1 else ZERO):  # with how many others they share a link now
        number = s.items[place]
        set_rate(s, number, s.transfers[number].new_rate, most_sharing(s, s.transfers[number]))


@called_from_python(STATE, NUMBERS, REALS)
def apply_rates(s: State, numbers: np.ndarray, rates: np.ndarray) -> None:
    """Give active transfers the rates that a Python model answered."""
    for place in range(len(numbers)):
        number = numbers[place]
        set_rate(s, number, rates[place], most_sharing(s, s.transfers[number]))
    forget_touched_links(s)
