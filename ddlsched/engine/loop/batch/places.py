"""On which servers jobs run that somebody outside of the run places."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.engine.field_values import ONE, ZERO, Question
from ddlsched.engine.loop.batch.runs import Standing, StepsOfADoor, log_share
from ddlsched.engine.loop.batch.starts import StartTables, begin_round, end_round, observe_job, room_of, starts_here
from ddlsched.engine.loop.room import find_fitting, load_of
from ddlsched.engine.native.jit import njit


class PlaceArrays(NamedTuple):
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
    starts
        What starts jobs.
    """

    job: np.ndarray
    servers: np.ndarray
    mask: np.ndarray
    gpus: np.ndarray
    loads_ns: np.ndarray
    first_gpus: np.ndarray
    starts: StartTables


@njit
def _begin_job(s, run, i, a):
    """The job at the place of the queue is to be placed: look at the GPUs that have room for it."""
    run.job, run.num_chosen = s.queue[run.place], ZERO
    job = s.jobs[run.job]
    eligible, most = room_of(s, job, a.first_gpus)
    observe_job(s, run.job, eligible, most, a.job[i])
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
def _take_server(s, run, i, server, a):
    """Give the job as many GPUs of a server as it still needs, the least-loaded first."""
    before, needed = run.num_chosen, s.jobs[run.job].num_gpus
    while run.num_chosen < needed:
        best = -ONE
        for gpu in range(a.first_gpus[server], a.first_gpus[server + 1]):
            load_ns = a.loads_ns[i, gpu]
            if load_ns >= 0 and (best < 0 or load_ns < a.loads_ns[i, best]):
                best = gpu
        if best < 0:
            break
        a.gpus[i, run.num_chosen] = best
        a.loads_ns[i, best] = -ONE
        run.num_chosen += 1
    for gpu in range(a.first_gpus[server], a.first_gpus[server + 1]):
        a.loads_ns[i, gpu] = -ONE
    seen = a.servers[i, server]
    seen[0], seen[1], seen[2] = 0.0, (run.num_chosen - before) / _most_gpus(a), 0.0
    a.mask[i, server] = ZERO


@njit
def _next_job(run):
    """The job has started, or waits."""
    run.job = -ONE
    run.place += 1


@njit
def _act(s, run, i, a):
    """Do what was decided."""
    if run.action == len(a.first_gpus) - 1:
        _next_job(run)
    else:
        _take_server(s, run, i, run.action, a)
    return Standing.EVENTS.value


@njit
def _choices(s, run, i, a):
    """Say whether the job may wait, and return how many actions are allowed, and the first of them."""
    num_servers = len(a.first_gpus) - 1
    may_wait = run.num_chosen == 0 and s.run[0].allocated_gpus > 0
    a.mask[i, num_servers] = ONE if may_wait else ZERO
    count, first = ZERO, -ONE
    for action in range(num_servers + 1):
        if a.mask[i, action] == 1:
            count += 1
            if first < 0:
                first = action
    return count, first


@njit
def _go_through(s, run, i, a):
    """Place the queue as far as nobody has to choose, and return what the run then stands at; events: all is placed."""
    while True:
        if run.job < 0:
            place = find_fitting(s, s.queue, run.place, run.count)
            if place < 0:
                end_round(s, run)
                return Standing.EVENTS.value
            run.place = place
            _begin_job(s, run, i, a)
        if run.num_chosen == s.jobs[run.job].num_gpus:
            if not starts_here(s, run, i, run.job, a.gpus[i], a.starts):
                run.question = Question.PLACEMENT.value
                return Standing.QUESTION.value
            _next_job(run)
            continue
        count, run.action = _choices(s, run, i, a)
        if count > 1:
            return Standing.DECISION.value
        _act(s, run, i, a)


PLACE_STEPS = StepsOfADoor(Question.PLACEMENT, _go_through, _act, begin_round)
"""A run whose question is ``PLACEMENT`` has a job for Python to start, on the GPUs that are chosen."""
