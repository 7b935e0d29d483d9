"""Which GPUs have memory for a job."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.native.jit import NUMBER, NUMBERS, STATE, called_from_python, njit
from ddlsched.engine.records.field_values import ONE, ZERO
from ddlsched.engine.records.layout import State


@njit
def classes_with_room(s: State, free_bytes: int) -> int:
    """How many classes of memory a GPU with so much free memory has room for."""
    low, high = 0, len(s.memory_classes)
    while low < high:
        middle = (low + high) >> 1
        if s.memory_classes[middle] <= free_bytes:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def add_room(s: State, fits: int, count: int) -> None:
    place = fits + 1
    while place < len(s.room):
        s.room[place] += count
        place += place & -place


@called_from_python(STATE)
def count_room(s: State) -> None:
    """Before the first event: count all GPUs."""
    for gpu in range(len(s.gpus)):
        add_room(s, ZERO, ONE)
        change_free_bytes(s, gpu, ZERO)


@njit
def change_free_bytes(s: State, gpu: int, by_bytes: int) -> None:
    run = s.run[0]
    g = s.gpus[gpu]
    g.free_bytes += by_bytes
    fits = classes_with_room(s, g.free_bytes)
    if fits == g.fits:
        return
    add_room(s, g.fits, -ONE)
    add_room(s, fits, ONE)
    if g.fits == 0:
        g.open_place = run.num_open_gpus
        s.open_gpus[run.num_open_gpus] = gpu
        run.num_open_gpus += 1
    elif fits == 0:
        run.num_open_gpus -= 1
        last = s.open_gpus[run.num_open_gpus]
        s.open_gpus[g.open_place] = last
        s.gpus[last].open_place = g.open_place
    g.fits = fits


@njit
def find_fitting(s: State, queue: np.ndarray, place: int, end: int) -> int:
    """The first place in ``queue``, from ``place`` on, of a job for which enough GPUs have the memory, or -1."""
    if s.run[0].num_open_gpus == 0:
        return -1
    while place < end:
        job = s.jobs[queue[place]]
        too_small = 0
        node = job.memory_class + 1
        while node > 0:
            too_small += s.room[node]
            node -= node & -node
        if len(s.gpus) - too_small >= job.num_gpus:
            return place
        place += 1
    return -1


@called_from_python(STATE, NUMBERS, NUMBER)
def next_fitting(s: State, queue: np.ndarray, place: int) -> int:
    """As :func:`find_fitting`, to the end of the queue."""
    return find_fitting(s, queue, place, len(queue))


@called_from_python(STATE, NUMBER, NUMBER)
def reserve_bytes(s: State, gpu: int, by_bytes: int) -> None:
    """Keep memory of a GPU free for a job that is to move there, or, below 0, no longer."""
    change_free_bytes(s, gpu, -by_bytes)
