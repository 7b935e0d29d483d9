"""Many runs stepped by an order: which of the waiting jobs starts next, and on which GPUs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.engine.field_values import ONE, ZERO, JobState, Question
from ddlsched.engine.loop.batch.runs import Standing, StepsOfADoor
from ddlsched.engine.loop.batch.starts import StartTables, begin_round, end_round, observe_job, room_of, starts_here
from ddlsched.engine.loop.room import load_of
from ddlsched.engine.native.jit import njit

BY_LOAD, BY_SERVER, BY_SERVER_LOAD = 1, 2, 3
"""What GPUs are ordered by, in a row of ``orders``; 0 in place of the keys that a job's order has not."""
NO_ORDER = -1
"""In place of the first key: Python is asked."""
MOST_KEYS = 3
_MOST_LOAD = 1 << 61


@njit
def choose_gpus(s, number, order, first_gpus, multiples, columns, gpus):
    """Write the GPUs that a job gets, in placement order; return whether that was possible in 64 bits.

    ``order`` are the keys; ``multiples`` are, of each server, the common multiple of all servers' GPUs / its own, by
    which sums of loads become comparable means; ``columns``, of shape (GPUs, keys), is scratch. At least as many GPUs
    as the job needs must be eligible.
    """
    job = s.jobs[number]
    count = ZERO
    for server in range(len(first_gpus) - 1):
        server_load, known = ZERO, False
        for gpu in range(first_gpus[server], first_gpus[server + 1]):
            if s.gpus[gpu].free_bytes < job.memory_bytes:
                continue
            for key in range(MOST_KEYS):
                column = ZERO
                if order[key] == BY_LOAD:
                    column = load_of(s, gpu)
                elif order[key] == BY_SERVER:
                    column = server
                elif order[key] == BY_SERVER_LOAD:
                    if not known:
                        server_load, known = _server_load(s, server, first_gpus, multiples), True
                        if server_load < 0:
                            return False
                    column = server_load
                columns[gpu, key] = column
            gpus[count] = gpu
            count += 1
    _sort_first(gpus, count, job.num_gpus, columns)
    return True


@njit
def _server_load(s, server, first_gpus, multiples):
    """The sum of the loads of a server's GPUs x its multiple, or -1 if that might be too large."""
    total = ZERO
    for gpu in range(first_gpus[server], first_gpus[server + 1]):
        total += load_of(s, gpu)
        if total > _MOST_LOAD // multiples[server]:
            return -ONE
    return total * multiples[server]


@njit
def _before(columns, gpu, other):
    for key in range(MOST_KEYS):
        if columns[gpu, key] != columns[other, key]:
            return columns[gpu, key] < columns[other, key]
    return gpu < other


@njit
def _sort_first(gpus, count, needed, columns):
    """Bring the first so many of some GPUs to the front, in order."""
    for place in range(ONE, count):
        gpu = gpus[place]
        hole = place
        if place >= needed:
            if not _before(columns, gpu, gpus[needed - 1]):
                continue
            hole = needed - 1
        while hole > 0 and _before(columns, gpu, gpus[hole - 1]):
            gpus[hole] = gpus[hole - 1]
            hole -= 1
        gpus[hole] = gpu


class OrderArrays(NamedTuple):
    """The arrays of many runs whose order is decided outside, a row a run unless it says otherwise.

    Attributes
    ----------
    queue, mask
        What ``OrderEnv`` observes; ``mask`` also says who has room while nobody is asked.
    seen
        The jobs of the queue that are seen, by number.
    refused
        Whether the placement policy has refused a job of these in this round.
    room
        How many GPUs have the memory for each of these, and how many on the best server.
    gpus
        Those that are chosen for the job that starts, in placement order; -1 first: Python has to choose.
    orders
        What GPUs are ordered by for a job of as many GPUs as the row, ``MOST_KEYS`` numbers; one for all runs.
    first_gpus, multiples
        Of each server: its first GPU, and behind the last; and as of ``choose_gpus``. One for all runs.
    columns
        Scratch of ``choose_gpus``.
    starts
        What starts jobs.
    """

    queue: np.ndarray
    mask: np.ndarray
    seen: np.ndarray
    refused: np.ndarray
    room: np.ndarray
    gpus: np.ndarray
    orders: np.ndarray
    first_gpus: np.ndarray
    multiples: np.ndarray
    columns: np.ndarray
    starts: StartTables


@njit
def _see_next(s, run, i, a):
    """See jobs of the queue while there is a slot for them; ``place`` is the next of the queue."""
    while run.num_chosen < a.seen.shape[1] and run.place < run.count:
        a.seen[i, run.num_chosen] = s.queue[run.place]
        a.refused[i, run.num_chosen] = ZERO
        run.num_chosen += 1
        run.place += 1


@njit
def _leave_slot(s, run, i, slot, a):
    """A job has started: the others move up."""
    for place in range(slot, run.num_chosen - 1):
        a.seen[i, place], a.refused[i, place] = a.seen[i, place + 1], a.refused[i, place + 1]
    run.num_chosen -= 1
    _see_next(s, run, i, a)


@njit
def _choices(s, run, i, a):
    """Say who has room and whether nobody may start, and return how many actions are allowed, and the first of them."""
    slots = a.seen.shape[1]
    count, first = ZERO, ZERO
    for slot in range(slots):
        a.mask[i, slot] = ZERO
        if slot >= run.num_chosen:
            continue
        job = s.jobs[a.seen[i, slot]]
        if slot > 0 and s.jobs[a.seen[i, slot - 1]].memory_bytes == job.memory_bytes:
            a.room[i, slot, 0], a.room[i, slot, 1] = a.room[i, slot - 1, 0], a.room[i, slot - 1, 1]
        else:
            a.room[i, slot, 0], a.room[i, slot, 1] = room_of(s, job, a.first_gpus)
        if a.room[i, slot, 0] >= job.num_gpus and a.refused[i, slot] == 0:
            a.mask[i, slot] = ONE
            first = slot if count == 0 else first
            count += 1
    a.mask[i, slots] = ZERO
    if count > 0 and s.run[0].allocated_gpus > 0:
        a.mask[i, slots] = ONE
        count += 1
    return count, first


@njit
def _observe(s, run, i, a):
    """Write what is seen of the queue."""
    for slot in range(a.seen.shape[1]):
        if slot < run.num_chosen:
            observe_job(s, a.seen[i, slot], a.room[i, slot, 0], a.room[i, slot, 1], a.queue[i, slot])
        else:
            a.queue[i, slot, :] = 0.0


@njit
def _act(s, run, i, a):
    """Do what was decided, and return what the run then stands at."""
    slot = run.action
    if slot == a.seen.shape[1]:
        end_round(s, run)
        return Standing.EVENTS.value
    number, gpus = a.seen[i, slot], a.gpus[i]
    order = a.orders[s.jobs[number].num_gpus]
    chosen = order[0] != NO_ORDER and choose_gpus(s, number, order, a.first_gpus, a.multiples, a.columns, gpus)
    if not chosen:
        gpus[0] = -ONE
    if not chosen or not starts_here(s, run, i, number, gpus, a.starts):
        run.job, run.question = slot, Question.PLACEMENT.value
        return Standing.QUESTION.value
    _leave_slot(s, run, i, slot, a)
    return Standing.EVENTS.value


@njit
def _note_answer(s, run, i, a):
    """Python has started a job, or the placement policy has refused it."""
    slot, run.job = run.job, -ONE
    if s.jobs[a.seen[i, slot]].state == JobState.QUEUED:
        a.refused[i, slot] = ONE
    else:
        _leave_slot(s, run, i, slot, a)


@njit
def _go_through(s, run, i, a):
    """Start who of the queue starts without a choice, and return what the run then stands at."""
    if run.job >= 0:
        _note_answer(s, run, i, a)
    count, run.action = _choices(s, run, i, a)
    if count == 0:
        end_round(s, run)
        return Standing.EVENTS.value
    if count > 1:
        return Standing.DECISION.value
    return _act(s, run, i, a)


@njit
def _open_round(s, run, i, a):
    """The queue is to be placed: the first of it are seen. ``place`` is the next to be seen, of ``num_chosen``."""
    begin_round(s, run, i, a)
    run.num_chosen = ZERO
    _see_next(s, run, i, a)


ORDER_STEPS = StepsOfADoor(Question.PLACEMENT, _go_through, _act, _open_round, _observe)
"""A run whose question is ``PLACEMENT`` has the job that is seen at the place ``job`` for Python to start."""
