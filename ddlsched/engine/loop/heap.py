"""The event heap, of four children each: the earliest end first; equal ends in any order (step 1 takes them all)."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import ZERO
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records


@njit
def sift_up(heap: np.ndarray, position: np.ndarray, end_ns: np.ndarray, place: int) -> None:
    item, end = heap[place], end_ns[place]
    while place > 0:
        parent = (place - 1) >> 2
        if end_ns[parent] <= end:
            break
        heap[place], end_ns[place] = heap[parent], end_ns[parent]
        position[heap[place]] = place
        place = parent
    heap[place], end_ns[place] = item, end
    position[item] = place


@njit
def earliest_child(end_ns: np.ndarray, size: int, first: int) -> int:
    """The earliest of up to four, compared in pairs so that nothing has to be guessed."""
    if first + 3 < size:
        left = first + 1 if end_ns[first + 1] < end_ns[first] else first
        right = first + 3 if end_ns[first + 3] < end_ns[first + 2] else first + 2
        return right if end_ns[right] < end_ns[left] else left
    earliest = first
    if first + 1 < size and end_ns[first + 1] < end_ns[earliest]:
        earliest = first + 1
    if first + 2 < size and end_ns[first + 2] < end_ns[earliest]:
        earliest = first + 2
    return earliest


@njit
def sift_down(heap: np.ndarray, position: np.ndarray, end_ns: np.ndarray, size: int, place: int) -> None:
    item, end = heap[place], end_ns[place]
    while True:
        child = 4 * place + 1
        if child >= size:
            break
        child = earliest_child(end_ns, size, child)
        if end_ns[child] >= end:
            break
        heap[place], end_ns[place] = heap[child], end_ns[child]
        position[heap[place]] = place
        place = child
    heap[place], end_ns[place] = item, end
    position[item] = place


@njit
def schedule(run: Records, heap: np.ndarray, position: np.ndarray, end_ns: np.ndarray, item: int, end: int) -> None:
    """Insert an item, or move it to a new end."""
    place = position[item]
    if place < 0:
        place = run.heap_size
        run.heap_size += 1
        heap[place], end_ns[place] = item, end
        sift_up(heap, position, end_ns, place)
    elif end != end_ns[place]:
        earlier = end < end_ns[place]
        end_ns[place] = end
        if earlier:
            sift_up(heap, position, end_ns, place)
        else:
            sift_down(heap, position, end_ns, run.heap_size, place)


@njit
def unschedule(run: Records, heap: np.ndarray, position: np.ndarray, end_ns: np.ndarray, item: int) -> None:
    place = position[item]
    position[item] = -1
    run.heap_size -= 1
    last = run.heap_size
    if place != last:
        moved = heap[last]
        heap[place], end_ns[place] = moved, end_ns[last]
        sift_up(heap, position, end_ns, place)
        sift_down(heap, position, end_ns, run.heap_size, position[moved])


@njit
def take_first(run: Records, heap: np.ndarray, position: np.ndarray, end_ns: np.ndarray) -> int:
    item = heap[0]
    position[item] = -1
    run.heap_size -= 1
    last = run.heap_size
    if last > 0:
        heap[0], end_ns[0] = heap[last], end_ns[last]
        sift_down(heap, position, end_ns, last, ZERO)
    return item
