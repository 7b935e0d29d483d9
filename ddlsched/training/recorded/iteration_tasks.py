"""Lines of compute time become the tasks of an iteration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddlsched.training.recorded.agreement import JobGroups
from ddlsched.training.recorded.rank_steps import EVERYBODY, MarkKind, RankCommunication
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, IterationDag, Task

__all__ = ["Line", "iteration_of"]


@dataclass(frozen=True, slots=True)
class Line:
    """The compute time of a class of ranks.

    Parameters
    ----------
    ranks
        Of the class.
    communications
        As in :class:`~.rank_steps.RankStep`.
    marks
        Kind of each mark and what it is of.
    at_ns
        Compute time at each mark, and at the end of the step.
    """

    ranks: tuple[int, ...]
    communications: tuple[RankCommunication, ...]
    marks: tuple[tuple[MarkKind, int | str], ...]
    at_ns: tuple[int, ...]


def iteration_of(lines: Sequence[Line], groups: JobGroups, *, sends_wait: bool = True) -> IterationDag:
    """Return the tasks of some classes that share the collectives of their groups.

    ``sends_wait`` says that a message starts when its receiver, too, has come so far; else when its sender has.

    Raises
    ------
    InputError
        Classes wait for each other in a circle.
    """
    making = _Making(groups, several=len(lines) > 1, sends_wait=sends_wait)
    for line in lines:
        making.take(line)
    return making.dag()


@dataclass(slots=True)
class _Collective:
    """A collective, and what it comes after on all ranks whose lines have been taken."""

    name: str
    communication: RankCommunication
    after: dict[str, None] = field(default_factory=dict)
    is_placed: bool = False


class _Making:
    """The tasks made so far."""

    def __init__(self, groups: JobGroups, *, several: bool, sends_wait: bool) -> None:
        self._groups, self._several, self._sends_wait = groups, several, sends_wait
        self._order: list[ComputeTask | _Collective] = []
        self._collectives: dict[tuple[str, int], _Collective] = {}
        """By group and place in it."""
        self._of_kind: Counter[str] = Counter()
        self._workers: dict[str, tuple[tuple[int, ...], ...]] = {}

    def take(self, line: Line) -> None:
        """Add the tasks of a line."""
        class_name, of_line = self._class_name(line), self._collectives_of(line)
        phase, parts, since_ns, waits = "compute", Counter[str](), 0, dict[str, None]()
        asked: dict[int, dict[str, None]] = defaultdict(dict)
        """By message that is received and does not wait for it: what its receiver had waited for."""
        for (kind, what), at_ns in zip([*line.marks, (MarkKind.PHASE, "")], line.at_ns, strict=True):
            if at_ns > since_ns:
                parts[phase] += 1
                name = f"{phase}-{parts[phase]}" + (f" of {class_name}" if class_name else "")
                task = ComputeTask(name=name, duration_ns=at_ns - since_ns, after=tuple(waits), group=class_name)
                self._order.append(task)
                waits, since_ns = {name: None}, at_ns
            if kind is MarkKind.PHASE:
                phase = str(what)
            elif kind is MarkKind.WAITS:
                waits |= {of_line[int(what)].name: None} | asked[int(what)]
            else:
                started, communication = of_line[int(what)], line.communications[int(what)]
                after = dict(waits)
                for each in communication.after:
                    after |= {of_line[each].name: None} | asked[each]
                if self._sends_wait or not communication.is_received_by(line.ranks):
                    started.after |= after
                else:
                    asked[int(what)] = after
                if not started.is_placed:
                    started.is_placed = True
                    self._order.append(started)

    def _class_name(self, line: Line) -> str | None:
        """Return the name of the group of a class, None for all ranks."""
        if not self._several:
            return None
        ranks = line.ranks
        runs = "-".join(map(str, ranks[:: max(1, len(ranks) - 1)])) if _is_run(ranks) else ",".join(map(str, ranks))
        name = f"ranks {runs}" if len(ranks) > 1 else f"rank {runs}"
        self._workers[name] = (ranks,)
        return name

    def _collectives_of(self, line: Line) -> list[_Collective]:
        """Return the collectives of a line; one of a group is the same for all of its ranks."""
        found, places = [], Counter[str]()
        for communication in line.communications:
            group, kind = communication.group, communication.kind
            key = (group, places[group])
            places[group] += 1
            if key not in self._collectives:
                self._of_kind[kind] += 1
                made = _Collective(f"{kind}-{self._of_kind[kind]}", communication)
                if key[1]:
                    made.after[self._collectives[group, key[1] - 1].name] = None
                self._collectives[key] = made
            found.append(self._collectives[key])
        return found

    def dag(self) -> IterationDag:
        """Return the iteration."""
        tasks = [each if isinstance(each, ComputeTask) else self._task(each) for each in self._order]
        return IterationDag(tuple(tasks), self._workers)

    def _task(self, collective: _Collective) -> Task:
        communication, after = collective.communication, tuple(collective.after)
        group = communication.group
        kind = "all-reduce" if communication.kind == "barrier" else communication.kind
        everybody = group == EVERYBODY or (kind != "send" and self._groups.size(group) == self._groups.num_ranks)
        message_bytes = float(communication.input_bytes)
        if kind == "all-gather":
            message_bytes *= self._groups.size(group)
        if everybody and kind == "all-reduce":
            return AllReduceTask(name=collective.name, message_bytes=message_bytes, after=after)
        name = None if everybody else f"group {group}"
        if name is not None:
            self._workers[name] = (self._groups.ranks[group],)
        return CollectiveTask(name=collective.name, kind=kind, message_bytes=message_bytes, group=name, after=after)


def _is_run(ranks: Sequence[int]) -> bool:
    return list(ranks) == list(range(ranks[0], ranks[-1] + 1))
