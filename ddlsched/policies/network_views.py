"""What policies see of transfers, links, loads and paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from enum import IntEnum
from functools import cached_property

import numpy as np

from ddlsched.network.topology import Link
from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import Columns, View, ViewAtAnInstant, put, view


class TransferState(IntEnum):
    """A transfer that is paused waits."""

    IDLE = 0
    WAITING = 1
    ACTIVE = 2


@view
class TransferView(View):
    """A collective that runs or waits, and crosses links."""

    _what = "a transfer"

    number: int
    """Unique; ascending by job number, then by task number, then by the tuple's place in its group."""
    job: JobView
    """The job it belongs to."""
    links: tuple[int, ...]
    """Numbers of the links that it crosses, one entry a crossing."""
    _columns: Columns
    _place: int
    _now: Columns
    shares: tuple[float, ...] = ()
    """Of each of these links, the bytes that it moves over it / ``message_bytes``."""
    message_bytes: float = field(init=False)
    """Bytes it moves over each link, by the contention model's account, unless ``shares`` says otherwise."""

    def __post_init__(self) -> None:
        put(self, "message_bytes", self._columns.bytes.item(self._place))
        if not self.shares:
            put(self, "shares", (1.0,) * len(self.links))

    def __repr__(self) -> str:
        return f"<transfer {self.number} of job {self.job.job_id}, {self.bytes_left:.0f} bytes left>"

    @property
    def servers(self) -> tuple[int, ...]:
        """Servers of the job, in placement order."""
        return self.job.servers

    @property
    def is_active(self) -> bool:
        """Whether it runs; otherwise it waits or is paused."""
        return bool(self._columns.state.item(self._place) == TransferState.ACTIVE)

    @property
    def bytes_left(self) -> float:
        """Bytes not yet sent at this instant."""
        columns, place = self._columns, self._place
        left: float = columns.bytes_left.item(place)
        if columns.rate.item(place) == 0.0:
            return left
        since_ns = columns.since_ns.item(place)
        sending_ns = self._now.now_ns.item(0) - since_ns - columns.latency_left_ns.item(place)
        return max(left - sending_ns / columns.ns_per_byte.item(place), 0.0) if sending_ns > 0.0 else left

    @property
    def bytes_sent(self) -> float:
        """Bytes sent by this instant."""
        return self.message_bytes - self.bytes_left


class NetworkView(ViewAtAnInstant):
    """The links, who runs on them and who waits; an admitted transfer counts at once."""

    _what = "the network"

    links: Sequence[Link]
    """All links of the network, by number."""
    per_byte_s: float
    """b: time of a byte of a transfer that shares nothing, seconds."""
    penalty_per_byte_s: float
    """η: extra time of a byte for each further transfer, seconds."""
    now_ns: int
    """Simulated time, nanoseconds."""
    _count: np.ndarray
    _active: Callable[[], list[TransferView]]
    _waiting: Callable[[], list[TransferView]]

    def __init__(
        self,
        links: Sequence[Link],
        count: np.ndarray,
        active: Callable[[], list[TransferView]],
        waiting: Callable[[], list[TransferView]],
        per_byte_s: float,
        penalty_per_byte_s: float,
        now_ns: int,
    ) -> None:
        own = self.__dict__  # one is made at each decision: quicker than an attribute after the other
        own["links"], own["per_byte_s"], own["penalty_per_byte_s"] = links, per_byte_s, penalty_per_byte_s
        own["now_ns"], own["_count"], own["_active"], own["_waiting"] = now_ns, count, active, waiting

    @cached_property
    def active(self) -> tuple[TransferView, ...]:
        """The transfers that run, by number."""
        return tuple(sorted(self._active(), key=_number))

    @cached_property
    def waiting(self) -> tuple[TransferView, ...]:
        """The transfers that are ready or paused, by number."""
        return tuple(sorted(self._waiting(), key=_number))

    def transfers_on(self, link: int) -> list[TransferView]:
        """Return the transfers that run on a link, by number."""
        return [transfer for transfer in self.active if link in transfer.links]

    def num_on(self, link: int) -> int:
        """Return how many transfers run on a link."""
        return int(self._count.item(link))

    def most_on_links_of(self, transfer: TransferView) -> int:
        """Return the most transfers on any one link of a transfer (on a star: on any one of its servers)."""
        count = self._count.item
        return max((count(link) for link in transfer.links), default=0)

    def met_by(self, transfer: TransferView) -> list[TransferView]:
        """Return the running transfers that share a link with a transfer, by number."""
        mine = frozenset(transfer.links)
        return [other for other in self.active if other is not transfer and not mine.isdisjoint(other.links)]


def _number(transfer: TransferView) -> int:
    return transfer.number


_MASK = 0xFFFFFFFF


def _mix(bits: int) -> int:
    """Scatter 32 bits, as the loop does for jitter."""
    bits ^= bits >> 16
    bits = bits * 0x7FEB352D & _MASK
    bits ^= bits >> 15
    bits = bits * 0x45D9F3B & _MASK
    return bits ^ bits >> 16


def hash_of_flow(seed: int, job: int, source: int, target: int, *cards: int) -> int:
    """Return a whole number below 2**32 that depends on all of them, and on nothing else."""
    bits = seed & _MASK
    for number in (job, source, target, *cards):
        bits = _mix((bits + number) & _MASK)
    return bits


@view
class FlowView(View):
    """What one server of a job sends to the next, and the paths that it may take."""

    _what = "a flow"

    number: int
    """Its place among the flows of the job, from 0; in a ring over servers its place there."""
    job: JobView
    """The job that sends."""
    source: int
    """The server that sends."""
    target: int
    """The server that receives."""
    paths: Sequence[tuple[int, ...]]
    """The paths: of each the numbers of its links between switches, in order."""
    route: int
    """Which of them is the topology's own route."""
    cards: tuple[int, ...] = ()
    """The network cards at both ends, where servers have several; otherwise nothing."""

    def __repr__(self) -> str:
        return f"<flow of job {self.job.job_id} from server {self.source} to {self.target}>"

    def hash(self, seed: int) -> int:
        """Return a whole number below 2**32 of seed, job, servers and cards: always the same of the same."""
        return hash_of_flow(seed, self.job.number, self.source, self.target, *self.cards)


@view
class LinkLoads(ViewAtAnInstant):
    """What is on the links when a flow gets its path."""

    _what = "the network of a path policy"

    links: Sequence[Link]
    """All links of the network, by number."""
    _jobs: Callable[[int], int]
    _flows: Callable[[int], int]
    now_ns: int
    """Simulated time, nanoseconds."""

    def jobs_on(self, link: int) -> int:
        """Return how many placed jobs may send over a link, plus the flows of this one that just got it."""
        return self._jobs(link)

    def flows_on(self, link: int) -> int:
        """Return how many flows of transfers that run or wait cross a link, plus those of this one that just got it."""
        return self._flows(link)
