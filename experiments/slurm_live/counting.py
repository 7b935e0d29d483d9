"""Trains nothing and counts: a job whose name begins with wide gets faster with every node, another does not."""

from __future__ import annotations

from ddlsched.real.live.seat import Seat
from ddlsched.real.live.worker import count

STEP_S, SHARED_S = 0.1, 0.05
"""A step on one node, and what each further node adds to it where nodes wait for one another, seconds."""


def step_s(job: str, nodes: int) -> float:
    """Return how long a step of a job takes on so many nodes, seconds."""
    return STEP_S / nodes + (0.0 if job.startswith("wide") else SHARED_S * (nodes - 1))


if __name__ == "__main__":
    assert Seat.here is not None
    name = Seat.here.assignment.job
    count(Seat.here, lambda nodes: step_s(name, nodes))
