"""What placements choose by: which GPUs have memory for a job, and the load of each."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import ONE, ZERO
from ddlsched.engine.loop.skipping.dormancy import dormant_done_ns
from ddlsched.engine.loop.time_accounts import simulated_for
from ddlsched.engine.native.jit import NUMBERS, STATE, called_from_python, njit
from ddlsched.engine.records import State


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
    """The first place in ``queue``, from ``place`` to ``end``, of a job for which enough GPUs have memory, or -1."""
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


@njit
def load_of(s: State, gpu: int) -> int:
    """The load of a GPU: its residents' remaining compute and communication, nanoseconds."""
    compute_ns = load_ns = np.int64(0)
    for place in range(s.gpus[gpu].num_residents):
        number = s.residents[gpu, place]
        job = s.jobs[s.workers[number].job]
        simulated = s.workers[simulated_for(s, job, number)]
        done_ns = simulated.done_ns
        if job.dormant == 1:
            more_ns, sent_ns = dormant_done_ns(s, job)
            done_ns += more_ns
            load_ns -= sent_ns
        own_ns = job.compute_ns - s.workers[number].spared_ns
        left_ns = own_ns * job.start_iterations_left - done_ns
        if len(s.speeds) > 0:
            left_ns = np.int64(np.rint(left_ns / s.speeds[job.speed_row, s.gpus[gpu].kind]))
        compute_ns += left_ns
        load_ns += job.load_left_ns + (simulated.load_left_ns if job.grouped == 1 else 0)
    if s.gpus[gpu].relative_speed != 1.0:
        compute_ns = np.int64(np.rint(compute_ns / s.gpus[gpu].relative_speed))
    return load_ns + compute_ns


@called_from_python(STATE, NUMBERS, NUMBERS)
def fill_loads(s: State, gpus: np.ndarray, load_ns: np.ndarray) -> None:
    """Fill ``load_ns`` with the load of each GPU of ``gpus``."""
    for i in range(len(gpus)):
        load_ns[i] = load_of(s, gpus[i])
