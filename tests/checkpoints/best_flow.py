"""How evenly the best choice of sources could load the sending hosts: a minimum-cost flow, as a check of plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ddlsched.checkpoints.plan import Distance, ReshardPlan

_Demand = Mapping[tuple[int, frozenset[int]], int]
"""Bytes that a host fetches, by that host and the hosts that have them."""


def least_busiest_bytes(plan: ReshardPlan, *, distance: Distance | None = None) -> tuple[int, float]:
    """Return the fewest bytes that the busiest sending host can have, and the least sum of bytes x distance with that.

    Cells may be split between sources here, which plans do not do, so that this is a lower bound. It is meant for
    small plans: the flow is solved about forty times.
    """
    demand = _demand(plan)
    total = sum(demand.values())
    low, high = 0, total
    while low < high:
        middle = (low + high) // 2
        if _cost(demand, middle, distance) is None:
            low = middle + 1
        else:
            high = middle
    return high, _cost(demand, high, distance) or 0.0


def _demand(plan: ReshardPlan) -> _Demand:
    senders, receivers = plan.old.allocation.hosts, plan.new.allocation.hosts
    demand: Counter[tuple[int, frozenset[int]]] = Counter()
    for tensor in plan.tensors:
        for move in tensor.moves:
            if move.way == "network":
                held = (tensor.old[holding.shard].ranks for holding in tensor.cells[move.cell].old)
                hosts = frozenset(senders[rank] for ranks in held for rank in ranks)
                demand[receivers[move.target], hosts] += tensor.cell_bytes(move.cell)
    return demand


def _cost(demand: _Demand, most_bytes: int, distance: Distance | None) -> float | None:
    """Return the least cost if no host may send more than ``most_bytes``; None if that cannot be."""
    from ortools.graph.python import min_cost_flow

    flow = min_cost_flow.SimpleMinCostFlow()
    hosts = sorted(set().union(*(having for _, having in demand)))
    node = {host: 1 + number for number, host in enumerate(hosts)}
    for number, ((receiver, having), size) in enumerate(demand.items()):
        here = 1 + len(hosts) + number
        flow.add_arc_with_capacity_and_unit_cost(0, here, size, 0)
        for host in having:
            away = 1 if distance is None else round(distance(host, receiver))
            flow.add_arc_with_capacity_and_unit_cost(here, node[host], size, away)
    sink = 1 + len(hosts) + len(demand)
    for host in hosts:
        flow.add_arc_with_capacity_and_unit_cost(node[host], sink, most_bytes, 0)
    total = sum(demand.values())
    flow.set_node_supply(0, total)
    flow.set_node_supply(sink, -total)
    return float(flow.optimal_cost()) if flow.solve() == flow.OPTIMAL else None
