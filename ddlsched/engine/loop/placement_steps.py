"""On which servers jobs run that somebody outside of the run places, for many runs in one call."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numba
import numpy as np
from numba import types

from ddlsched.engine.loop.loads import load_of
from ddlsched.engine.loop.room import find_fitting
from ddlsched.engine.loop.start_steps import (
    begin_round,
    end_round,
    observe_job,
    room_of,
    starts_here,
    tables_type,
)
from ddlsched.engine.loop.stepped_runs import STEPPED_RUN, Standing, advance_at, count_job_seconds, log_share
from ddlsched.engine.native.jit import called_from_python, compiling, njit, state_at
from ddlsched.engine.records.field_values import ONE, ZERO, Question

__all__ = ["PlacementSteps", "compile_decisions", "decide_places"]


class PlacementSteps(NamedTuple):
    """The arrays of many runs that are placed from outside, a row a run unless it says otherwise.

    Attributes
    ----------
    job, servers, mask
        What ``PlacementEnv`` observes.
    gpus
        Those that are chosen for the job that is placed, in placement order.
    loads_ns
        Of each GPU that the job may still be given; -1 of others.
    first_gpus
        Of each server, and behind the last; one for all runs.
    """

    job: np.ndarray
    servers: np.ndarray
    mask: np.ndarray
    gpus: np.ndarray
    loads_ns: np.ndarray
    first_gpus: np.ndarray


@njit
def _begin_job(s, stepped, i, a):
    """The job at the place of the queue is to be placed: look at the GPUs that have room for it."""
    stepped.job, stepped.num_chosen = s.queue[stepped.place], ZERO
    job = s.jobs[stepped.job]
    eligible, most = room_of(s, job, a.first_gpus)
    observe_job(s, stepped.job, eligible, most, a.job[i])
    for gpu in range(len(s.gpus)):
        a.loads_ns[i, gpu] = load_of(s, gpu) if s.gpus[gpu].free_bytes >= job.memory_bytes else -ONE
    for server in range(len(a.first_gpus) - 1):
        _observe_server(i, server, a)


@njit
def _observe_server(i, server, a):
    """Write what is seen of a server of which the job has no GPU."""
    count, least_ns = ZERO, ZERO
    for gpu in range(a.first_gpus[server], a.first_gpus[server + 1]):
        load_ns = a.loads_ns[i, gpu]
        if load_ns >= 0:
            least_ns = load_ns if count == 0 else min(least_ns, load_ns)
            count += 1
    seen = a.servers[i, server]
    seen[0], seen[1], seen[2] = count / _most_gpus(a), 0.0, log_share(least_ns / 1e9)
    a.mask[i, server] = ONE if count > 0 else ZERO


@njit
def _most_gpus(a):
    """The most GPUs that a server has."""
    most = ZERO
    for server in range(len(a.first_gpus) - 1):
        most = max(most, a.first_gpus[server + 1] - a.first_gpus[server])
    return most


@njit
def _take_server(s, stepped, i, server, a):
    """Give the job as many GPUs of a server as it still needs, the least-loaded first."""
    before, needed = stepped.num_chosen, s.jobs[stepped.job].num_gpus
    while stepped.num_chosen < needed:
        best = -ONE
        for gpu in range(a.first_gpus[server], a.first_gpus[server + 1]):
            load_ns = a.loads_ns[i, gpu]
            if load_ns >= 0 and (best < 0 or load_ns < a.loads_ns[i, best]):
                best = gpu
        if best < 0:
            break
        a.gpus[i, stepped.num_chosen] = best
        a.loads_ns[i, best] = -ONE
        stepped.num_chosen += 1
    for gpu in range(a.first_gpus[server], a.first_gpus[server + 1]):
        a.loads_ns[i, gpu] = -ONE
    seen = a.servers[i, server]
    seen[0], seen[1], seen[2] = 0.0, (stepped.num_chosen - before) / _most_gpus(a), 0.0
    a.mask[i, server] = ZERO


@njit
def _next_job(stepped):
    """The job has started, or waits."""
    stepped.job = -ONE
    stepped.place += 1


@njit
def _act(s, stepped, i, a):
    """Do what was decided."""
    if stepped.action == len(a.first_gpus) - 1:
        _next_job(stepped)
    else:
        _take_server(s, stepped, i, stepped.action, a)


@njit
def _choices(s, stepped, i, a):
    """Say whether the job may wait, and return how many actions are allowed, and the first of them."""
    num_servers = len(a.first_gpus) - 1
    may_wait = stepped.num_chosen == 0 and s.run[0].allocated_gpus > 0
    a.mask[i, num_servers] = ONE if may_wait else ZERO
    count, first = ZERO, -ONE
    for action in range(num_servers + 1):
        if a.mask[i, action] == 1:
            count += 1
            if first < 0:
                first = action
    return count, first


@njit
def _go_through(s, stepped, i, a, t, placing_address):
    """Place the queue as far as nobody has to choose, and return what the run then stands at; events: all is placed."""
    while True:
        if stepped.job < 0:
            place = find_fitting(s, s.queue, stepped.place, stepped.count)
            if place < 0:
                end_round(s, stepped)
                return Standing.EVENTS.value
            stepped.place = place
            _begin_job(s, stepped, i, a)
        if stepped.num_chosen == s.jobs[stepped.job].num_gpus:
            if not starts_here(s, stepped, i, stepped.job, a.gpus[i], t, placing_address):
                stepped.question = Question.PLACEMENT.value
                return Standing.QUESTION.value
            _next_job(stepped)
            continue
        count, stepped.action = _choices(s, stepped, i, a)
        if count > 1:
            return Standing.DECISION.value
        _act(s, stepped, i, a)


@called_from_python
def decide_places(runs, a, t, loop_address, placing_address):
    """Take each run whose events or action come next to its next decision or question.

    ``runs`` are records of :data:`~ddlsched.engine.loop.stepped_runs.STEPPED_RUN`, ``a`` are :class:`PlacementSteps`,
    ``t`` :class:`~ddlsched.engine.loop.start_steps.StartTables`. A run whose question is ``PLACEMENT`` has a job for
    Python to start, on the GPUs that are chosen.
    """
    for i in range(len(runs)):
        stepped = runs[i]
        if stepped.standing >= Standing.DECISION.value:
            continue
        s = state_at(stepped.state)
        if stepped.standing == Standing.ACTION.value:
            _act(s, stepped, i, a)
        stepped.standing = Standing.EVENTS.value
        while stepped.standing == Standing.EVENTS.value:
            if stepped.in_round == 1:
                stepped.standing = _go_through(s, stepped, i, a, t, placing_address)
                continue
            stepped.question = advance_at(loop_address, s)
            if stepped.question == Question.PLACEMENT.value:
                begin_round(s, stepped)
            else:
                stepped.standing = Standing.QUESTION.value
        if stepped.standing == Standing.DECISION.value:
            stepped.num_decisions += 1
            count_job_seconds(s, stepped)


@functools.cache
def compile_decisions() -> None:
    """Compile what is called here, or load it."""
    number, real, mask = numba.int64, numba.float32, numba.int8
    arrays = real[:, ::1], real[:, :, ::1], mask[:, ::1], number[:, ::1], number[:, ::1], number[::1]
    steps = types.NamedTuple(arrays, PlacementSteps)
    with compiling():
        decide_places.compile((numba.from_dtype(STEPPED_RUN)[::1], steps, tables_type(), number, number))
