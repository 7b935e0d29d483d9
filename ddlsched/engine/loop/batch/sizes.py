"""How many GPUs elastic jobs get, decided by somebody outside of the run; Python begins each round, and ends it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.engine.field_values import ONE, ZERO
from ddlsched.engine.loop.batch.runs import Standing, StepsOfADoor, log_share
from ddlsched.engine.native.jit import njit


class SizeArrays(NamedTuple):
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
def _observe(s, run, i, a):
    """Write what is seen of the job whose turn it is, and of the GPUs that are left."""
    number, now_ns, num_gpus = a.there[i, run.place], s.run[0].now_ns, s.run[0].num_gpus
    job, held, seen = s.jobs[number], a.held[i, run.place], a.job[i]
    seen[0], seen[1] = held / num_gpus, a.least[i, number] / num_gpus
    seen[2] = min(a.most[i, number], num_gpus) / num_gpus
    seen[3] = log_share(float(_samples_left(job, now_ns)))
    seen[4] = log_share(now_ns / 1e9 - job.arrival_s)
    seen[5] = log_share(max(a.hold_until_ns[i, run.place] - now_ns, ZERO) / 1e9) if held > 0 else 0.0
    seen = a.cluster[i]
    seen[0] = run.num_chosen / num_gpus
    seen[1], seen[2] = log_share(float(run.count - 1 - run.place)), log_share(float(run.count))


@njit
def _give(run, i, num_gpus, a):
    """The job whose turn it is gets so many GPUs."""
    a.given[i, run.place] = num_gpus
    run.num_chosen -= num_gpus
    run.place += 1


@njit
def _go_through(s, run, i, a):
    """Give jobs what needs no choice, up to one that does, whose mask is written."""
    while run.place < run.count:
        number = a.there[i, run.place]
        least, most = a.least[i, number], min(a.most[i, number], run.num_chosen)
        last_chance = run.num_chosen == run.num_started and run.place + 1 == run.count
        if most < least:
            _give(run, i, ZERO, a)
        elif last_chance and most == least:
            _give(run, i, least, a)
        else:
            a.mask[i, :] = ZERO
            a.mask[i, least : most + 1] = ONE
            a.mask[i, 0] = ZERO if last_chance else ONE
            return Standing.DECISION.value
    return Standing.QUESTION.value


@njit
def _act(s, run, i, a):
    """Give the job whose turn it is what was decided."""
    _give(run, i, run.action, a)
    return Standing.EVENTS.value


SIZE_STEPS = StepsOfADoor(None, _go_through, _act, observe=_observe)
"""Of the runs ``num_started`` are the GPUs that there are, ``num_chosen`` those that are left, and ``in_round`` is 1
once Python has written who is there. A run that stands at a question with ``in_round`` 1 is through the round."""
