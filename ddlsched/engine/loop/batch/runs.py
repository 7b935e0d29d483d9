"""Many runs that stand still where somebody outside decides, taken from decision to decision in one call.

The loop, and what places a job, are called by their addresses: to compile them once more with what calls them would
take as long as they do themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ddlsched.engine.field_values import Question
from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.compilation import compile_loop
from ddlsched.engine.loop.placement import PLACE_JOB, place_job
from ddlsched.engine.native.jit import NUMBER, STATE, address_of, caller_of, compiled_as_called, njit, state_at
from ddlsched.policies import choosing


class Standing(IntEnum):
    """Where a run stands: its events come next; its action does; a decision is to be taken; Python is to answer."""

    EVENTS = 0
    ACTION = 1
    DECISION = 2
    QUESTION = 3


_INTEGERS = (
    "state standing question place count action num_jobs num_arrived num_there num_decisions in_round job num_chosen "
    "num_started"
)
_TYPES = dict.fromkeys(_INTEGERS.split(), np.int64) | dict.fromkeys(("now_s", "job_seconds"), np.float64)
BATCHED_RUN = np.dtype([*_TYPES.items()])
"""``state`` is the address of a state. In a round, ``in_round`` is 1, and ``place`` and ``count`` say which of the
transfers, or of the jobs, of the instant is decided about. ``job_seconds`` have passed in all, x the jobs that were
there, up to ``now_s``. While jobs are placed ``job`` is the one that is placed, or -1, ``num_chosen`` how many GPUs it
has already; ``num_started`` counts the jobs that have been placed."""

_call_loop = caller_of(NUMBER, (STATE,))
call_placing = caller_of(None, PLACE_JOB)
"""In compiled code, calls what places a job: given its address, and a tuple of the arguments of ``place_job``."""
log_share, job_features = njit(choosing.log_share), njit(choosing.job_features)
"""Those of ``policies/choosing.py``, compiled."""


@njit
def nothing(s, run, i, a):
    """Do nothing."""


class StepsOfADoor(NamedTuple):
    """What compiled code does at a door, each given a state, a run, its number, and the door's arrays.

    Attributes
    ----------
    question
        At which a round of decisions begins; None: Python begins it.
    go_through
        Do what needs no choice, and return what the run then stands at; after a round, events.
    act
        Do what was decided, and return what the run then stands at.
    open_round
        Begin a round.
    observe
        Write what is seen at a decision.
    """

    question: Question | None
    go_through: Any
    act: Any
    open_round: Any = nothing
    observe: Any = nothing

    def compiled(self, arrays: Any) -> Callable[[np.ndarray, Any], None]:
        """Compile, or load, what takes each run whose events or action come next to its next decision or question.

        Returns
        -------
        Callable
            Given runs, records of :data:`BATCHED_RUN`, and arrays of the same types as these.
        """
        compile_loop()
        loop = address_of(advance)
        if self not in _compiled:
            _compiled[self] = compiled_as_called(_decide_by(self), np.zeros(0, BATCHED_RUN), arrays, loop)
        decide = _compiled[self]
        return lambda runs, arrays: decide(runs, arrays, loop)


def placing_address() -> int:
    """Compile what places a job, or load it, and return its address, for :data:`call_placing`."""
    compile_loop()
    return address_of(place_job)


_compiled: dict[StepsOfADoor, Callable[..., None]] = {}


def _decide_by(steps: StepsOfADoor) -> Callable[..., None]:
    question = -1 if steps.question is None else steps.question.value
    go_through, act, open_round, observe = steps[1:]

    def decide(runs, a, loop_address):
        for i in range(len(runs)):
            run = runs[i]
            if run.standing >= Standing.DECISION.value:
                continue
            s = state_at(run.state)
            if run.standing == Standing.ACTION.value:
                run.standing = act(s, run, i, a)
            while run.standing == Standing.EVENTS.value:
                if run.in_round == 1:
                    run.standing = go_through(s, run, i, a)
                    continue
                run.question = _call_loop(loop_address, (s,))
                if run.question == question:
                    run.in_round = 1
                    open_round(s, run, i, a)
                else:
                    run.standing = Standing.QUESTION.value
            if run.standing == Standing.DECISION.value:
                run.num_decisions += 1
                _count_job_seconds(s, run)
                observe(s, run, i, a)

    return decide


@njit
def remaining_service_ns(job):
    """What is left of a job's service as policies see it."""
    if job.misjudged_iterations == 0 or job.iterations_left == 0:
        return job.remaining_service_ns
    more = max(job.misjudged_iterations, 1 - job.iterations_left)
    return job.remaining_service_ns + more * (job.service_ns // job.iterations)


@njit
def _count_job_seconds(s, run):
    """Count the time since the last decision x the jobs that were there."""
    now_ns, next_arrival = s.run[0].now_ns, s.run[0].next_arrival
    now_s = now_ns / 1e9
    run.job_seconds += (now_s - run.now_s) * run.num_there
    for place in range(run.num_arrived, next_arrival):
        run.job_seconds += (now_ns - s.jobs[s.arrivals[place]].arrival_ns) / 1e9
    run.num_arrived, run.now_s = next_arrival, now_s
    run.num_there = next_arrival - (run.num_jobs - s.run[0].num_jobs_left)
