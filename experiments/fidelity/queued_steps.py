"""Steps of rings that wait for what others have queued: a physical model of shares that was tried and is no better.

    python experiments/fidelity/run.py --measured experiments/fidelity/measured \
        --contention experiments/fidelity/queued_steps.py:QueuedSteps

A ring puts the bytes of its step into the queues of all its links at once and waits for the last of them. In a queue it
meets what others have there, each for the part of its own step that it spends in this queue. The waiting of rings that
overlap in part, and a larger share for larger steps, follow from that and are not fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ddlsched.network.size_shares import SizeShares

ROUNDS = 40
"""Of the fixed point, each half of the way; rates of the mixes then change by less than a thousandth."""


@dataclass(frozen=True, kw_only=True)
class QueuedSteps(SizeShares):
    """A step takes as long as the fullest queue that it waits in; the transfers of a job are one ring.

    The constants are those of jobs alone on the testbed (``measured/calibration.csv``). The window was chosen on the
    training mixes.
    """

    per_byte_s: float = 8.32e-8
    step_s: float = 3.77e-4
    window_bytes: float = 80_000.0

    def rates(self, active: Sequence[Any], waiting: Sequence[Any], links: Sequence[Any]) -> list[float]:
        """Return the rate of each active transfer, bytes per second."""
        own = [self.step_bytes(transfer) for transfer in active]
        rings: dict[int, tuple[float, set[int]]] = {}
        for transfer, step_bytes in zip(active, own, strict=True):
            together, used = rings.get(transfer.job.number, (0.0, set()))
            rings[transfer.job.number] = together + step_bytes, used | set(transfer.links)
        shape = tuple((min(together, self.window_bytes), tuple(sorted(used))) for together, used in rings.values())
        per_byte_s = {
            link: self.alone_per_byte_s / links[link].relative_bandwidth for _, used in shape for link in used
        }
        of_ring = dict(zip(rings, _ring_rates(shape, tuple(sorted(per_byte_s.items()))), strict=True))
        return [
            of_ring[transfer.job.number] * step_bytes / rings[transfer.job.number][0]
            for transfer, step_bytes in zip(active, own, strict=True)
        ]


@lru_cache(maxsize=100_000)
def _ring_rates(shape: tuple[tuple[float, tuple[int, ...]], ...], links: tuple[tuple[int, float], ...]) -> list[float]:
    """Return the rate of each ring, bytes per second, of (bytes in flight, links) a ring and (link, s/B) a link."""
    sent = np.array([in_flight for in_flight, _ in shape])
    on_link = np.array([[link in used for _, used in shape] for link, _ in links])
    per_byte_s = np.array([seconds for _, seconds in links])[:, None]
    wait_s = on_link * sent * per_byte_s
    for _ in range(ROUNDS):
        queued = on_link * sent * wait_s / wait_s.max(axis=0)
        others = queued.sum(axis=1, keepdims=True) - queued
        wait_s = (wait_s + on_link * (sent + others) * per_byte_s) / 2
    rates = sent / wait_s.max(axis=0)
    load = (on_link * rates * per_byte_s).sum(axis=1, keepdims=True)
    return [float(rate) for rate in rates / np.where(on_link, np.maximum(load, 1.0), 1.0).max(axis=0)]
