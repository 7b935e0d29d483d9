"""What ``ddlsched record`` keeps of a rank: its steps, in JSON (``RANK.recording.json``, also gzipped)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ddlsched.errors import InputError
from ddlsched.io.reading import bounded, opened
from ddlsched.io.tables import abbreviated, first_line
from ddlsched.training.recorded.process_groups import ranks_of
from ddlsched.training.recorded.rank_steps import Communication, Mark, MarkKind, RankStep, RankTrace
from ddlsched.units import MAX_NS, is_whole

__all__ = ["SUFFIX", "read_recording", "recording_text"]

SUFFIX: Final = ".recording.json"
_MOST_BYTES: Final = 1 << 28
_FORMAT: Final = "ddlsched recording 1"
_KINDS: Final = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "barrier", "send"}


def recording_text(
    rank: int, num_ranks: int, groups: Mapping[str, tuple[int, ...]], steps: Mapping[int, RankStep]
) -> str:
    """Return the text of a rank's recording."""
    document = {
        "format": _FORMAT,
        "rank": rank,
        "ranks": num_ranks,
        "groups": {name: list(ranks) for name, ranks in groups.items()},
        "steps": [_json_of_step(number, step) for number, step in steps.items()],
    }
    return json.dumps(document) + "\n"


def _json_of_step(number: int, step: RankStep) -> dict[str, Any]:
    fields = asdict(step) | {"number": number}
    fields["marks"] = [[mark.kind.value, mark.what, mark.at_ns] for mark in step.marks]
    return fields


def read_recording(path: Path) -> RankTrace:
    """Read the recording of a rank.

    Raises
    ------
    InputError
        It is not there, or no recording; with the step and the field that cannot be used.
    """
    document = _document(path)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise InputError(f"{path}: is no recording ({_FORMAT!r}); expected a file that ddlsched record wrote")
    rank, num_ranks = (_whole(f"{path}, field {name}", document.get(name)) for name in ("rank", "ranks"))
    groups = document.get("groups")
    steps = document.get("steps")
    if not isinstance(groups, dict) or not isinstance(steps, list) or not steps:
        raise InputError(f"{path}: has no groups or no steps; expected an object and a list")
    found = {}
    for place, step in enumerate(steps):
        where = f"{path}, step {place + 1}"
        if not isinstance(step, dict):
            raise InputError(f"{where}: is {abbreviated(step)}; expected an object")
        found[_whole(f"{where}, field number", step.get("number"))] = _step(where, step)
    ranks = {name: ranks_of(f"{path}, group {name!r}", each) for name, each in groups.items()}
    nodes = sum(len(step.marks) for step in found.values())
    trace = RankTrace(str(path), rank, num_ranks, ranks, found, nodes)
    trace.refuse_no_communication()
    return trace


def _document(path: Path) -> Any:
    try:
        with opened(path, _MOST_BYTES) as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            plain = bounded(gzip.GzipFile(fileobj=file), str(path), _MOST_BYTES) if zipped else file
            return json.loads(plain.read())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a recording") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); expected a whole, readable file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({first_line(error)}); expected a recording") from None


def _whole(where: str, value: Any, at_least: int = 0) -> int:
    if not is_whole(value, at_least):
        raise InputError(f"{where}: is {abbreviated(value)}; expected a whole number from {at_least}")
    return int(value)


def _step(where: str, step: Mapping[str, Any]) -> RankStep:
    communications, marks = step.get("communications"), step.get("marks")
    if not isinstance(communications, list) or not isinstance(marks, list):
        raise InputError(f"{where}: communications or marks are no list; expected a list of each")
    made = tuple(_communication(f"{where}, communication {n + 1}", each) for n, each in enumerate(communications))
    compute_ns = _whole(f"{where}, field compute_ns", step.get("compute_ns"))
    found = tuple(_mark(f"{where}, mark {n + 1}", each, len(made)) for n, each in enumerate(marks))
    times_ns = [*(mark.at_ns for mark in found), compute_ns]
    if times_ns != sorted(times_ns):
        raise InputError(f"{where}, field marks: their times fall; expected the order of the program")
    _refuse_early_waits(where, found, len(made))
    return RankStep(
        compute_ns,
        made,
        found,
        _whole(f"{where}, field wall_ns", step.get("wall_ns")),
        tuple(_stretch(f"{where}, field stalls_ns", each) for each in step.get("stalls_ns", ())),
        _whole(f"{where}, field begin_ns", step.get("begin_ns"), -MAX_NS),
    )


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


def _communication(where: str, found: Any) -> Communication:
    if not isinstance(found, dict) or found.get("kind") not in _KINDS or not isinstance(found.get("group"), str):
        raise InputError(f"{where}: is {abbreviated(found)}; expected kind, input_bytes and group")
    measured = found.get("measured_ns")
    return Communication(
        found["kind"],
        _whole(f"{where}, field input_bytes", found.get("input_bytes")),
        found["group"],
        measured_ns=None if measured is None else _stretch(f"{where}, field measured_ns", measured),
    )


def _stretch(where: str, found: Any) -> tuple[int, int]:
    if not isinstance(found, list) or len(found) != 2:
        raise InputError(f"{where}: is {abbreviated(found)}; expected two times")
    begin, end = (_whole(where, each, -MAX_NS) for each in found)
    return begin, end


def _mark(where: str, found: Any, count: int) -> Mark:
    kinds = {kind.value: kind for kind in MarkKind}
    if not isinstance(found, list) or len(found) != 3 or found[0] not in kinds:
        raise InputError(f"{where}: is {abbreviated(found)}; expected kind, what and time")
    kind, what = kinds[found[0]], found[1]
    good = isinstance(what, str) and what.isidentifier() if kind is MarkKind.PHASE else is_whole(what, 0, count - 1)
    if not good:
        raise InputError(f"{where}: is of {abbreviated(what)}; expected a phase or a communication of the step")
    return Mark(kind, what, _whole(where, found[2]))
