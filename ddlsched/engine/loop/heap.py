"""The event heap: the earliest end first; the order of equal ends does not matter (step 1 takes them all)."""

from __future__ import annotations

from ddlsched.engine.loop.codes import ZERO
from ddlsched.engine.loop.jit import njit


@njit
def sift_up(heap, position, end_ns, place):
    item, end = heap[place], end_ns[place]
    while place > 0:
        parent = (place - 1) >> 1
        if end_ns[parent] <= end:
            break
        heap[place], end_ns[place] = heap[parent], end_ns[parent]
        position[heap[place]] = place
        place = parent
    heap[place], end_ns[place] = item, end
    position[item] = place


@njit
def sift_down(heap, position, end_ns, size, place):
    item, end = heap[place], end_ns[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and end_ns[child + 1] < end_ns[child]:
            child += 1
        if end_ns[child] >= end:
            break
        heap[place], end_ns[place] = heap[child], end_ns[child]
        position[heap[place]] = place
        place = child
    heap[place], end_ns[place] = item, end
    position[item] = place


@njit
def schedule(run, heap, position, end_ns, item, end):
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
def unschedule(run, heap, position, end_ns, item):
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
def take_first(run, heap, position, end_ns):
    item = heap[0]
    position[item] = -1
    run.heap_size -= 1
    last = run.heap_size
    if last > 0:
        heap[0], end_ns[0] = heap[last], end_ns[last]
        sift_down(heap, position, end_ns, last, ZERO)
    return item
