"""What ``torch.profiler`` wrote: the events of a Kineto trace that tell what a rank computed and communicated."""

from __future__ import annotations

import json
import re
import zlib
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ddlsched.errors import InputError, abbreviated
from ddlsched.io.tables import first_line
from ddlsched.training.recorded.collective_names import groups_of_configuration, ranks_of
from ddlsched.units import is_whole
from ddlsched.workload.traces.trace_files import JsonScanner, sources

_NS_PER_US: Final = 1000.0
_EPOCH_US: Final = 1e14
_MOST_US: Final = 9e15
"""Microseconds since 1970, as recent traces count them, are 1.7e15; 64 bits hold so many nanoseconds."""
_ON_GPU: Final = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES: Final = {"cuda_runtime", "cuda_driver"}
_BACKWARD: Final = "autograd::engine::evaluate_function"
_WORKS: Final = "gloo:", "nccl:"
SINCE: Final = "of PyTorch 2.0 or later"
"""Earlier ones do not write the sizes of collectives with their calls."""


class TraceEvent(NamedTuple):
    """Something that took time.

    ``arguments`` are the event's ``args``; None where nothing of them is needed.
    """

    begin_ns: int
    end_ns: int
    thread: object
    name: str
    arguments: dict[str, Any] | None = None


@dataclass(slots=True)
class KinetoEvents:
    """The events of a trace, each list in the order of their beginnings.

    Parameters
    ----------
    source
        The file.
    rank, num_ranks, groups
        As in :class:`~.rank_steps.RankTrace`.
    steps
        ``ProfilerStep#k``.
    calls
        Calls of collectives on the host: ``c10d::`` operators and ``record_param_comms``.
    works
        What gloo did of them, and where NCCL was asked for them.
    kernels
        Computation and copies on the GPU.
    collective_kernels
        Communication on the GPU.
    launches
        When the host launched what ran on the GPU, by correlation id.
    backward
        Parts of the backward pass on the host.
    optimizer
        Steps of optimisers on the host.
    operators
        All operators on the host, beginning and end by thread.
    """

    source: str
    rank: int | None = None
    num_ranks: int | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    steps: list[TraceEvent] = field(default_factory=list)
    calls: list[TraceEvent] = field(default_factory=list)
    works: list[TraceEvent] = field(default_factory=list)
    kernels: list[TraceEvent] = field(default_factory=list)
    collective_kernels: list[TraceEvent] = field(default_factory=list)
    launches: dict[int, int] = field(default_factory=dict)
    backward: list[TraceEvent] = field(default_factory=list)
    optimizer: list[TraceEvent] = field(default_factory=list)
    operators: dict[object, list[tuple[int, int]]] = field(default_factory=dict)
    count: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def is_on_gpu(self) -> bool:
        """Whether anything ran on a GPU."""
        return bool(self.kernels or self.collective_kernels)

    def backward_end_ns(self, step: TraceEvent) -> int:
        """Return when the last part of a step's backward pass ends; only then are its collectives waited for."""
        last = bisect_left(self.backward, step.end_ns, key=lambda part: part.begin_ns)
        ends = [part.end_ns for part in self.backward[:last] if part.begin_ns >= step.begin_ns]
        return max(ends, default=step.begin_ns)


def read_events(path: Path) -> KinetoEvents:
    """Read a trace, plain or gzipped, an event at a time.

    Raises
    ------
    InputError
        It is not there, too large, cut off, no Kineto trace, or an event has a time that is none.
    """
    events = KinetoEvents(str(path))
    try:
        for number, source in enumerate(sources(path, "*.json*")):
            if number:
                raise InputError(f"{path}: is an archive of several files; expected the trace of one rank")
            _read(events, JsonScanner(source.name, source.text))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); expected a whole, readable file") from None
    of_host = events.steps, events.calls, events.works, events.backward, events.optimizer
    for of_kind in (*of_host, events.kernels, events.collective_kernels):
        of_kind.sort(key=lambda event: event.begin_ns)
    for intervals in events.operators.values():
        intervals.sort()
    return events


def _read(events: KinetoEvents, scanner: JsonScanner) -> None:
    found = False
    for key in scanner.members():
        scanner.next_character()
        if key == "traceEvents":
            found = True
            for line, event in scanner.elements():
                if isinstance(event, dict) and event.get("ph") == "X":
                    _take(events, line, event)
            continue
        value = scanner.value()
        if key == "distributedInfo":
            _take_job(events, value)
        elif key == "nodes":
            raise InputError(
                f"{events.source}: is an execution trace of PyTorch, which tells no times; expected the Kineto trace "
                "beside it, with the key traceEvents"
            )
    if not found:
        raise InputError(f"{events.source}: has no key traceEvents; expected a Kineto trace of torch.profiler")


def _take_job(events: KinetoEvents, found: Any) -> None:
    """Keep what ``distributedInfo`` tells."""
    where = f"{events.source}, distributedInfo"
    if not isinstance(found, dict):
        raise InputError(f"{where}: is {abbreviated(found)}; expected an object with rank and world_size")
    events.rank, events.num_ranks = _whole(found.get("rank"), 0), _whole(found.get("world_size"), 1)
    if "pg_config" in found:
        events.groups |= groups_of_configuration(f"{where}, pg_config", found["pg_config"])[0]


def _whole(value: Any, at_least: int) -> int | None:
    return int(value) if is_whole(value, at_least) else None


def _take(events: KinetoEvents, line: int, raw: dict[str, Any]) -> None:
    """Keep an event if it is of use."""
    category, name = raw.get("cat"), str(raw.get("name", ""))
    if category not in _TAKEN:
        return
    begin_ns = _time_ns(events, line, raw, "ts")
    duration_ns = _time_ns(events, line, raw, "dur")
    if duration_ns < 0:
        raise InputError(
            f"{events.source}, line {line}, event {name!r}, field dur: is {raw['dur']}; expected microseconds from 0"
        )
    arguments = raw.get("args")
    event = TraceEvent(begin_ns, begin_ns + duration_ns, raw.get("tid"), name, None)
    whole = event._replace(arguments=arguments if isinstance(arguments, dict) else {})
    events.count += 1
    _TAKEN[str(category)](events, event, whole)


def _time_ns(events: KinetoEvents, line: int, raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST_US:
        raise InputError(
            f"{events.source}, line {line}, event {raw.get('name')!r}, field {name}: is {abbreviated(value)}; "
            "expected microseconds"
        )
    if isinstance(value, int):
        return value * int(_NS_PER_US)
    whole_us = int(value) if abs(value) > _EPOCH_US else 0  # A float holds fractions of so many microseconds, or ns.
    return whole_us * int(_NS_PER_US) + round((value - whole_us) * _NS_PER_US)


def _take_operator(events: KinetoEvents, event: TraceEvent, whole: TraceEvent) -> None:
    name = event.name
    events.operators.setdefault(event.thread, []).append((event.begin_ns, event.end_ns))
    if name.startswith(("c10d::", "record_param_comms")):
        events.calls.append(whole)
    elif name.startswith(_WORKS):
        events.works.append(whole)
    elif name.startswith(_BACKWARD):
        events.backward.append(event)


def _take_annotation(events: KinetoEvents, event: TraceEvent, whole: TraceEvent) -> None:
    name = event.name
    if name.startswith("ProfilerStep#"):
        events.steps.append(event)
    elif name.startswith(_WORKS):
        events.works.append(whole)
    elif name.startswith("Optimizer.step#"):
        events.optimizer.append(event)


def _take_kernel(events: KinetoEvents, event: TraceEvent, whole: TraceEvent) -> None:
    if re.match(r"nccl(Dev)?Kernel", event.name):
        events.collective_kernels.append(whole)
    else:
        correlation = (whole.arguments or {}).get("correlation")
        events.kernels.append(event._replace(arguments={"correlation": correlation}))


def _take_launch(events: KinetoEvents, event: TraceEvent, whole: TraceEvent) -> None:
    correlation = (whole.arguments or {}).get("correlation")
    if is_whole(correlation, 0):
        events.launches[int(correlation)] = event.begin_ns  # type: ignore[arg-type]


def _refuse_old(events: KinetoEvents, _: TraceEvent, __: TraceEvent) -> None:
    raise InputError(f"{events.source}: its events have the categories of PyTorch 1; expected a trace {SINCE}")


_TAKEN: Final = {
    **dict.fromkeys(("Operator", "Kernel"), _refuse_old),
    "cpu_op": _take_operator,
    "user_annotation": _take_annotation,
    **dict.fromkeys(_ON_GPU, _take_kernel),
    **dict.fromkeys(_LAUNCHES, _take_launch),
}


def ranks_in_text(where: str, text: object) -> tuple[int, ...] | None:
    """Return the ranks of a text such as ``[0, 1]``; None where it is cut short or not there."""
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        return None
    return ranks_of(where, found)
