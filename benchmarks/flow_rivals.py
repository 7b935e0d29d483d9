"""The flow scenario of :mod:`flows` under equal sharing, written once more: as a heapq loop.

It keeps time and bytes as floats, predicts the end of a transfer anew when the number of transfers on one of its cards
changes, and recognises a prediction that has been overtaken by its version.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass

CARD_BYTES_PER_S = 1.25e9


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A job of the scenario."""

    servers: tuple[int, ...]
    compute_s: float
    message_bytes: float


@dataclass(frozen=True, kw_only=True)
class FlowTimes:
    """When each job finished (all arrive at 0), and how long the simulator ran, seconds."""

    finish_s: Sequence[float]
    seconds: float


def wire_bytes(flow: Flow) -> float:
    """Return what each of the job's network cards carries in an iteration."""
    return flow.message_bytes * (2 * (len(flow.servers) - 1) / len(flow.servers))


class Transfer:
    """What a job is sending; bytes left are those of ``since_s``, when the rate last changed."""

    __slots__ = ("bytes_left", "cards", "rate", "since_s", "version")

    def __init__(self, cards: tuple[set[int], ...]) -> None:
        self.cards = cards
        self.version = 0
        self.begin(0.0, 0.0)

    def begin(self, size_bytes: float, now_s: float) -> None:
        """Have so much to send from now on."""
        self.bytes_left, self.rate, self.since_s = size_bytes, 0.0, now_s

    def rerate(self, now_s: float) -> float | None:
        """Return when the transfer ends if its rate has changed."""
        rate = CARD_BYTES_PER_S / max(map(len, self.cards))
        if rate == self.rate:
            return None
        self.bytes_left = max(self.bytes_left - self.rate * (now_s - self.since_s), 0.0)
        self.rate, self.since_s = rate, now_s
        self.version += 1
        return now_s + self.bytes_left / rate


def heapq_loop(flows: Sequence[Flow], *, iterations: int) -> FlowTimes:
    """Run the scenario with one loop over a heap of (time, job, version)."""
    begin = time.perf_counter()
    cards: dict[int, set[int]] = {server: set() for flow in flows for server in flow.servers}  # by who sends there
    transfers = [Transfer(tuple(cards[server] for server in flow.servers)) for flow in flows]
    sizes = [wire_bytes(flow) for flow in flows]
    left, sending, finish_s = [iterations] * len(flows), [False] * len(flows), [0.0] * len(flows)
    heap = [(flow.compute_s, job, 0) for job, flow in enumerate(flows)]
    heapq.heapify(heap)
    while heap:
        now_s, job, version = heapq.heappop(heap)
        transfer = transfers[job]
        if version != transfer.version:
            continue
        if sending[job]:
            for card in transfer.cards:
                card.remove(job)
            transfer.version += 1
            left[job] -= 1
            if left[job]:
                heapq.heappush(heap, (now_s + flows[job].compute_s, job, transfer.version))
            finish_s[job] = now_s
        else:
            for card in transfer.cards:
                card.add(job)
            transfer.begin(sizes[job], now_s)
        sending[job] = not sending[job]
        for other in set().union(*transfer.cards):
            end_s = transfers[other].rerate(now_s)
            if end_s is not None:
                heapq.heappush(heap, (end_s, other, transfers[other].version))
    return FlowTimes(finish_s=finish_s, seconds=time.perf_counter() - begin)
