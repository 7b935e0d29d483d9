"""What every reader of recorded training gives: the steps of a rank, as compute time with marks in it.

A rank's *compute time* is its own time in a step without what it stood still for communication. On that line lie
marks, in the order of the program: here a communication starts, from here on a communication must have ended, here a
phase begins. Everything between two marks is one piece of computation, whatever the trace holds there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate

from ddlsched.errors import InputError

EVERYBODY = ""
"""The name of the group of all ranks."""


def message_group(kind: str, rank: int, peer: int | None) -> str:
    """Return the group of a message that a rank sends to another, or receives from it: from which rank to which."""
    return f"{rank} to {peer}" if kind == "send" else f"{peer} to {rank}"


class MarkKind(Enum):
    """What lies at a mark."""

    STARTS = "starts"
    WAITS = "waits"
    PHASE = "phase"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on a rank's line of compute time.

    Parameters
    ----------
    kind
        Of the mark.
    what
        The number of the communication in its step; of a phase, its name.
    at_ns
        Compute time of the rank since the step began, nanoseconds.
    """

    kind: MarkKind
    what: int | str
    at_ns: int


@dataclass(frozen=True, slots=True)
class RankCommunication:
    """A collective, or a message from one rank to another, in which a rank takes part.

    Parameters
    ----------
    kind
        ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``broadcast``, ``barrier`` or ``send``.
    input_bytes
        What this rank brings: the whole tensor of an all-reduce, a broadcast, a reduce-scatter or an all-to-all, the
        rank's own share of an all-gather.
    group
        Name of the process group; :data:`EVERYBODY` for all ranks.
    after
        Numbers of communications of the step, of other groups, that must have ended before.
    measured_ns
        When the trace has it begin and end, nanoseconds of wall time since the step began.
    waited_ns
        From when until when the rank stood still for it, likewise; None if it never waited, or nothing tells.
    """

    kind: str
    input_bytes: int
    group: str = EVERYBODY
    after: tuple[int, ...] = ()
    measured_ns: tuple[int, int] | None = None
    waited_ns: tuple[int, int] | None = None

    def is_received_by(self, ranks: Sequence[int]) -> bool:
        """Return whether it is a message to one of the ranks; its group says from which rank to which."""
        return self.kind == "send" and int(self.group.split()[2]) in ranks


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step of a rank.

    Parameters
    ----------
    compute_ns
        Compute time of the whole step, nanoseconds.
    communications
        Numbered by their place, in the order in which the rank starts those of a group.
    marks
        In the order of the program; their times do not fall.
    wall_ns
        Length of the step in the trace, nanoseconds, if it tells.
    stalls_ns
        From when until when the rank stood still for communication, nanoseconds since the step began.
    begin_ns
        When the step began, by a clock that ranks on one host share.
    call_ns
        What a collective takes on average whatever it sends, 0 if nothing tells; not part of the compute time.
    """

    compute_ns: int
    communications: tuple[RankCommunication, ...]
    marks: tuple[Mark, ...]
    wall_ns: int | None = None
    stalls_ns: tuple[tuple[int, int], ...] = ()
    begin_ns: int = 0
    call_ns: int = 0

    def form(self) -> tuple[object, ...]:
        """Return what steps have in common that differ in times alone."""
        return tuple((c.kind, c.input_bytes, c.group, c.after) for c in self.communications), tuple(
            (mark.kind, mark.what) for mark in self.marks
        )


@dataclass(frozen=True, slots=True)
class RankTrace:
    """What the file of a rank holds.

    Parameters
    ----------
    source
        The file, for messages.
    rank
        None if the file does not tell.
    num_ranks
        Of the job, None if the file does not tell.
    groups
        Ranks of each process group by its name, ascending; none listed for all ranks.
    steps
        By number, in order.
    nodes
        How many nodes or events of the file are part of the steps.
    unrecorded_ns
        Length of steps of the same run that were not recorded, nanoseconds, if the file tells.
    notes
        What was left out, and how often.
    """

    source: str
    rank: int | None
    num_ranks: int | None
    groups: Mapping[str, tuple[int, ...]]
    steps: Mapping[int, RankStep]
    nodes: int
    unrecorded_ns: tuple[int, ...] = ()
    notes: Counter[str] = field(default_factory=Counter)

    def refuse_no_communication(self) -> None:
        """Raise InputError if no step communicates: a trace that was not understood looks like this."""
        if not any(step.communications for step in self.steps.values()):
            raise InputError(f"{self.source}: holds no collective; expected a trace of a job on several ranks")


class WallTime:
    """A step between two moments, nanoseconds of any clock; what lies outside is moved to its ends.

    ``call_ns`` is that of :class:`RankStep`.
    """

    def __init__(self, begin_ns: int, end_ns: int, call_ns: int = 0) -> None:
        self._begin_ns, self._length_ns, self._call_ns = begin_ns, end_ns - begin_ns, call_ns
        self._places: list[tuple[int, bool, int, bool, MarkKind, str]] = []
        """In this order: at one moment first the ends of waits for what began before it, then phases, then calls."""
        self._communications: list[RankCommunication] = []

    def phase(self, name: str, at_ns: int) -> None:
        """Begin a phase."""
        self._places.append((self._since(at_ns), True, -1, False, MarkKind.PHASE, name))

    def communicate(
        self,
        communication: RankCommunication,
        at_ns: int,
        waited_ns: tuple[int, int] | None,
        work_ns: tuple[int, int] | None,
    ) -> None:
        """Add a communication, in the order in which the rank starts those of a group.

        Parameters
        ----------
        at_ns
            When it could start.
        waited_ns
            From when until when the rank stood still for it, the same twice if it had ended by then; None if it never
            waited.
        work_ns
            When it was under way, if that is known.
        """
        number, start_ns = len(self._communications), self._since(at_ns)
        self._places.append((start_ns, True, number, False, MarkKind.STARTS, ""))
        measured = waited = None
        if waited_ns is not None:
            waited = self._since(waited_ns[0]), self._since(waited_ns[1])
            if waited[1] < self._length_ns:  # The end of a step waits for everything.
                self._places.append((waited[1], waited[1] == start_ns, number, True, MarkKind.WAITS, ""))
        if work_ns is not None:
            measured = work_ns[0] - self._begin_ns, work_ns[1] - self._begin_ns
        self._communications.append(replace(communication, measured_ns=measured, waited_ns=waited))

    def step(self) -> RankStep:
        """Return the step."""
        stalls = apart([each.waited_ns for each in self._communications if each.waited_ns is not None])
        stood_ns = covered(stalls)
        places = sorted(self._places, key=lambda place: place[:4])
        marks = tuple(Mark(kind, name or number, at - stood_ns(at)) for at, _, number, _, kind, name in places)
        length_ns, calls = self._length_ns, tuple(self._communications)
        computed_ns = length_ns - stood_ns(length_ns)
        return RankStep(computed_ns, calls, marks, length_ns, tuple(stalls), self._begin_ns, self._call_ns)

    def _since(self, at_ns: int) -> int:
        return min(max(at_ns - self._begin_ns, 0), self._length_ns)


def apart(stretches_ns: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same stretches of time without overlaps, in order."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(stretches_ns):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > begin:
            found.append((begin, end))
    return found


def covered(apart_ns: Sequence[tuple[int, int]]) -> Callable[[int], int]:
    """Return what tells how much of the time until a moment lies in stretches without overlaps, in order."""
    begins = [begin for begin, _ in apart_ns]
    sums = [0, *accumulate(end - begin for begin, end in apart_ns)]

    def until(at_ns: int) -> int:
        place = bisect_right(begins, at_ns)
        return sums[place] - max(apart_ns[place - 1][1] - at_ns, 0) if place else 0

    return until
