"""How many GPUs elastic jobs get, decided by somebody outside of the run, for many runs in one call."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numba
import numpy as np
from numba import types

from ddlsched.engine.loop.stepped_runs import STEPPED_RUN, Standing, advance_at, count_job_seconds, log_share
from ddlsched.engine.native.jit import called_from_python, compiling, njit, state_at
from ddlsched.engine.records.field_values import ONE, ZERO

__all__ = ["AllocationSteps", "compile_decisions", "decide_sizes"]


class AllocationSteps(NamedTuple):
    """The arrays of many runs whose jobs get their GPUs from outside, a row a run.

    Attributes
    ----------
    job, cluster, mask
        What ``AllocationEnv`` observes.
    least, most
        Of each job, by number: the fewest and most GPUs on which it runs.
    there, held, hold_until_ns, given
        Of each job that is there, in the order of arrival: its number, how many GPUs it has, until when it makes no
        progress, and how many GPUs it gets in the round.
    """

    job: np.ndarray
    cluster: np.ndarray
    mask: np.ndarray
    least: np.ndarray
    most: np.ndarray
    there: np.ndarray
    held: np.ndarray
    hold_until_ns: np.ndarray
    given: np.ndarray


@njit
def _samples_left(job, now_ns):
    """The samples of a job's iterations that have not ended."""
    ended = job.start_iterations_left - job.iterations_left
    if job.dormant == 1:
        ended += (now_ns - job.dormant_since_ns) // job.period_ns
    return max(job.samples_left - ended * job.batch, ZERO)


@njit
def _observe(s, stepped, i, a):
    """Write what is seen of the job whose turn it is, and of the GPUs that are left."""
    number, now_ns, num_gpus = a.there[i, stepped.place], s.run[0].now_ns, s.run[0].num_gpus
    job, held, seen = s.jobs[number], a.held[i, stepped.place], a.job[i]
    seen[0], seen[1] = held / num_gpus, a.least[i, number] / num_gpus
    seen[2] = min(a.most[i, number], num_gpus) / num_gpus
    seen[3] = log_share(float(_samples_left(job, now_ns)))
    seen[4] = log_share(now_ns / 1e9 - job.arrival_s)
    seen[5] = log_share(max(a.hold_until_ns[i, stepped.place] - now_ns, ZERO) / 1e9) if held > 0 else 0.0
    seen = a.cluster[i]
    seen[0] = stepped.num_chosen / num_gpus
    seen[1], seen[2] = log_share(float(stepped.count - 1 - stepped.place)), log_share(float(stepped.count))


@njit
def _give(stepped, i, num_gpus, a):
    """The job whose turn it is gets so many GPUs."""
    a.given[i, stepped.place] = num_gpus
    stepped.num_chosen -= num_gpus
    stepped.place += 1


@njit
def _go_through(stepped, i, a):
    """Give jobs what needs no choice, up to one that does; return whether there is such, with the mask written."""
    while stepped.place < stepped.count:
        number = a.there[i, stepped.place]
        least, most = a.least[i, number], min(a.most[i, number], stepped.num_chosen)
        last_chance = stepped.num_chosen == stepped.num_started and stepped.place + 1 == stepped.count
        if most < least:
            _give(stepped, i, ZERO, a)
        elif last_chance and most == least:
            _give(stepped, i, least, a)
        else:
            a.mask[i, :] = ZERO
            a.mask[i, least : most + 1] = ONE
            a.mask[i, 0] = ZERO if last_chance else ONE
            return True
    return False


@called_from_python
def decide_sizes(runs, a, loop_address):
    """Take each run whose events or action come next to its next decision or question.

    ``runs`` are records of :data:`~ddlsched.engine.loop.stepped_runs.STEPPED_RUN`, of which ``num_started`` are the
    GPUs that there are and ``num_chosen`` those that are left, and ``in_round`` is 1 once Python has written who is
    there; ``a`` are :class:`AllocationSteps`. A run that stands at a question with ``in_round`` 1 is through the round.
    """
    for i in range(len(runs)):
        stepped = runs[i]
        if stepped.standing >= Standing.DECISION.value:
            continue
        s = state_at(stepped.state)
        if stepped.standing == Standing.ACTION.value:
            _give(stepped, i, stepped.action, a)
        stepped.standing = Standing.QUESTION.value
        if stepped.in_round == 0:
            stepped.question = advance_at(loop_address, s)
        elif _go_through(stepped, i, a):
            stepped.standing = Standing.DECISION.value
            stepped.num_decisions += 1
            count_job_seconds(s, stepped)
            _observe(s, stepped, i, a)


@functools.cache
def compile_decisions() -> None:
    """Compile what is called here, or load it."""
    number, real = numba.int64, numba.float32
    arrays = [real[:, ::1], real[:, ::1], numba.int8[:, ::1], *[number[:, ::1]] * 6]
    steps = types.NamedTuple(tuple(arrays), AllocationSteps)
    with compiling():
        decide_sizes.compile((numba.from_dtype(STEPPED_RUN)[::1], steps, number))
