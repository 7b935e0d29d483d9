"""The clock of a trace with a GPU: a kernel begins when it is launched and those launched before it have ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

from ddlsched.training.recorded.kineto_calls import Call
from ddlsched.training.recorded.kineto_events import KinetoEvents, TraceEvent

__all__ = ["GpuTraceClock", "HostTraceClock"]


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
