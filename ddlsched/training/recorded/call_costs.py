"""What a collective takes whatever it sends: for a rank that stood still for it, computation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ddlsched.training.recorded.agreement import JobGroups
from ddlsched.training.recorded.rank_steps import MarkKind, RankCommunication, RankStep, apart, covered

__all__ = ["SMALL_BYTES", "with_call_costs"]

SMALL_BYTES: Final = 16384
"""Of a message whose bytes take no time to speak of: on a card of 10 Gbit/s 13 us, where a call on a host takes 100."""
_ENDS_FOR_NOBODY_BEFORE_ALL_BEGAN: Final = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"}

_Call = tuple[str, int]
"""A group, and the place of a collective in it."""


def with_call_costs(
    by_rank: Mapping[int, Sequence[RankStep]], groups: JobGroups, notes: Counter[str]
) -> dict[int, list[RankStep]]:
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


def _calls(step: RankStep) -> Iterator[tuple[_Call, RankCommunication, tuple[int, int]]]:
    """Yield the calls of a step whose end is known, and when each was under way."""
    places = Counter[str]()
    for each in step.communications:
        call = each.group, places[each.group]
        places[each.group] += 1
        if each.measured_ns is not None:
            yield call, each, each.measured_ns


def _met_ns(steps: Sequence[RankStep]) -> dict[_Call, int] | None:
    """Return when the last rank called each collective of a step; None if by these clocks one ended before."""
    met_ns: dict[_Call, int] = {}
    ended_ns: dict[_Call, int] = {}
    for step in steps:
        for call, each, (begin_ns, end_ns) in _calls(step):
            met_ns[call] = max(met_ns.get(call, step.begin_ns + begin_ns), step.begin_ns + begin_ns)
            if each.kind in _ENDS_FOR_NOBODY_BEFORE_ALL_BEGAN:
                ended_ns[call] = min(ended_ns.get(call, step.begin_ns + end_ns), step.begin_ns + end_ns)
    return met_ns if all(end_ns >= met_ns[call] for call, end_ns in ended_ns.items()) else None


def _paid(step: RankStep, met_ns: Mapping[_Call, int], groups: JobGroups) -> RankStep:
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
        if mark.kind is MarkKind.WAITS:
            behind_ns += after_ns.get(int(mark.what), 0)
    computed_ns = step.compute_ns + sum(after_ns.values())
    return replace(step, compute_ns=computed_ns, communications=tuple(calls), marks=tuple(marks))


def _costs(step: RankStep, met_ns: Mapping[_Call, int], groups: JobGroups) -> Callable[[int], int]:
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
    return covered(apart(found))
