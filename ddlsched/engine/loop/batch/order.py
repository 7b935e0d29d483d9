"""Who of the queue starts next, decided by somebody outside of the run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.engine.loop.batch.gpu_choice import NO_ORDER, choose_gpus
from ddlsched.engine.loop.batch.runs import Standing, StepsOfADoor
from ddlsched.engine.loop.batch.starts import StartTables, begin_round, end_round, observe_job, room_of, starts_here
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import ONE, ZERO, JobState, Question

__all__ = ["ORDER_STEPS", "OrderArrays"]


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
