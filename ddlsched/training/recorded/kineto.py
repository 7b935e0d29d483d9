"""A rank's Kineto trace as steps: wall time, less what the rank stood still for communication.

Sizes come from the trace, times of communication do not: what a collective took contains waiting for the slowest rank.
Gaps between kernels, in which the host was busy, count as computing.

The collectives of a Kineto trace: which call on the host they are, what they move, when they were done.

A call that is not recognised is an error: without it a job would seem to communicate nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ddlsched.errors import InputError
from ddlsched.training.recorded.collective_names import BYTES_OF, GLOO, NCCL, NO_COLLECTIVES, tensor_bytes
from ddlsched.training.recorded.kineto_events import SINCE, KinetoEvents, TraceEvent, ranks_in_text, read_events
from ddlsched.training.recorded.rank_steps import (
    EVERYBODY,
    RankCommunication,
    RankStep,
    RankTrace,
    WallTime,
    message_group,
)
from ddlsched.units import is_whole


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that the host asks for.

    Parameters
    ----------
    asked
        The call itself.
    what
        The collective.
    in_backward
        Whether the backward pass makes it, as DistributedDataParallel does for a bucket.
    at_once
        Whether the caller waits for its end before going on.
    waited_ns
        When the host asks that computation wait for it, if the trace tells.
    work
        When it began and ended, waiting for other ranks included, if the trace tells.
    """

    asked: TraceEvent
    what: RankCommunication
    in_backward: bool
    at_once: bool = False
    waited_ns: int | None = None
    work: tuple[int, int] | None = None


def calls_of(events: KinetoEvents) -> list[Call]:
    """Return the collectives of a trace in the order of their calls.

    Raises
    ------
    InputError
        With the event: it is of an unknown kind, or its size or group is not told.
    """
    by_thread: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for part in events.backward:
        by_thread[part.thread].append((part.begin_ns, part.end_ns))
    recorded = [event for event in events.calls if event.name == "record_param_comms"]
    if recorded:
        calls = _nccl_calls(events, recorded, by_thread)
    elif events.collective_kernels:
        kernel = events.collective_kernels[0]
        _refuse(events, kernel, f"no record_param_comms tells of it; expected a trace {SINCE}")
    else:
        calls = _gloo_calls(events, by_thread)
    if events.works and not calls:
        _refuse(
            events,
            events.works[0],
            f"neither a call nor a kernel tells of it; expected the whole trace of a rank, {SINCE}",
        )
    return calls


def _is_within(by_thread: Mapping[object, Sequence[tuple[int, int]]], event: TraceEvent) -> bool:
    """Return whether a call is made by a part of the backward pass."""
    parts = by_thread.get(event.thread, ())
    place = bisect_right(parts, event.begin_ns, key=lambda part: part[0]) - 1
    return place >= 0 and event.begin_ns < parts[place][1]


def _refuse(events: KinetoEvents, event: TraceEvent, why: str) -> NoReturn:
    raise InputError(f"{events.source}, event {event.name!r} at {event.begin_ns / 1000:.3f} us: {why}")


def _gloo_calls(events: KinetoEvents, by_thread: Mapping[object, Sequence[tuple[int, int]]]) -> list[Call]:
    works: dict[str, deque[TraceEvent]] = defaultdict(deque)
    for work in events.works:
        works[work.name].append(work)
    groups = [name for name, ranks in events.groups.items() if len(ranks) != 1]
    calls = []
    for event in events.calls:
        if event.name not in GLOO and event.name != "c10d::reduce_scatter_":
            _refuse(events, event, f"is no collective known here; expected one of {', '.join(GLOO)}")
        if len(groups) > 1:
            _refuse(
                events, event, f"does not tell which of {len(groups)} groups it is of; expected one group with gloo"
            )
        calls.append(_gloo_call(events, event, works, _is_within(by_thread, event)))
    return calls


def _gloo_call(
    events: KinetoEvents, event: TraceEvent, works: Mapping[str, deque[TraceEvent]], in_backward: bool
) -> Call:
    """Return a call with its works, which gloo takes in the order of the calls."""
    arguments = event.arguments or {}
    kind, work_name, place = GLOO.get(event.name, ("reduce-scatter", "gloo:all_reduce", None))
    count = 1 if place is not None else (events.num_ranks or 1)
    own = [works[work_name].popleft() for _ in range(min(count, len(works[work_name])))]
    size = 0 if kind == "barrier" else _gloo_bytes(arguments, place, own)
    if size is None:
        _refuse(events, event, "its Input Dims or Input type are missing; expected a trace with record_shapes=True")
    kind, group = _peers(events, event, kind)
    concrete = [text for text in arguments.get("Concrete Inputs", ()) if text in ("True", "False")]
    return Call(
        asked=event,
        what=RankCommunication(kind, size, group),
        in_backward=in_backward,
        at_once=kind == "send" or concrete[-1:] == ["False"],
        work=(own[0].begin_ns, max(each.end_ns for each in own)) if own else None,
    )


def _gloo_bytes(arguments: Mapping[str, Any], place: int | None, works: Sequence[TraceEvent]) -> int | None:
    """Return what a rank brings, by the call's own argument or, where that tells no type, by its works."""
    shapes, types = arguments.get("Input Dims", ()), arguments.get("Input type", ())
    if place is not None and len(shapes) > place < len(types):
        size = tensor_bytes([shapes[place]], [types[place]])
        if size is not None:
            return size
    sizes = [
        tensor_bytes((work.arguments or {}).get("Input Dims"), (work.arguments or {}).get("Input type"))
        for work in works
    ]
    return sum(size or 0 for size in sizes) if sizes and None not in sizes else None


def _peers(events: KinetoEvents, event: TraceEvent, kind: str) -> tuple[str, str]:
    """Return kind and group; of a message, from which rank to which."""
    if kind not in ("send", "receive"):
        return kind, EVERYBODY
    concrete = (event.arguments or {}).get("Concrete Inputs", ())
    peer = str(concrete[2]) if len(concrete) > 2 else ""
    if events.rank is None or not peer.isdecimal():
        _refuse(events, event, "does not tell the other rank; expected a trace with record_shapes=True")
    return "send", message_group(kind, events.rank, int(peer))


def _nccl_calls(
    events: KinetoEvents, recorded: Sequence[TraceEvent], by_thread: Mapping[object, Sequence[tuple[int, int]]]
) -> list[Call]:
    kernels: dict[object, list[TraceEvent]] = defaultdict(list)
    for kernel in events.collective_kernels:
        kernels[(kernel.arguments or {}).get("External id")].append(kernel)
    waits: dict[object, list[int]] = defaultdict(list)
    for event in recorded:
        if (event.arguments or {}).get("Collective name") == "wait":
            waits[event.thread].append(event.begin_ns)
    calls = []
    for call in recorded:
        own = kernels.pop((call.arguments or {}).get("External id"), [])
        event = _described(call, own)
        arguments = event.arguments or {}
        name = arguments.get("Collective name")
        if name is None and not own:
            events.notes["record_param_comms without name and kernel, left out"] += 1
            continue
        moved = arguments.get("In msg nelems") or arguments.get("Out msg nelems")
        if name in NO_COLLECTIVES or (name != "barrier" and moved == 0):
            continue
        if name not in NCCL:
            known = ", ".join(NCCL)
            _refuse(events, event, f"Collective name is {name!r}; expected PyTorch 2.2 or later, and one of {known}")
        calls.append(_nccl_call(events, event, own, _is_within(by_thread, event), waits[event.thread]))
    for left in kernels.values():
        _refuse(events, left[0], "no record_param_comms has its External id; expected PyTorch 2.2 or later, whole")
    return calls


def _described(event: TraceEvent, kernels: Sequence[TraceEvent]) -> TraceEvent:
    """Return a call with what older versions of PyTorch tell of it elsewhere: by its kernel, or as a plain operator."""
    arguments: dict[str, Any] = {}
    for kernel in kernels:
        arguments |= kernel.arguments or {}
    arguments |= event.arguments or {}
    kinds = [found[1].lower() for kernel in kernels if (found := _KERNEL.match(kernel.name))]
    if kinds:
        arguments.setdefault("Collective name", _OF_KERNEL.get(kinds[0], kinds[0]))
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if "In msg nelems" not in arguments and isinstance(shapes, list) and isinstance(types, list):
        size = tensor_bytes(shapes[:1], types[:1])
        if size is not None:
            arguments |= {"In msg nelems": size, "dtype": "byte"}
    return event._replace(arguments=arguments)


_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+?)(?:_|\(|$)")
_OF_KERNEL = {"reducescatter": "reduce_scatter", "sendrecv": "alltoall"}


def _nccl_call(
    events: KinetoEvents, event: TraceEvent, kernels: Sequence[TraceEvent], in_backward: bool, waits: Sequence[int]
) -> Call:
    arguments = event.arguments or {}
    kind = NCCL[str(arguments["Collective name"])]
    elements: Any = arguments.get("In msg nelems")
    type_name = str(arguments.get("dtype")).lower()
    if not is_whole(elements, 0) or type_name not in BYTES_OF:
        why = f"In msg nelems is {elements!r}, dtype {type_name!r}; expected a number and a type"
        _refuse(events, event, f"{why}, which PyTorch 2.2 writes, or record_shapes=True")
    place = bisect_right(waits, event.begin_ns)
    waited_ns = waits[place] if place < len(waits) and not in_backward else None
    kind, group = (
        (kind, _nccl_group(events, event)) if kind not in ("send", "receive") else _nccl_peers(events, event, kind)
    )
    return Call(
        asked=event,
        what=RankCommunication(kind, 0 if kind == "barrier" else int(elements) * BYTES_OF[type_name], group),
        in_backward=in_backward,
        waited_ns=waited_ns,
        work=(min(k.begin_ns for k in kernels), max(k.end_ns for k in kernels)) if kernels else None,
    )


def _nccl_group(events: KinetoEvents, event: TraceEvent) -> str:
    """Return the group of a call, whose ranks are kept if the call alone tells them."""
    arguments = event.arguments or {}
    name = arguments.get("Process Group Name")
    if name is None:
        if len(events.groups) > 1:
            _refuse(events, event, "Process Group Name is missing; expected it where there are several groups")
        return EVERYBODY
    name = str(name)
    if name not in events.groups:
        ranks = ranks_in_text(f"{events.source}, group {name!r}", arguments.get("Process Group Ranks"))
        if ranks is None:
            _refuse(events, event, f"the ranks of group {name!r} are told nowhere; expected Process Group Ranks")
        events.groups[name] = ranks
    return EVERYBODY if name == "0" else name


def _nccl_peers(events: KinetoEvents, event: TraceEvent, kind: str) -> tuple[str, str]:
    arguments = event.arguments or {}
    peer: Any = arguments.get("Dst Rank" if kind == "send" else "Src Rank")
    if events.rank is None or not is_whole(peer, 0):
        _refuse(events, event, f"tells no other rank ({peer!r}); expected Src Rank or Dst Rank")
    return "send", message_group(kind, events.rank, int(peer))


class GpuTraceClock:
    """Follows the computing streams of a GPU, in the order of launches."""

    def __init__(self, events: KinetoEvents) -> None:
        def launched_ns(kernel: TraceEvent) -> int:
            return events.launches.get((kernel.arguments or {}).get("correlation", -1), kernel.begin_ns)

        self._kernels = sorted(events.kernels, key=lambda kernel: (launched_ns(kernel), kernel.begin_ns))
        self._launches = [launched_ns(kernel) for kernel in self._kernels]
        self._ended = list(accumulate((kernel.end_ns for kernel in self._kernels), max))
        self._events = events

    def reached_ns(self, at_ns: int) -> int:
        """Return when all kernels that were launched before ``at_ns`` have ended, ``at_ns`` if that is later."""
        place = bisect_left(self._launches, at_ns)
        return max(at_ns, self._ended[place - 1]) if place else at_ns

    def wait(self, call: Call, step: TraceEvent, buckets_end_ns: int) -> tuple[int, int] | None:
        """Return from when until when the next kernel after the wait stands still for a collective."""
        asked_ns = self._events.backward_end_ns(step) if call.in_backward else call.waited_ns
        if asked_ns is None or call.work is None:
            return None
        ended_ns = buckets_end_ns if call.in_backward else call.work[1]
        place = bisect_right(self._launches, asked_ns)
        if place == len(self._kernels):
            return None
        could_ns = max(self._launches[place], self._ended[place - 1] if place else 0)
        return could_ns, max(could_ns, min(self._kernels[place].begin_ns, ended_ns))


_IDLE_NS = 50_000
"""A thread that has done nothing for so long when a collective ends has waited for it."""


class HostTraceClock:
    """Takes everything to be done when the host asks for it."""

    def __init__(self, events: KinetoEvents) -> None:
        self._events = events
        self._begins = {thread: [begin for begin, _ in all_] for thread, all_ in events.operators.items()}
        self._busy_until = {
            thread: list(accumulate((end for _, end in all_), max)) for thread, all_ in events.operators.items()
        }

    def reached_ns(self, at_ns: int) -> int:
        """Return the same time."""
        return at_ns

    def wait(self, call: Call, step: TraceEvent, buckets_end_ns: int) -> tuple[int, int] | None:
        """Return from when until when the calling thread stands still for a collective."""
        if call.in_backward:
            backward_end_ns = self._events.backward_end_ns(step)
            return backward_end_ns, max(buckets_end_ns, backward_end_ns)
        if call.work is None:
            return None
        ended_ns = call.work[1]
        if call.at_once:
            return call.asked.end_ns, max(call.asked.end_ns, ended_ns)
        idle_from_ns = min(self._last_busy(call.asked.thread, ended_ns), ended_ns)
        return (idle_from_ns, ended_ns) if ended_ns - idle_from_ns >= _IDLE_NS else None

    def _last_busy(self, thread: object, at_ns: int) -> int:
        """Return until when the operators of a thread that have begun by ``at_ns`` take."""
        place = bisect_right(self._begins.get(thread, []), at_ns)
        return self._busy_until[thread][place - 1] if place else at_ns


Clock: TypeAlias = GpuTraceClock | HostTraceClock
"""When what the host asked for takes place, on the device that computes.

``wait`` returns from when until when computation stands still for a collective, None if nothing waits for it; both are
the same if it has ended by the time that it is needed. What backward calls is waited for together.
"""


def read_kineto(path: Path) -> RankTrace:
    """Read the trace of a rank; each ``ProfilerStep`` is a step, or all of it if there is none.

    Raises
    ------
    InputError
        As :func:`~.kineto_events.read_events`; a collective is not recognised or its size or group is not told, or
        there is none.
    """
    events = read_events(path)
    notes = events.notes
    steps = events.steps
    if not steps:
        notes["no ProfilerStep in the trace: all of it is one step"] += 1
        steps = [_whole(events)]
    calls = calls_of(events)
    clock: Clock = GpuTraceClock(events) if events.is_on_gpu else HostTraceClock(events)
    begins = [call.asked.begin_ns for call in calls]
    found = {}
    for number, step in enumerate(steps):
        name = step.name.partition("#")[2]
        own = calls[bisect_left(begins, step.begin_ns) : bisect_left(begins, step.end_ns)]
        found[int(name) if name.isdecimal() else number] = _step(events, clock, step, own)
    trace = RankTrace(events.source, events.rank, events.num_ranks, events.groups, found, events.count, notes=notes)
    trace.refuse_no_communication()
    return trace


def _whole(events: KinetoEvents) -> TraceEvent:
    intervals = [each for operators in events.operators.values() for each in operators]
    intervals += [(kernel.begin_ns, kernel.end_ns) for kernel in events.kernels]
    if not intervals:
        raise InputError(f"{events.source}: holds no operators or kernels; expected a trace of training")
    return TraceEvent(min(begin for begin, _ in intervals), max(end for _, end in intervals), None, "all")


def _step(events: KinetoEvents, clock: Clock, step: TraceEvent, calls: Sequence[Call]) -> RankStep:
    begin_ns = clock.reached_ns(step.begin_ns)
    stretch = WallTime(begin_ns, clock.reached_ns(step.end_ns))  # On a GPU until what the host has launched has run.
    for name, at_ns in _phases(events, clock, step):
        stretch.phase(name, at_ns)
    buckets_end_ns = max((call.work[1] for call in calls if call.in_backward and call.work), default=begin_ns)
    for call in calls:
        waited = clock.wait(call, step, buckets_end_ns)
        stretch.communicate(call.what, clock.reached_ns(call.asked.begin_ns), waited, call.work)
    return stretch.step()


def _phases(events: KinetoEvents, clock: Clock, step: TraceEvent) -> list[tuple[str, int]]:
    """Return the phases of a step and when they begin."""
    phases = [("forward", step.begin_ns)]
    for name, parts in (("backward", events.backward), ("optimizer", events.optimizer)):
        place = bisect_left(parts, step.begin_ns, key=lambda part: part.begin_ns)
        if place < len(parts) and parts[place].begin_ns < step.end_ns:
            phases.append((name, clock.reached_ns(parts[place].begin_ns)))
    return phases
