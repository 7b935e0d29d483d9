"""Collective algorithms as a door: a class says which bytes go between which ranks, in how many steps.

What each kind means by ``message_bytes`` says :mod:`ddlsched.workload.tasks`. Classes are plug-ins by name, entry
points of the group ``ddlsched.collective``; a task or a job names its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
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

    One that ``ddlsched estimate`` may use also has ``round_on(kind, size)``: what a rank sends in one round of a kind
    (:data:`ROUNDS`; 1 of others) over the bytes of its buffer, and in how many steps, for ``size`` ranks on one tier of
    a network. Sizes may be arrays. ``powers_of_two`` says that this holds for such sizes only.

    One whose ``by_order`` is True looks at which ranks share a server and at the order of servers, not at their
    numbers: for ranks that lie alike it is asked once.
    """

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of :data:`KINDS` it can do."""

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return what at least two ranks, in the order of the task's tuple, send to each other."""
