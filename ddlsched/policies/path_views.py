"""A flow that is to get its path, and what is on the links, as path policies see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlsched.network.topology import Link
from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import View, put
from ddlsched.units import s_from_ns

__all__ = ["FlowView", "LinkLoads", "hash_of_flow"]

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


class FlowView(View):
    """What one server of a job sends to the next, and the paths that it may take."""

    __slots__ = ("cards", "job", "number", "paths", "route", "source", "target")
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
    cards: tuple[int, ...]
    """The network cards at both ends, where servers have several; otherwise nothing."""

    def __init__(
        self,
        number: int,
        job: JobView,
        source: int,
        target: int,
        paths: Sequence[tuple[int, ...]],
        route: int,
        cards: tuple[int, ...] = (),
    ) -> None:
        put(self, "number", number)
        put(self, "job", job)
        put(self, "source", source)
        put(self, "target", target)
        put(self, "paths", paths)
        put(self, "route", route)
        put(self, "cards", cards)

    def __repr__(self) -> str:
        return f"<flow of job {self.job.job_id} from server {self.source} to {self.target}>"

    def hash(self, seed: int) -> int:
        """Return a whole number below 2**32 of seed, job, servers and cards: always the same of the same."""
        return hash_of_flow(seed, self.job.number, self.source, self.target, *self.cards)


class LinkLoads(View):
    """What is on the links when a flow gets its path."""

    __slots__ = ("_flows", "_jobs", "links", "now_ns")
    _what = "the network of a path policy"

    _jobs: Callable[[int], int]
    _flows: Callable[[int], int]
    links: Sequence[Link]
    """All links of the network, by number."""
    now_ns: int
    """Simulated time, nanoseconds."""

    def __init__(
        self, links: Sequence[Link], jobs: Callable[[int], int], flows: Callable[[int], int], now_ns: int
    ) -> None:
        put(self, "links", links)
        put(self, "now_ns", now_ns)
        put(self, "_jobs", jobs)
        put(self, "_flows", flows)

    @property
    def now_s(self) -> float:
        """Simulated time, seconds."""
        return s_from_ns(self.now_ns)

    def jobs_on(self, link: int) -> int:
        """Return how many placed jobs may send over a link, plus the flows of this one that just got it."""
        return self._jobs(link)

    def flows_on(self, link: int) -> int:
        """Return how many flows of transfers that run or wait cross a link, plus those of this one that just got it."""
        return self._flows(link)
