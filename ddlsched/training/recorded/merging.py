"""The traces of a job's ranks become one iteration: a graph of tasks.

The rule. Ranks that take part in the same groups and have the same marks are one *class*, with one line of compute
time: from one wait to the next it is, at each mark, that of the rank of the class that comes there last; over steps it
is the mean. What lies between two marks of a line is one task, so that chains of computation between communications
are merged without changing when anything starts. A collective is one task; those of a group come one after another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Final

from ddlsched.errors import InputError
from ddlsched.training.recorded import rank_steps
from ddlsched.training.recorded.agreement import JobGroups, agreed, common_steps, ranks_of_groups
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, IterationDag, Task

SMALL_BYTES: Final = 16384
"""Of a message whose bytes take no time to speak of: on a card of 10 Gbit/s 13 us, where a call on a host takes 100."""
_ENDS_FOR_NOBODY_BEFORE_ALL_BEGAN: Final = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"}

_Call = tuple[str, int]
"""A group, and the place of a collective in it."""


def with_call_costs(
    by_rank: Mapping[int, Sequence[rank_steps.RankStep]], groups: JobGroups, notes: Counter[str]
) -> dict[int, list[rank_steps.RankStep]]:
    """Return the steps of all ranks with what calls cost as computation behind the waits for them.

    From the last rank's call on nobody is waited for. What a collective of at most :data:`SMALL_BYTES` takes from then
    on is its cost; that of a larger one, whose bytes take time too, is ``call_ns``. Of a cost that computation hides
    nothing is added. Ranks whose clocks disagree (several hosts), or one that stands for all, pay ``call_ns`` a call.
    """
    met_ns = [_met_ns(steps) if len(steps) > 1 else {} for steps in zip(*by_rank.values(), strict=True)]
    if any(each is None for each in met_ns):
        notes["clocks of ranks disagree: each call costs what it took on average before the first step kept"] += 1
        met_ns = [{} for _ in met_ns]
    return {
        rank: [
            _paid(step, met or {}, groups) if step.call_ns else step for step, met in zip(steps, met_ns, strict=True)
        ]
        for rank, steps in by_rank.items()
    }


def _calls(step: rank_steps.RankStep) -> Iterator[tuple[_Call, rank_steps.RankCommunication, tuple[int, int]]]:
    """Yield the calls of a step whose end is known, and when each was under way."""
    places = Counter[str]()
    for each in step.communications:
        call = each.group, places[each.group]
        places[each.group] += 1
        if each.measured_ns is not None:
            yield call, each, each.measured_ns


def _met_ns(steps: Sequence[rank_steps.RankStep]) -> dict[_Call, int] | None:
    """Return when the last rank called each collective of a step; None if by these clocks one ended before."""
    met_ns: dict[_Call, int] = {}
    ended_ns: dict[_Call, int] = {}
    for step in steps:
        for call, each, (begin_ns, end_ns) in _calls(step):
            met_ns[call] = max(met_ns.get(call, step.begin_ns + begin_ns), step.begin_ns + begin_ns)
            if each.kind in _ENDS_FOR_NOBODY_BEFORE_ALL_BEGAN:
                ended_ns[call] = min(ended_ns.get(call, step.begin_ns + end_ns), step.begin_ns + end_ns)
    return met_ns if all(end_ns >= met_ns[call] for call, end_ns in ended_ns.items()) else None


def _paid(step: rank_steps.RankStep, met_ns: Mapping[_Call, int], groups: JobGroups) -> rank_steps.RankStep:
    """Return a step with the cost of its calls behind the marks of their waits, which are without it."""
    cost_ns = _costs(step, met_ns, groups)
    waits = [(c.waited_ns, number) for number, c in enumerate(step.communications) if c.waited_ns is not None]
    # Of waits that end at once, the cost lies behind the mark of the last.
    waits.sort(key=lambda wait: (wait[0][1], -wait[1]))
    calls, after_ns, until_ns = list(step.communications), dict[int, int](), 0
    for (begin_ns, end_ns), number in waits:
        begin_ns, until_ns = min(max(begin_ns, until_ns), end_ns), end_ns
        after_ns[number] = cost_ns(end_ns) - cost_ns(begin_ns)
        calls[number] = replace(calls[number], waited_ns=(begin_ns, end_ns - after_ns[number]))
    behind_ns, marks = 0, []
    for mark in step.marks:
        marks.append(replace(mark, at_ns=mark.at_ns + behind_ns))
        if mark.kind is rank_steps.MarkKind.WAITS:
            behind_ns += after_ns.get(int(mark.what), 0)
    computed_ns = step.compute_ns + sum(after_ns.values())
    return replace(step, compute_ns=computed_ns, communications=tuple(calls), marks=tuple(marks))


def _costs(step: rank_steps.RankStep, met_ns: Mapping[_Call, int], groups: JobGroups) -> Callable[[int], int]:
    """Return what tells how long, until a moment of a step, the cost of some call was being paid."""
    found, ended_ns = [], dict[str, int]()
    for call, each, (begin_ns, end_ns) in _calls(step):
        # Who waited may go on before it is told that the work has ended, or later than it did.
        went_on_ns = end_ns if each.waited_ns is None else each.waited_ns[1]
        begin_ns = max(begin_ns, ended_ns.get(each.group, begin_ns))
        shares = groups.size(each.group) if each.kind == "all-gather" else 1
        if call in met_ns and each.input_bytes * shares <= SMALL_BYTES:
            found.append((max(begin_ns, met_ns[call] - step.begin_ns), went_on_ns))
        else:
            found.append((max(begin_ns, min(end_ns, went_on_ns) - step.call_ns), min(end_ns, went_on_ns)))
        ended_ns[each.group] = max(min(end_ns, went_on_ns), ended_ns.get(each.group, 0))
    return rank_steps.covered(rank_steps.apart(found))


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
    communications: tuple[rank_steps.RankCommunication, ...]
    marks: tuple[tuple[rank_steps.MarkKind, int | str], ...]
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
    communication: rank_steps.RankCommunication
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
        for (kind, what), at_ns in zip([*line.marks, (rank_steps.MarkKind.PHASE, "")], line.at_ns, strict=True):
            if at_ns > since_ns:
                parts[phase] += 1
                name = f"{phase}-{parts[phase]}" + (f" of {class_name}" if class_name else "")
                task = ComputeTask(name=name, duration_ns=at_ns - since_ns, after=tuple(waits), group=class_name)
                self._order.append(task)
                waits, since_ns = {name: None}, at_ns
            if kind is rank_steps.MarkKind.PHASE:
                phase = str(what)
            elif kind is rank_steps.MarkKind.WAITS:
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
        everybody = group == rank_steps.EVERYBODY or (
            kind != "send" and self._groups.size(group) == self._groups.num_ranks
        )
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


@dataclass(frozen=True, slots=True)
class RecordedIteration:
    """An iteration made of traces.

    Parameters
    ----------
    dag
        Its tasks; a worker is a rank.
    num_ranks
        Of the job.
    steps
        How many steps it is the mean of.
    wall_ns
        Length of each of those steps in the traces, that of the rank that took longest; empty if they do not tell.
    unrecorded_ns
        The same of steps before them that were not recorded.
    nodes
        How many nodes or events of the traces are part of the steps.
    classes
        The ranks of each class.
    moments_ns
        Of the class of the first rank, compute time at its marks and at the end, an entry a step.
    last
        The last step of the first rank, as it was measured.
    notes
        What was left out, and how often.
    """

    dag: IterationDag
    num_ranks: int
    steps: int
    wall_ns: tuple[int, ...]
    unrecorded_ns: tuple[int, ...]
    nodes: int
    classes: tuple[tuple[int, ...], ...]
    moments_ns: tuple[tuple[int, ...], ...]
    last: rank_steps.RankStep
    notes: Counter[str]


def merged(traces: Sequence[rank_steps.RankTrace], num_ranks: int | None = None) -> RecordedIteration:
    """Merge the traces of a job's ranks, or of one rank that stands for all.

    Parameters
    ----------
    traces
        One a rank, of all ranks; or one alone if all of its groups are of all ranks.
    num_ranks
        Of the job; by default what the traces tell, or as many as there are traces.

    Raises
    ------
    InputError
        A rank is missing or there twice, the members of a group disagree on a collective, or ranks wait for each
        other in a circle.
    """
    groups = ranks_of_groups(traces, num_ranks)
    steps = common_steps(traces)
    agreed(groups, steps)
    classes = _classes(steps.by_rank)
    paid = with_call_costs(steps.by_rank, groups, steps.notes)
    by_class = [tuple(map(_latest, zip(*(paid[rank] for rank in ranks), strict=True))) for ranks in classes]
    lines = [
        _line(ranks, steps.by_rank[ranks[0]][0], moments) for ranks, moments in zip(classes, by_class, strict=True)
    ]
    dag = _iteration(lines, groups, steps.notes)
    by_step = zip(*steps.by_rank.values(), strict=True)
    walls_ns = [[step.wall_ns for step in each if step.wall_ns is not None] for each in by_step]
    return RecordedIteration(
        dag=dag,
        num_ranks=groups.num_ranks,
        steps=steps.count,
        wall_ns=tuple(max(each) for each in walls_ns if each),
        unrecorded_ns=tuple(max(each) for each in zip(*(trace.unrecorded_ns for trace in traces), strict=False)),
        nodes=sum(trace.nodes for trace in traces),
        classes=tuple(line.ranks for line in lines) if not groups.one_for_all else (tuple(range(groups.num_ranks)),),
        moments_ns=by_class[0],
        last=next(iter(steps.by_rank.values()))[-1],
        notes=steps.notes,
    )


def _iteration(lines: Sequence[Line], groups: JobGroups, notes: Counter[str]) -> IterationDag:
    try:
        return iteration_of(lines, groups)
    except InputError:
        if not any(each.kind == "send" for line in lines for each in line.communications):
            raise
    dag = iteration_of(lines, groups, sends_wait=False)
    notes["messages would wait for each other in a circle: none waits for its receiver"] += 1
    return dag


def _classes(steps: Mapping[int, Sequence[rank_steps.RankStep]]) -> list[tuple[int, ...]]:
    """Return the ranks whose steps have the same form, those of the lowest rank first."""
    classes: dict[object, list[int]] = {}
    for rank in sorted(steps):
        classes.setdefault(steps[rank][0].form(), []).append(rank)
    return [tuple(ranks) for ranks in classes.values()]


def _line(ranks: tuple[int, ...], first: rank_steps.RankStep, moments_ns: Sequence[Sequence[int]]) -> Line:
    """Return the line of a class: the mean over its steps."""
    mean_ns = tuple(round(fmean(at)) for at in zip(*moments_ns, strict=True))
    return Line(ranks, first.communications, tuple((mark.kind, mark.what) for mark in first.marks), mean_ns)


def _latest(steps: Sequence[rank_steps.RankStep]) -> tuple[int, ...]:
    """Return the moments of the marks, and of the end, of a step of several ranks that wait for each other at waits.

    From one wait to the next, the rank that has computed longest since then is the one that counts.
    """
    moments_ns = [[*(mark.at_ns for mark in step.marks), step.compute_ns] for step in steps]
    marks = enumerate(steps[0].marks)
    waits = [place for place, mark in marks if mark.kind is rank_steps.MarkKind.WAITS and _meet(steps, int(mark.what))]
    end = len(steps[0].marks)
    latest_ns = [max(each[0] for each in moments_ns)] * (end + 1)
    for begin, until in pairwise([-1, *waits, end]):
        so_far_ns = 0 if begin < 0 else latest_ns[begin]
        for place in range(begin + 1, until + 1):
            latest_ns[place] = so_far_ns + max(each[place] - (0 if begin < 0 else each[begin]) for each in moments_ns)
    return tuple(latest_ns)


def _meet(steps: Sequence[rank_steps.RankStep], number: int) -> bool:
    """Return whether ranks meet where they wait: none does that finds the collective done, but for its cost."""
    waits = [step.communications[number].waited_ns for step in steps if step.call_ns]
    return len(waits) < len(steps) or any(wait is None or wait[0] < wait[1] for wait in waits)
