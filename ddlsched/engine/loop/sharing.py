"""Rates of the transfers on links whose transfers have changed."""

from __future__ import annotations

from ddlsched.engine.loop.jit import called_from_python, njit
from ddlsched.engine.loop.rules import LINEAR, MAX_MIN
from ddlsched.engine.loop.sharing_small import MOST_LINKS, fill_component
from ddlsched.engine.loop.sharing_solver import fill
from ddlsched.engine.loop.transfers import most_sharing, set_rate


@njit
def local_rate(s, transfer):
    """Rate of a transfer under a model that needs only the counts on its links."""
    run = s.run[0]
    worst = 0.0
    first = True
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        count = link.count
        if run.contention_rule == LINEAR:
            value = (count * run.per_byte_s + (count - 1) * run.penalty_per_byte_s) / link.relative_bandwidth
            worst = value if first else max(worst, value)
        else:
            weight = transfer.weight if run.contention_rule == MAX_MIN else 1.0  # rounded as the filling does
            value = weight * (1.0 / run.per_byte_s * link.relative_bandwidth / (weight * count))
            worst = value if first else min(worst, value)
        first = False
    return 1.0 / worst if run.contention_rule == LINEAR else worst


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
                set_rate(s, entry.transfer, local_rate(s, transfer), most_sharing(s, transfer))
            e = entry.next


@njit
def rerate_max_min(s):
    """Fill the links anew that a change reaches, and rate the transfers on them, and those on the changed links."""
    run = s.run[0]
    count = fill_component(s) if len(s.links) <= MOST_LINKS else fill(s)
    run.stamp += 1
    for place in range(run.num_touched_links):
        e = s.links[s.touched_links[place]].head
        while e >= 0:
            entry = s.entries[e]
            transfer = s.transfers[entry.transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                set_rate(s, entry.transfer, transfer.new_rate, most_sharing(s, transfer))
            e = entry.next
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        if transfer.stamp != run.stamp:
            set_rate(s, s.items[place], transfer.new_rate, transfer.sharing)


@njit
def forget_touched_links(s):
    run = s.run[0]
    for place in range(run.num_touched_links):
        s.links[s.touched_links[place]].touched = 0
    run.num_touched_links = 0
    run.rerate = 0


@called_from_python
def apply_rates(s, rates):
    """Give the active transfers the rates that a Python model answered, in the order of ``active``."""
    for place in range(s.run[0].num_active):
        number = s.active[place]
        set_rate(s, number, rates[place], most_sharing(s, s.transfers[number]))
    forget_touched_links(s)
