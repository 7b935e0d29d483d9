"""A program that only counts, at a speed that depends on how many nodes there are: a stand-in for training."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddlsched.real.live.seat import Seat

__all__ = ["BATCH", "count"]

BATCH = 64
"""Samples a step over all nodes."""


def count(seat: Seat, step_s: Callable[[int], float]) -> None:
    """Count until the last step is committed; only the first node does.

    Parameters
    ----------
    seat
        Of this process.
    step_s
        How long a step takes, seconds, by the number of nodes.
    """
    losses: list[float] = []
    while len(losses) < seat.assignment.steps:
        orders = seat.orders()
        if orders.rank > 0:
            seat.wait_for_leave()
            continue
        with seat.writing(orders):
            losses = seat.commits.losses()
            while len(losses) < seat.assignment.steps and not seat.is_asked_to_leave():
                time.sleep(step_s(orders.ranks))
                losses.append(1.0 / (1 + len(losses)))
                seat.commits.commit(losses)
                seat.report(losses, len(losses) * BATCH, orders.ranks)
