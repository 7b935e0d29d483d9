"""Crux's priority of a job: its intensity, corrected for how its iterations and the reference job's interleave."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

__all__ = ["Load", "correction_factor", "priorities", "sent_s"]

Name = TypeVar("Name", bound=Hashable)

_PERIODS = 3
"""How many iterations of the longer-lasting job two jobs are played; so many make up the published example's 12 s."""

MOST = 1e3
"""The correction factor is at most this, and at least 1 / this."""

MOST_STEPS = 20_000
"""After so many events of two jobs the play ends, at most: jobs with iterations of very different lengths."""


@dataclass(frozen=True, slots=True)
class Load:
    """What Crux knows of a job: measured while it runs.

    Parameters
    ----------
    compute_s
        Of an iteration.
    network_s
        Of an iteration's traffic on the link that takes the longest for it, alone.
    num_gpus
        Of the job; compute x GPUs stands for the floating-point operations.
    start_share
        After which share of the compute communication may start; 1: no overlap.
    """

    compute_s: float
    network_s: float
    num_gpus: int = 1
    start_share: float = 1.0

    @property
    def intensity(self) -> float:
        """GPU-seconds of compute for a second of the network."""
        return self.compute_s * self.num_gpus / self.network_s

    @property
    def period_s(self) -> float:
        """An iteration alone, seconds."""
        return max(self.compute_s, self.start_share * self.compute_s + self.network_s)


class _Sender:
    """A job in the play of two."""

    def __init__(self, load: Load) -> None:
        self.load, self.sent_s = load, 0.0
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """Begin an iteration."""
        self.ready_s = now_s + self.load.start_share * self.load.compute_s
        self.computed_s = now_s + self.load.compute_s
        self.left_s = self.load.network_s

    def wants(self, now_s: float) -> bool:
        """Return whether it has something to send now."""
        return self.left_s > 0 and self.ready_s <= now_s

    def next_s(self, now_s: float) -> float:
        """Return when, without sending, something happens to it: it may send, or an iteration ends."""
        times_s = (self.ready_s if self.left_s > 0 else now_s, self.computed_s)
        return min((time_s for time_s in times_s if time_s > now_s), default=float("inf"))


def sent_s(first: Load, second: Load, horizon_s: float) -> tuple[float, float]:
    """Return for how long each of two jobs sends until the horizon on one link, where ``first`` interrupts ``second``.

    Both begin an iteration at 0.
    """
    both = _Sender(first), _Sender(second)
    now_s, steps = 0.0, 0
    while now_s < horizon_s and steps < MOST_STEPS:
        for job in both:
            if job.left_s <= 0 and job.computed_s <= now_s:
                job.begin(now_s)
        sender = next((job for job in both if job.wants(now_s)), None)
        then_s = min(horizon_s, *(job.next_s(now_s) for job in both))
        if sender is not None:
            then_s = min(then_s, now_s + sender.left_s)
            sender.sent_s += then_s - now_s
            done = then_s >= now_s + sender.left_s
            sender.left_s = 0.0 if done else sender.left_s - (then_s - now_s)
        now_s, steps = then_s, steps + 1
    return both[0].sent_s, both[1].sent_s


@lru_cache(maxsize=65536)
def correction_factor(reference: Load, load: Load) -> float:
    """Return k = b / a of a job beside the reference job.

    a is how much more the reference sends when it goes first than when it goes second, b the same of the job, both in
    seconds, over three iterations of the one whose iterations are longer. A job whose place makes no difference to
    either has k = 1.
    """
    horizon_s = _PERIODS * max(reference.period_s, load.period_s)
    reference_first_s, load_second_s = sent_s(reference, load, horizon_s)
    load_first_s, reference_second_s = sent_s(load, reference, horizon_s)
    a_s, b_s = reference_first_s - reference_second_s, load_first_s - load_second_s
    if a_s <= 0:
        return 1.0 if b_s <= 0 else MOST
    return min(max(b_s / a_s, 1 / MOST), MOST)


def priorities(loads: Mapping[Name, Load]) -> dict[Name, float]:
    """Return k x intensity of each job.

    The reference, with k = 1, is the job with the most traffic a second alone; of equal ones the most an iteration.
    """
    if not loads:
        return {}
    reference = max(loads.values(), key=lambda load: (load.network_s / load.period_s, load.network_s))
    return {name: correction_factor(reference, load) * load.intensity for name, load in loads.items()}
