"""Step 4 begins: transfers that have become ready get their paths from a compiled path policy."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.placement import begin_rerouting, cross, end_rerouting
from ddlsched.engine.loop.policy_calls import call_policy
from ddlsched.engine.native.jit import called_by_address, njit
from ddlsched.engine.records.field_values import ZERO, Door
from ddlsched.engine.records.layout import Records, State


@called_by_address("choosing_address")
def choose_paths(s: State, number: int) -> None:  # noqa: ARG001 (all have one signature)
    """Give all transfers that are ready their paths, by number; where that is Python's, leave all of them to it."""
    run = s.run[0]
    count = ZERO
    for place in range(run.num_waiting):
        waiting = s.waiting[place]
        if s.transfers[waiting].unrouted == 1:
            if s.transfers[waiting].num_hops == 0:
                return
            insert(s.items, count, waiting)
            count += 1
    for place in range(count):
        if not route(s, s.items[place]):
            return
        run.num_unrouted -= 1


@njit
def insert(items: np.ndarray, count: int, number: int) -> None:
    """Put a number into an ascending list of so many."""
    hole = count
    while hole > 0 and items[hole - 1] > number:
        items[hole] = items[hole - 1]
        hole -= 1
    items[hole] = number


@njit
def route(s: State, number: int) -> bool:
    """Give a transfer the links of the paths that its hops take now; return whether the policy answered for all."""
    run = s.run[0]
    transfer = s.transfers[number]
    run.path_stamp += 1
    for h in range(transfer.first_hop, transfer.first_hop + transfer.num_hops):
        answer = call_policy(s, Door.PATH.value, run.path_address, h, ZERO, run.path_fields)
        if run.failed_door >= 0:
            return False
        s.hops[h].chosen = s.hops[h].first_path + answer
        count_links(s, s.paths[s.hops[h].chosen])
    begin_rerouting(s, number, transfer.entry_room)
    slowest_s = 0.0
    for h in range(transfer.first_hop, transfer.first_hop + transfer.num_hops):
        cross(s, number, s.hops[h].source, 1.0)
    for h in range(transfer.first_hop, transfer.first_hop + transfer.num_hops):
        path = s.paths[s.hops[h].chosen]
        slowest_s = max(slowest_s, path.latency_s)
        for place in range(path.first_link, path.first_link + path.num_links):
            cross(s, number, s.path_links[place], 1.0)
    end_rerouting(s, number, (run.latency_s + transfer.steps * slowest_s) * 1e9)
    return True


@njit
def count_links(s: State, path: Records) -> None:
    """Count a path that a hop has got for the hops of its transfer that are asked about next."""
    stamp = s.run[0].path_stamp
    for place in range(path.first_link, path.first_link + path.num_links):
        cover = s.covers[s.path_links[place]]
        if cover.chosen_stamp != stamp:
            cover.chosen, cover.chosen_stamp = 0, stamp
        cover.chosen += 1
