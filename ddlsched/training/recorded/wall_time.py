"""A step as it was measured becomes compute time: wall time, less what the rank stood still for communication."""

from __future__ import annotations

from dataclasses import replace

from ddlsched.training.recorded.rank_steps import Mark, MarkKind, RankCommunication, RankStep

__all__ = ["WallTime"]


class WallTime:
    """A step between two moments, nanoseconds of any clock; what lies outside is moved to its ends.

    ``call_ns`` is what a collective takes whatever it sends: computation, if the rank stood still so long.
    """

    def __init__(self, begin_ns: int, end_ns: int, call_ns: int = 0) -> None:
        self._begin_ns, self._length_ns, self._call_ns = begin_ns, end_ns - begin_ns, call_ns
        self._places: list[tuple[int, int, MarkKind, str]] = []
        self._communications: list[RankCommunication] = []
        self._stalls_ns: list[tuple[int, int]] = []

    def phase(self, name: str, at_ns: int) -> None:
        """Begin a phase."""
        self._places.append((self._since(at_ns), -1, MarkKind.PHASE, name))

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
        number = len(self._communications)
        self._places.append((self._since(at_ns), number, MarkKind.STARTS, ""))
        if waited_ns is not None:
            stall = self._since(waited_ns[0]), self._since(self._sent(*waited_ns))
            self._stalls_ns.append(stall)
            if stall[1] < self._length_ns:  # The end of a step waits for everything.
                self._places.append((stall[1], number, MarkKind.WAITS, ""))
        measured = None if work_ns is None else (work_ns[0] - self._begin_ns, self._sent(*work_ns) - self._begin_ns)
        self._communications.append(replace(communication, measured_ns=measured))

    def step(self) -> RankStep:
        """Return the step."""
        stalls = _apart(self._stalls_ns)
        places = sorted(self._places, key=lambda place: (place[0], place[1], place[2] is MarkKind.WAITS))
        marks = tuple(Mark(kind, name or number, _computed(at, stalls)) for at, number, kind, name in places)
        computed_ns = _computed(self._length_ns, stalls)
        return RankStep(computed_ns, tuple(self._communications), marks, self._length_ns, tuple(stalls), self._begin_ns)

    def _sent(self, begin_ns: int, end_ns: int) -> int:
        """Return when what is not the cost of the call had ended."""
        return end_ns - min(self._call_ns, end_ns - begin_ns)

    def _since(self, at_ns: int) -> int:
        return min(max(at_ns - self._begin_ns, 0), self._length_ns)


def _apart(stalls_ns: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same stretches of time without overlaps, in order."""
    apart: list[tuple[int, int]] = []
    for begin, end in sorted(stalls_ns):
        if apart and begin <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end))
        elif end > begin:
            apart.append((begin, end))
    return apart


def _computed(at_ns: int, stalls_ns: list[tuple[int, int]]) -> int:
    """Return the compute time from the begin of a step to ``at_ns``."""
    return at_ns - sum(min(end, at_ns) - begin for begin, end in stalls_ns if begin < at_ns)
