"""A heap of events by time, for compiled code that allocates nothing."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["OPTIONS", "compiled", "event_heap", "pop", "push"]

OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""Reference counting is off, as nothing allocates: it would cost several times the work itself."""
_njit: Any = numba.njit
compiled = _njit(**OPTIONS)

_EVENT = np.dtype([("time_s", np.float64), ("code", np.int64)], align=True)


def event_heap(most: int) -> np.ndarray:
    """Return a heap for so many events at once; its first entry's ``code`` counts them."""
    return np.zeros(most + 1, _EVENT)


@compiled
def push(heap, time_s, code):
    """Add an event; of events at one time the order is that of what was added and taken before."""
    heap[0].code += 1
    place = heap[0].code
    while place > 1 and heap[place // 2].time_s > time_s:
        above = heap[place // 2]
        heap[place].time_s, heap[place].code = above.time_s, above.code
        place //= 2
    heap[place].time_s, heap[place].code = time_s, code


@compiled
def pop(heap):
    """Take the first event; return its time and code."""
    time_s, code = heap[1].time_s, heap[1].code
    last = heap[heap[0].code]
    last_s, last_code = last.time_s, last.code
    heap[0].code -= 1
    count, place = heap[0].code, 1
    while 2 * place <= count:
        below = 2 * place
        if below < count and heap[below + 1].time_s < heap[below].time_s:
            below += 1
        if heap[below].time_s >= last_s:
            break
        heap[place].time_s, heap[place].code = heap[below].time_s, heap[below].code
        place = below
    heap[place].time_s, heap[place].code = last_s, last_code
    return time_s, code
