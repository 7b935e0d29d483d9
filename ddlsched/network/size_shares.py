"""Shares of a link that grow with what a transfer keeps in flight, and steps and chunks that cost time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf
from typing import Any

from ddlsched.errors import InputError
from ddlsched.network.contention import MAX_CONSTANT_S, MaxMin, moved_by_ring
from ddlsched.ranges import ranged

__all__ = ["LARGEST_EXPONENT", "SizeShares"]

LARGEST_EXPONENT = 1.0
"""Shares in proportion to sizes; up to it weights of steps from a byte to a TB are told apart."""


@dataclass(frozen=True, kw_only=True)
class SizeShares(MaxMin):
    """Weighted max-min sharing by (bytes of a ring's step) ^ exponent; steps and chunks may cost time.

    A ring over n servers sends 1 / n of what it reduces at a time, and waits for it: so much is in flight at most, and
    no more than queues and windows hold. On links with FIFO queues a small transfer then gets less than a large one
    beside it. How much less depends on the queues; ``ddlsched testbed`` measures exponent and window.

    What steps and chunks cost counts as bytes that the links would carry in that time: beside others it takes longer,
    as waiting in their queues does.

    Parameters
    ----------
    exponent
        From 0 (max-min) to 1.
    window_bytes
        Most of a step that is in flight on a link; larger steps count as this.
    step_s
        Seconds that each of a ring's 2 (n - 1) steps costs.
    chunk_bytes
        Bytes that are reduced at a time where a policy pauses transfers; by default whole messages.
    chunk_s
        Seconds that each chunk but a message's first costs.
    """

    exponent: float = ranged(0.5, 0.0, LARGEST_EXPONENT)
    window_bytes: float = inf
    step_s: float = ranged(0.0, 0.0, MAX_CONSTANT_S)
    chunk_bytes: float = inf
    chunk_s: float = ranged(0.0, 0.0, MAX_CONSTANT_S)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, what in (("window_bytes", "whole steps"), ("chunk_bytes", "whole messages")):
            if not getattr(self, name) > 0:
                raise InputError(
                    f"contention SizeShares: {name} is {getattr(self, name)}; expected a number > 0 (inf for {what})"
                )
        if self.chunk_s > 0 and self.chunk_bytes == inf:
            raise InputError(
                f"contention SizeShares: chunk_s is {self.chunk_s} and chunk_bytes inf; expected chunk_bytes too"
            )

    @property
    def conserves_bytes(self) -> bool:  # type: ignore[override]
        """Whether links carry messages only, and no time of steps and chunks."""
        return self.chunk_s == 0 and self.step_s == 0

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return a ring's 2 (n - 1) / n of the message, and what the links would carry while steps and chunks cost."""
        moved = moved_by_ring(message_bytes, num_servers)
        if num_servers < 2:
            return moved
        more_chunks = max(math.ceil(message_bytes / self.chunk_bytes) - 1, 0)
        steps = 2 * (num_servers - 1)
        return moved + (more_chunks * self.chunk_s + steps * self.step_s) / self.alone_per_byte_s

    def weight(self, transfer: Any) -> Any:
        """Return the megabytes of a step in flight, at least one byte, to the power of the exponent."""
        return self.weight_of(self.step_bytes(transfer))

    def step_bytes(self, transfer: Any) -> Any:
        """Return the bytes of a ring's step, at least one.

        What a transfer carries over its links is at least 2 (n - 1) steps, and more only where steps and chunks cost.
        """
        servers = len(transfer.servers)
        step_bytes = transfer.message_bytes / (2 * max(servers - 1, 1)) - self.step_s / self.alone_per_byte_s
        return max(min(step_bytes, self.chunk_bytes / servers), 1.0)

    def weight_of(self, step_bytes: float) -> float:
        """Return the weight of a connection with so many bytes of steps, of which the window is in flight at most."""
        return math.exp(self.exponent * math.log(max(min(step_bytes, self.window_bytes), 1.0) / 1e6))
