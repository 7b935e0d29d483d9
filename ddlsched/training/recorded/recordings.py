"""What ``ddlsched record`` keeps of a rank: its steps, in JSON (``RANK.recording.json``, also gzipped)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from ddlsched.errors import InputError, abbreviated
from ddlsched.io.files import decoded, unzipped
from ddlsched.training.recorded.collective_names import ranks_of
from ddlsched.training.recorded.rank_steps import Mark, MarkKind, RankCommunication, RankStep, RankTrace
from ddlsched.units import MAX_NS, is_whole

SUFFIX: Final = ".recording.json"
_MOST_BYTES: Final = 1 << 28
_FORMAT: Final = "ddlsched recording 1"


def recording_text(
    rank: int,
    num_ranks: int,
    groups: Mapping[str, tuple[int, ...]],
    steps: Mapping[int, RankStep],
    unrecorded_ns: Sequence[int] = (),
) -> str:
    """Return the text of a rank's recording."""
    document = {
        "format": _FORMAT,
        "rank": rank,
        "ranks": num_ranks,
        "groups": {name: list(ranks) for name, ranks in groups.items()},
        "unrecorded_ns": list(unrecorded_ns),
        "steps": [_json_of_step(number, step) for number, step in steps.items()],
    }
    return json.dumps(document) + "\n"


def _json_of_step(number: int, step: RankStep) -> dict[str, Any]:
    fields = asdict(step) | {"number": number}
    fields["marks"] = [[mark.kind.value, mark.what, mark.at_ns] for mark in step.marks]
    return fields


_Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_NS)]
_Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_NS)]
_Time = Annotated[int, msgspec.Meta(ge=-MAX_NS, le=MAX_NS)]


class _CommunicationFile(msgspec.Struct):
    kind: Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "barrier", "send"]
    input_bytes: _Whole
    group: str
    measured_ns: tuple[_Time, _Time] | None = None
    waited_ns: tuple[_Time, _Time] | None = None


class _StepFile(msgspec.Struct):
    number: _Whole
    compute_ns: _Whole
    communications: list[_CommunicationFile]
    marks: list[tuple[MarkKind, _Whole | str, _Whole]]
    wall_ns: _Whole
    begin_ns: _Time
    stalls_ns: list[tuple[_Time, _Time]] = []
    call_ns: _Whole = 0


class _File(msgspec.Struct):
    """What a recording holds, field by field."""

    format: Literal["ddlsched recording 1"]
    rank: _Whole
    ranks: _Whole
    groups: dict[str, list[int]]
    steps: Annotated[list[_StepFile], msgspec.Meta(min_length=1)]
    unrecorded_ns: list[_Length] = []


def read_recording(path: Path) -> RankTrace:
    """Read the recording of a rank.

    Raises
    ------
    InputError
        It is not there, or no recording; with the step and the field that cannot be used.
    """
    with unzipped(path, _MOST_BYTES, "a recording") as file:
        found = decoded(_File, file.read(), str(path), f"a recording ({_FORMAT!r})")
    steps = {each.number: _step(f"{path}, step {n}", each) for n, each in enumerate(found.steps, start=1)}
    ranks = {name: ranks_of(f"{path}, group {name!r}", each) for name, each in found.groups.items()}
    nodes = sum(len(step.marks) for step in steps.values())
    trace = RankTrace(str(path), found.rank, found.ranks, ranks, steps, nodes, tuple(found.unrecorded_ns))
    trace.refuse_no_communication()
    return trace


def _step(where: str, step: _StepFile) -> RankStep:
    calls = tuple(
        RankCommunication(c.kind, c.input_bytes, c.group, (), c.measured_ns, c.waited_ns) for c in step.communications
    )
    marks = tuple(_mark(f"{where}, mark {n}", mark, len(calls)) for n, mark in enumerate(step.marks, start=1))
    times_ns = [*(mark.at_ns for mark in marks), step.compute_ns]
    if times_ns != sorted(times_ns):
        raise InputError(f"{where}, field marks: their times fall; expected the order of the program")
    _refuse_early_waits(where, marks, len(calls))
    return RankStep(step.compute_ns, calls, marks, step.wall_ns, tuple(step.stalls_ns), step.begin_ns, step.call_ns)


def _mark(where: str, found: tuple[MarkKind, int | str, int], count: int) -> Mark:
    kind, what, at_ns = found
    is_phase = isinstance(what, str) and what.isidentifier()
    if not (is_phase if kind is MarkKind.PHASE else is_whole(what, 0, count - 1)):
        raise InputError(f"{where}: is of {abbreviated(what)}; expected a phase or a communication of the step")
    return Mark(kind, what, at_ns)


def _refuse_early_waits(where: str, marks: tuple[Mark, ...], count: int) -> None:
    started = [mark.what for mark in marks if mark.kind is MarkKind.STARTS]
    if sorted(started, key=str) != sorted(range(count), key=str):
        raise InputError(f"{where}, field marks: not every communication starts once; expected a mark for each start")
    seen: set[object] = set()
    for mark in marks:
        if mark.kind is MarkKind.WAITS and mark.what not in seen:
            raise InputError(f"{where}, field marks: communication {mark.what} is waited for before it starts")
        if mark.kind is MarkKind.STARTS:
            seen.add(mark.what)
