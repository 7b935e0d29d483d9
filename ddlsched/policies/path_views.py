"""A flow that is to get its path, and what is on the links, as path policies see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlsched.network.topology import Link
from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import View, view
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
class LinkLoads(View):
    """What is on the links when a flow gets its path."""

    _what = "the network of a path policy"

    links: Sequence[Link]
    """All links of the network, by number."""
    _jobs: Callable[[int], int]
    _flows: Callable[[int], int]
    now_ns: int
    """Simulated time, nanoseconds."""

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
