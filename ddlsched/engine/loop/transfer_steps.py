"""Decisions about transfers that somebody outside of the run takes, for many runs in one call.

A run stands here between two decisions; the loop is called by its address, as to compile it once more with what calls
it would take as long as the loop itself. What else the loop asks for goes back to Python.
"""

from __future__ import annotations

import functools
import math
from enum import IntEnum

import numba
import numpy as np
from numba.core import types
from numba.core.cgutils import alloca_once
from numba.core.typing import signature
from numba.extending import intrinsic

from ddlsched.engine.loop.admission import gather_transfers
from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.codes import NEVER, ZERO, Question
from ddlsched.engine.loop.jit import called_from_python, compiling, njit
from ddlsched.engine.loop.state import STATE, state_at
from ddlsched.engine.loop.transfers import bytes_left_now, most_sharing, start_transfer
from ddlsched.policies.queue_features import LARGEST_LOG

__all__ = ["MET", "STEPPED_RUN", "Standing", "decide", "loop_address"]

MET = 4
"""Transfers that would be met of which a decision has features."""


class Standing(IntEnum):
    """Where a run stands: its events come next; its action does; a decision is to be taken; Python is to answer."""

    EVENTS = 0
    ACTION = 1
    DECISION = 2
    QUESTION = 3


_INTEGERS = [
    "state",
    "standing",
    "question",
    "place",
    "count",
    "action",
    "num_jobs",
    "num_arrived",
    "num_there",
    "num_decisions",
]
STEPPED_RUN = np.dtype([*((name, np.int64) for name in _INTEGERS), ("now_s", np.float64), ("job_seconds", np.float64)])
"""``state`` is the address of a state; ``place`` and ``count`` say which of the transfers of the
instant is decided about; ``job_seconds`` have passed in all, x the jobs that were there, up to ``now_s``."""


@intrinsic
def _advance_at(typing_context, address, s):  # noqa: ARG001 (numba's signature)
    """Call the compiled loop, whose address is given."""

    def generate(context, builder, sig, arguments):  # noqa: ARG001 (numba's signature)
        address, state = arguments
        convention = context.call_conv
        kind = convention.get_function_type(types.int64, (STATE,))
        answer, error = (alloca_once(builder, kind.args[place].pointee) for place in (0, 1))
        builder.call(builder.inttoptr(address, kind.as_pointer()), [answer, error, state])
        return builder.load(answer)

    return signature(types.int64, types.int64, s), generate


@njit
def _log_share(value):
    """As ``queue_features.log_share``."""
    return min(math.log1p(max(value, 0.0)) / LARGEST_LOG, 1.0)


@njit
def _remaining_service_ns(job):
    """What is left of a job's service as policies see it."""
    if job.misjudged_iterations == 0 or job.iterations_left == 0:
        return job.remaining_service_ns
    more = max(job.misjudged_iterations, 1 - job.iterations_left)
    return job.remaining_service_ns + more * (job.service_ns // job.iterations)


@njit
def _next_met(s, number, after):
    """The smallest number above another of the transfers that run on a transfer's links, or the last of all numbers."""
    mine, found = s.transfers[number], NEVER
    for place in range(mine.first_entry, mine.first_entry + mine.num_entries):
        e = s.links[s.entries[place].link].head
        while e >= 0:
            other = s.entries[e].transfer
            if after < other < found and other != number:
                found = other
            e = s.entries[e].next
    return found


@njit
def _observe_transfer(s, number, transfers, i, row):
    """Write a row of what is observed of a run."""
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    transfers[i, row, 0] = _log_share(bytes_left_now(transfer, s.run[0].now_ns) / 1e6)
    transfers[i, row, 1] = _log_share(_remaining_service_ns(job) / job.num_gpus / 1e9)
    transfers[i, row, 2] = job.num_gpus / s.run[0].num_gpus
    transfers[i, row, 3] = 1.0


@njit
def _observe(s, number, transfers, most, i):
    """Write what is observed of a run whose decision is about a transfer."""
    _observe_transfer(s, number, transfers, i, 0)
    other = _next_met(s, number, -1)
    for row in range(1, 1 + MET):
        if other == NEVER:
            for column in range(4):
                transfers[i, row, column] = 0.0
        else:
            _observe_transfer(s, other, transfers, i, row)
            other = _next_met(s, number, other)
    most[i, 0] = _log_share(most_sharing(s, s.transfers[number]))


@njit
def _count_job_seconds(s, stepped):
    """Count the time since the last decision x the jobs that were there."""
    run = s.run[0]
    now_s = run.now_ns / 1e9
    stepped.job_seconds += (now_s - stepped.now_s) * stepped.num_there
    for place in range(stepped.num_arrived, run.next_arrival):
        stepped.job_seconds += now_s - s.jobs[s.arrivals[place]].arrival_s
    stepped.num_arrived, stepped.now_s = run.next_arrival, now_s
    stepped.num_there = run.next_arrival - (stepped.num_jobs - run.num_jobs_left)


@njit
def _go_through(s, stepped):
    """Start the transfers of an instant that meet nobody, up to one that does; return whether there is such."""
    while stepped.place < stepped.count:
        number = s.items[stepped.place]
        if _next_met(s, number, -1) != NEVER:
            return True
        start_transfer(s, number)
        stepped.place += 1
    return False


@called_from_python
def decide(runs, transfers, most, loop_address):
    """Take each run whose events or action come next to its next decision or question.

    ``runs`` are records of :data:`STEPPED_RUN`; ``transfers``, of shape (runs, 1 + :data:`MET`, 4), and ``most``, of
    shape (runs, 1), get what ``CommunicationEnv`` observes; ``loop_address`` is :func:`loop_address`.
    """
    for i in range(len(runs)):
        stepped = runs[i]
        if stepped.standing >= Standing.DECISION.value:
            continue
        s = state_at(stepped.state)
        if stepped.standing == Standing.ACTION.value:
            if stepped.action == 1:
                start_transfer(s, s.items[stepped.place])
            stepped.place += 1
        while not _go_through(s, stepped):
            stepped.question = _advance_at(loop_address, s)
            if stepped.question != Question.COMMUNICATION.value:
                break
            stepped.place, stepped.count = ZERO, gather_transfers(s)
        if stepped.place < stepped.count:
            stepped.standing = Standing.DECISION.value
            stepped.num_decisions += 1
            _count_job_seconds(s, stepped)
            _observe(s, s.items[stepped.place], transfers, most, i)
        else:
            stepped.standing = Standing.QUESTION.value


@functools.cache
def loop_address() -> int:
    """Compile what is called here, or load it, and return the address of the compiled loop."""
    runs, transfers, most = numba.from_dtype(STEPPED_RUN)[::1], numba.float32[:, :, ::1], numba.float32[:, ::1]
    with compiling():
        advance.compile((STATE,))
        decide.compile((runs, transfers, most, numba.int64))
    compiled = advance.dispatcher.overloads[(STATE,)]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address
