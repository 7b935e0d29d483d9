"""Collective algorithms as a door: a class says which bytes go between which ranks, in how many steps.

What each kind means by ``message_bytes`` says :mod:`ddlsched.workload.tasks`. Classes are plug-ins by name, entry
points of the group ``ddlsched.collective``; a task or a job names its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import NamedTuple, Protocol, TypeAlias

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send")
"""Kinds of collectives."""

ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
"""How often the kinds that can go round a ring do so; each round moves (n - 1) / n of the message from rank to rank."""

Card: TypeAlias = tuple[int, int]
"""A server's number and that of one of its network cards."""


class Rank(NamedTuple):
    """Where a rank is: its server, its GPU's place there, and the network card of that GPU.

    Servers that are one NVLink domain count as one server.
    """

    server: int
    place: int
    card: int


class Message(NamedTuple):
    """The message of a task.

    Parameters
    ----------
    bytes
        ``message_bytes`` of the task.
    ring_bytes
        What each of so many ranks sends to the next in a ring all-reduce of it, bytes: 2 (n - 1) / n of it, unless the
        run's contention model counts otherwise.
    """

    bytes: float
    ring_bytes: Callable[[int], float]


@dataclass(frozen=True, slots=True)
class AllPairs:
    """Flows of as many bytes from each of some ranks to each other; they are counted by card, not one by one."""

    ranks: Sequence[Rank]
    bytes: float

    def __iter__(self) -> Iterator[tuple[Rank, Rank, float]]:
        return ((source, target, self.bytes) for source, target in permutations(self.ranks, 2))

    def __len__(self) -> int:
        return len(self.ranks) * (len(self.ranks) - 1)


class Phase(NamedTuple):
    """What goes at the same time. The phases of a collective overlap, as messages are cut into small parts.

    Parameters
    ----------
    flows
        Source, target and bytes, those of all steps together. Between servers they go from card to card, inside one
        from port to port.
    steps
        Messages one behind the other, of which each takes the latency of the phase's slowest way.
    merged
        Whether switches add up what comes together and copy what parts, so that a link carries the largest of the
        flows in place of their sum.
    """

    flows: Sequence[tuple[Rank, Rank, float]] | AllPairs
    steps: int
    merged: bool = False


class Collective(Protocol):
    """What a class in ``algorithms/collective/`` offers; its fields are its parameters.

    ``ddlsched estimate`` takes the time of :func:`busiest`, or tier by tier that of ``round_on(kind, size)`` where a
    class has it: what a rank sends in one round of a kind (:data:`ROUNDS`; 1 of others) over the bytes of its buffer,
    and in how many steps, for ``size`` ranks on one tier of a network. Sizes may be arrays.

    One whose ``by_order`` is True looks at which ranks share a server and at the order of servers, not at their
    numbers: for ranks that lie alike it is asked once.
    """

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of :data:`KINDS` it can do."""

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return what at least two ranks, in the order of the task's tuple, send to each other."""


def busiest(phases: Iterable[Phase], servers: Sequence[int] = (1,)) -> tuple[list[float], list[int]]:
    """Return the most bytes that each level of a network carries for a GPU in phases that overlap, and its steps.

    The levels are the ports of GPUs, then the ways out of so many ``servers`` each, which their cards of one number
    share: out of a server, a rack, a pod. What goes further crosses the inner ones as well. A phase's steps are those
    of its outermost level.
    """
    units = (1, *servers)
    moved, steps = [defaultdict[tuple[bool, int, int], float](float) for _ in units], [0] * len(units)
    for phase in phases:
        own = [defaultdict[tuple[bool, int, int], float](float) for _ in units]
        for rank, leaves, level, sent_bytes in _sent(phase.flows, servers):
            for number in range(1, level + 1) if level else (0,):
                end = leaves, rank.server // units[number], rank.card if level else rank.place
                before = own[number][end]
                own[number][end] = max(before, sent_bytes) if phase.merged else before + sent_bytes
        for all_ends, ends in zip(moved, own, strict=True):
            for end, end_bytes in ends.items():
                all_ends[end] += end_bytes
        steps[max((number for number, ends in enumerate(own) if ends), default=0)] += phase.steps
    return [max(ends.values(), default=0.0) / count for ends, count in zip(moved, units, strict=True)], steps


def _sent(
    flows: Sequence[tuple[Rank, Rank, float]] | AllPairs, servers: Sequence[int]
) -> Iterator[tuple[Rank, bool, int, float]]:
    """Yield which rank sends (or gets) how many bytes, and the outermost level that these cross."""
    if isinstance(flows, AllPairs):
        counts = [Counter(rank.server // count for rank in flows.ranks) for count in servers]
        for rank in flows.ranks:
            around = [own[rank.server // count] for own, count in zip(counts, servers, strict=True)]
            for level, (within, beyond) in enumerate(pairwise([1, *around, len(flows.ranks)])):
                if beyond > within:
                    yield rank, True, level, (beyond - within) * flows.bytes
        return
    for source, target, sent_bytes in flows:
        level = 0
        if source.server != target.server:
            level = sum(source.server // count != target.server // count for count in servers)
        yield source, True, level, sent_bytes
        yield target, False, level, sent_bytes
