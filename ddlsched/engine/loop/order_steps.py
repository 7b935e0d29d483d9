"""Who of the queue starts next, decided by somebody outside of the run, for many runs in one call."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numba
import numpy as np
from numba import types

from ddlsched.engine.loop.gpu_choice import NO_ORDER, choose_gpus
from ddlsched.engine.loop.start_steps import begin_round, end_round, observe_job, room_of, starts_here, tables_type
from ddlsched.engine.loop.stepped_runs import STEPPED_RUN, Standing, advance_at, count_job_seconds
from ddlsched.engine.native.jit import called_from_python, compiling, njit, state_at
from ddlsched.engine.records.field_values import ONE, ZERO, JobState, Question

__all__ = ["OrderSteps", "compile_decisions", "decide_order"]


class OrderSteps(NamedTuple):
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


@njit
def _see_next(s, stepped, i, a):
    """See jobs of the queue while there is a slot for them; ``place`` is the next of the queue."""
    while stepped.num_chosen < a.seen.shape[1] and stepped.place < stepped.count:
        a.seen[i, stepped.num_chosen] = s.queue[stepped.place]
        a.refused[i, stepped.num_chosen] = ZERO
        stepped.num_chosen += 1
        stepped.place += 1


@njit
def _leave_slot(s, stepped, i, slot, a):
    """A job has started: the others move up."""
    for place in range(slot, stepped.num_chosen - 1):
        a.seen[i, place], a.refused[i, place] = a.seen[i, place + 1], a.refused[i, place + 1]
    stepped.num_chosen -= 1
    _see_next(s, stepped, i, a)


@njit
def _choices(s, stepped, i, a):
    """Say who has room and whether nobody may start, and return how many actions are allowed, and the first of them."""
    slots = a.seen.shape[1]
    count, first = ZERO, ZERO
    for slot in range(slots):
        a.mask[i, slot] = ZERO
        if slot >= stepped.num_chosen:
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
def _observe(s, stepped, i, a):
    """Write what is seen of the queue."""
    for slot in range(a.seen.shape[1]):
        if slot < stepped.num_chosen:
            observe_job(s, a.seen[i, slot], a.room[i, slot, 0], a.room[i, slot, 1], a.queue[i, slot])
        else:
            a.queue[i, slot, :] = 0.0


@njit
def _act(s, stepped, i, a, t, placing_address):
    """Do what was decided, and return what the run then stands at."""
    slot = stepped.action
    if slot == a.seen.shape[1]:
        end_round(s, stepped)
        return Standing.EVENTS.value
    number, gpus = a.seen[i, slot], a.gpus[i]
    order = a.orders[s.jobs[number].num_gpus]
    chosen = order[0] != NO_ORDER and choose_gpus(s, number, order, a.first_gpus, a.multiples, a.columns, gpus)
    if not chosen:
        gpus[0] = -ONE
    if not chosen or not starts_here(s, stepped, i, number, gpus, t, placing_address):
        stepped.job, stepped.question = slot, Question.PLACEMENT.value
        return Standing.QUESTION.value
    _leave_slot(s, stepped, i, slot, a)
    return Standing.EVENTS.value


@njit
def _note_answer(s, stepped, i, a):
    """Python has started a job, or the placement policy has refused it."""
    slot, stepped.job = stepped.job, -ONE
    if s.jobs[a.seen[i, slot]].state == JobState.QUEUED:
        a.refused[i, slot] = ONE
    else:
        _leave_slot(s, stepped, i, slot, a)


@njit
def _go_through(s, stepped, i, a, t, placing_address):
    """Start who of the queue starts without a choice, and return what the run then stands at."""
    if stepped.job >= 0:
        _note_answer(s, stepped, i, a)
    count, stepped.action = _choices(s, stepped, i, a)
    if count == 0:
        end_round(s, stepped)
        return Standing.EVENTS.value
    if count > 1:
        return Standing.DECISION.value
    return _act(s, stepped, i, a, t, placing_address)


@called_from_python
def decide_order(runs, a, t, loop_address, placing_address):
    """Take each run whose events or action come next to its next decision or question.

    ``runs`` are records of :data:`~ddlsched.engine.loop.stepped_runs.STEPPED_RUN`, of which ``place`` is the next of
    the queue to be seen and ``num_chosen`` how many are seen; ``a`` are :class:`OrderSteps`, ``t``
    :class:`~ddlsched.engine.loop.start_steps.StartTables`. A run whose question is ``PLACEMENT`` has the job that is
    seen at the place ``job`` for Python to start.
    """
    for i in range(len(runs)):
        stepped = runs[i]
        if stepped.standing >= Standing.DECISION.value:
            continue
        s = state_at(stepped.state)
        if stepped.standing == Standing.ACTION.value:
            stepped.standing = _act(s, stepped, i, a, t, placing_address)
        while stepped.standing == Standing.EVENTS.value:
            if stepped.in_round == 1:
                stepped.standing = _go_through(s, stepped, i, a, t, placing_address)
                continue
            stepped.question = advance_at(loop_address, s)
            if stepped.question == Question.PLACEMENT.value:
                begin_round(s, stepped)
                stepped.num_chosen = ZERO
                _see_next(s, stepped, i, a)
            else:
                stepped.standing = Standing.QUESTION.value
        if stepped.standing == Standing.DECISION.value:
            stepped.num_decisions += 1
            count_job_seconds(s, stepped)
            _observe(s, stepped, i, a)


@functools.cache
def compile_decisions() -> None:
    """Compile what is called here, or load it."""
    number, real, flag = numba.int64, numba.float32, numba.int8
    arrays = [real[:, :, ::1], flag[:, ::1], number[:, ::1], flag[:, ::1], number[:, :, ::1], number[:, ::1]]
    of_cluster = [number[:, ::1], number[::1], number[::1], number[:, ::1]]
    steps = types.NamedTuple((*arrays, *of_cluster), OrderSteps)
    with compiling():
        decide_order.compile((numba.from_dtype(STEPPED_RUN)[::1], steps, tables_type(), number, number))
