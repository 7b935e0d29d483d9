"""A rank's Kineto trace as steps: wall time, less what the rank stood still for communication.

Sizes come from the trace, times of communication do not: what a collective took contains waiting for the slowest rank.
Gaps between kernels, in which the host was busy, count as computing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

from ddlsched.errors import InputError
from ddlsched.training.recorded.kineto_calls import Call, calls_of
from ddlsched.training.recorded.kineto_events import KinetoEvents, TraceEvent, read_events
from ddlsched.training.recorded.rank_steps import RankCommunication, RankStep, RankTrace, WallTime


class GpuTraceClock:
    """Follows the computing streams of a GPU, in the order of launches."""

    def __init__(self, events: KinetoEvents) -> None:
        def launched_ns(kernel: TraceEvent) -> int:
            return events.launches.get((kernel.arguments or {}).get("correlation", -1), kernel.begin_ns)

        self._kernels = sorted(events.kernels, key=lambda kernel: (launched_ns(kernel), kernel.begin_ns))
        self._launches = [launched_ns(kernel) for kernel in self._kernels]
        self._ended = list(accumulate((kernel.end_ns for kernel in self._kernels), max))
        self._backward = events.backward

    def window(self, step: TraceEvent) -> tuple[int, int]:
        """Return a step's time on the GPU: until what the host has launched by its end has run."""
        return self.reached_ns(step.begin_ns), self.reached_ns(step.end_ns)

    def reached_ns(self, at_ns: int) -> int:
        """Return when all kernels that were launched before ``at_ns`` have ended, ``at_ns`` if that is later."""
        place = bisect_left(self._launches, at_ns)
        return max(at_ns, self._ended[place - 1]) if place else at_ns

    def wait(self, call: Call, step: TraceEvent, buckets_end_ns: int) -> tuple[int, int] | None:
        """Return from when until when the next kernel after the wait stands still for a collective."""
        asked_ns = self._backward_end(step) if call.in_backward else call.waited_ns
        if asked_ns is None or call.work is None:
            return None
        ended_ns = buckets_end_ns if call.in_backward else call.work[1]
        place = bisect_right(self._launches, asked_ns)
        if place == len(self._kernels):
            return None
        could_ns = max(self._launches[place], self._ended[place - 1] if place else 0)
        return could_ns, max(could_ns, min(self._kernels[place].begin_ns, ended_ns))

    def _backward_end(self, step: TraceEvent) -> int:
        last = bisect_left(self._backward, step.end_ns, key=lambda part: part.begin_ns)
        ends = [part.end_ns for part in self._backward[:last] if part.begin_ns >= step.begin_ns]
        return max(ends, default=step.begin_ns)


_IDLE_NS = 50_000
"""A thread that has done nothing for so long when a collective ends has waited for it."""


class HostTraceClock:
    """Takes everything to be done when the host asks for it."""

    def __init__(self, events: KinetoEvents) -> None:
        self._backward = [(part.begin_ns, part.end_ns) for part in events.backward]
        self._begins = {thread: [begin for begin, _ in all_] for thread, all_ in events.operators.items()}
        self._busy_until = {
            thread: list(accumulate((end for _, end in all_), max)) for thread, all_ in events.operators.items()
        }

    def window(self, step: TraceEvent) -> tuple[int, int]:
        """Return when a step begins and ends."""
        return step.begin_ns, step.end_ns

    def reached_ns(self, at_ns: int) -> int:
        """Return the same time."""
        return at_ns

    def wait(self, call: Call, step: TraceEvent, buckets_end_ns: int) -> tuple[int, int] | None:
        """Return from when until when the calling thread stands still for a collective."""
        if call.in_backward:
            backward_end_ns = self._backward_end(step)
            return backward_end_ns, max(buckets_end_ns, backward_end_ns)
        if call.work is None:
            return None
        ended_ns = call.work[1]
        if call.at_once:
            return call.end_ns, max(call.end_ns, ended_ns)
        idle_from_ns = min(self._last_busy(call.thread, ended_ns), ended_ns)
        return (idle_from_ns, ended_ns) if ended_ns - idle_from_ns >= _IDLE_NS else None

    def _backward_end(self, step: TraceEvent) -> int:
        """Return when the last part of a step's backward pass ends; only then are its collectives waited for."""
        last = bisect_left(self._backward, (step.end_ns, 0))
        return max((end for begin, end in self._backward[:last] if begin >= step.begin_ns), default=step.begin_ns)

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
    begins = [call.begin_ns for call in calls]
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
    begin_ns, end_ns = clock.window(step)
    stretch = WallTime(begin_ns, end_ns)
    for name, at_ns in _phases(events, clock, step):
        stretch.phase(name, at_ns)
    buckets_end_ns = max((call.work[1] for call in calls if call.in_backward and call.work), default=begin_ns)
    for call in calls:
        waited = clock.wait(call, step, buckets_end_ns)
        communication = RankCommunication(call.kind, call.input_bytes, call.group)
        stretch.communicate(communication, clock.reached_ns(call.begin_ns), waited, call.work)
    return stretch.step()


def _phases(events: KinetoEvents, clock: Clock, step: TraceEvent) -> list[tuple[str, int]]:
    """Return the phases of a step and when they begin."""
    phases = [("forward", step.begin_ns)]
    for name, parts in (("backward", events.backward), ("optimizer", events.optimizer)):
        place = bisect_left(parts, step.begin_ns, key=lambda part: part.begin_ns)
        if place < len(parts) and parts[place].begin_ns < step.end_ns:
            phases.append((name, clock.reached_ns(parts[place].begin_ns)))
    return phases
