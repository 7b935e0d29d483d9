"""Max-min sharing by weights and levels: by the sizes of what is in flight, by progress (MLTCP), by strict levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple

from ddlsched.errors import InputError
from ddlsched.network.contention import MAX_CONSTANT_S, MaxMin, moved_by_ring
from ddlsched.network.rates import LEVELS, MOST_PARTS, crossings, slowest_link_bytes_per_s, weighted_max_min
from ddlsched.network.topology import Link
from ddlsched.ranges import ranged

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
            raise InputError(f"contention SizeShares: chunk_s is {self.chunk_s}, chunk_bytes inf; expected both")

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


@dataclass(frozen=True, kw_only=True)
class ConnectionShares(SizeShares):
    """Weighted max-min sharing among connections, by (bytes in flight) ^ exponent; of a ring that others cross, less.

    gloo has a connection to each neighbour in a job's ring, which all its all-reduces share: those of several buckets
    have one share between them, by the bytes of their steps, and have that in flight together. A link that several
    jobs cross carries less, as each ring waits at other links, too, while the others are not always there to fill in.
    Both were found on a testbed's training mixes (experiments/fidelity).

    Asked in Python at each change of the transfers: for small clusters.

    Parameters
    ----------
    loss
        Of a link with k jobs: it carries 1 / (1 + loss (k - 1)) of what it carries for one.
    wait
        What each further server of a ring adds to the time of a byte, as a share of it: a ring over n servers is at
        most 1 / (1 + wait (n - 1)) as fast as its links, as its servers wait for each other. Others fill these gaps.
    """

    exponent: float = ranged(0.25, 0.0, LARGEST_EXPONENT)
    loss: float = ranged(0.0, 0.0, 1.0)
    wait: float = ranged(0.0, 0.0, 1.0)

    def rates(self, active: Sequence[Any], waiting: Sequence[Any], links: Sequence[Link]) -> list[float]:
        """Return the rate of each active transfer, bytes per second."""
        own = [self.step_bytes(transfer) for transfer in active]
        together: dict[int, float] = {}
        jobs: dict[int, set[int]] = {}
        for transfer, step_bytes in zip(active, own, strict=True):
            number = transfer.job.number
            together[number] = together.get(number, 0.0) + step_bytes
            for link in transfer.links:
                jobs.setdefault(link, set()).add(number)
        whole = [together[transfer.job.number] for transfer in active]
        weights = [self.weight_of(all_bytes) * mine / all_bytes for all_bytes, mine in zip(whole, own, strict=True)]
        alone = {link: links[link].relative_bandwidth / self.alone_per_byte_s for link in jobs}
        free = {link: alone[link] / (1.0 + self.loss * (len(jobs[link]) - 1)) for link in jobs}
        bounds: dict[tuple[int, tuple[int, ...]], int] = {}
        bounded = []
        for transfer in active:
            bound = bounds.setdefault((transfer.job.number, transfer.links), -1 - len(bounds))
            slowest = slowest_link_bytes_per_s(transfer, alone)
            free[bound] = slowest / (1.0 + self.wait * (len(transfer.servers) - 1))
            parts = (*(part for _, part in crossings(transfer)), 1.0)
            bounded.append(_Bounded(transfer.servers, (*transfer.links, bound), parts))
        return weighted_max_min(bounded, weights, free)


class _Bounded(NamedTuple):
    """A transfer over its links and one of its ring's own, which bounds it; real ones have numbers from 0."""

    servers: Sequence[int]
    links: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Mltcp(MaxMin):
    """Weighted max-min sharing by F = slope x (part of the message that is sent) + intercept.

    The fluid form of a congestion control whose window grows by F. F stays as it is from one time that it is asked to
    the next, so that more parts come nearer to the law. With buckets, each all-reduce is a message of its own.

    Assumed, as only part is published: shares are those of F at once, where windows take round trips to get there; an
    iteration's bytes are known, where hosts tell iterations apart by idle gaps.

    Parameters
    ----------
    slope, intercept
        Of F; at least 0, and greater than 0, as a weight of 0 would send nothing. The defaults are not published; they
        only make F go from 1/4 to 2.
    message_parts
        At the end of each of so many equal parts of a message the shares on its links are set anew, as they are when a
        transfer starts or stops there.

    References
    ----------
    Rajasekaran, Narang, Zabreyko, Ghobadi, "MLTCP: A Distributed Technique to Approximate Centralized Flow Scheduling
    For Machine Learning", HotNets 2024.
    """

    slope: float = ranged(1.75, 0.0)
    intercept: float = ranged(0.25, 0.0, above=True)
    message_parts: int = ranged(8, 1, MOST_PARTS)

    def weight(self, transfer: Any) -> Any:
        """Return F."""
        if transfer.message_bytes == 0.0:
            return self.intercept
        return self.slope * (transfer.bytes_sent / transfer.message_bytes) + self.intercept


@dataclass(frozen=True, kw_only=True)
class StrictLevels(MaxMin):
    """Level 0 for values below ``first``, 1 below ``first x factor``, and so on; transfers of a level share max-min.

    Parameters
    ----------
    by
        The value: the job's ``gpus``; its ``compute-share``, communication / (compute x GPUs) of an iteration, so that
        jobs that compute most for their traffic go first, as Crux has it; its ``remaining-service`` or
        ``attained-service``, GPU-seconds (the orders SRSF and LAS); the transfer's ``bytes-left`` or ``bytes-sent``,
        rounded, so that what floats leave decides nothing.
    first
        Where level 0 ends, in the value's unit.
    factor
        By how much each further level is wider, greater than 1.
    levels
        From 1 to 8, as many as Ethernet has priorities.
    message_parts
        At the end of each of so many equal parts of a message levels are asked anew; matters to the last two rules.

    References
    ----------
    Cao et al., "Crux", SIGCOMM 2024 (at most 8 classes, strictly one before another); Bai et al., "PIAS", NSDI 2015
    (by bytes sent).
    """

    by: Literal["gpus", "compute-share", "remaining-service", "attained-service", "bytes-left", "bytes-sent"] = (
        "remaining-service"
    )
    first: float = ranged(60.0, 0.0, above=True)
    factor: float = ranged(10.0, 1.0, above=True)
    levels: int = ranged(8, 1, LEVELS)
    message_parts: int = ranged(1, 1, MOST_PARTS)

    def level(self, transfer: Any) -> int:
        """Return the level of the transfer's value."""
        value, end, level = self._value(transfer), self.first, 0
        while level < self.levels - 1 and value >= end:
            end *= self.factor
            level += 1
        return level

    def _value(self, transfer: Any) -> Any:
        job = transfer.job
        if self.by == "gpus":
            return float(job.num_gpus)
        if self.by == "compute-share":
            return job.communication_ns / max(job.compute_ns * job.num_gpus, 1)
        if self.by == "remaining-service":
            return job.remaining_service_ns / 1e9
        if self.by == "attained-service":
            return job.attained_service_ns / 1e9
        if self.by == "bytes-left":
            return float(round(transfer.bytes_left))
        return float(round(transfer.bytes_sent))
