"""Decisions about transfers that somebody outside of the run takes, for many runs in one call.

A run stands here between two decisions. What else the loop asks for goes back to Python.
"""

from __future__ import annotations

import functools

import numba

from ddlsched.engine.loop.admission import gather_transfers
from ddlsched.engine.loop.stepped_runs import (
    STEPPED_RUN,
    Standing,
    advance_at,
    count_job_seconds,
    log_share,
    remaining_service_ns,
)
from ddlsched.engine.loop.transfers import bytes_left_now, most_sharing, start_transfer
from ddlsched.engine.native.jit import called_from_python, compiling, njit, state_at
from ddlsched.engine.records.field_values import NEVER, ZERO, Question

__all__ = ["MET", "compile_decisions", "decide"]

MET = 4
"""Transfers that would be met of which a decision has features."""


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
    transfers[i, row, 0] = log_share(bytes_left_now(transfer, s.run[0].now_ns) / 1e6)
    transfers[i, row, 1] = log_share(remaining_service_ns(job) / job.num_gpus / 1e9)
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
    most[i, 0] = log_share(most_sharing(s, s.transfers[number]))


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
            stepped.question = advance_at(loop_address, s)
            if stepped.question != Question.COMMUNICATION.value:
                break
            stepped.place, stepped.count = ZERO, gather_transfers(s)
        if stepped.place < stepped.count:
            stepped.standing = Standing.DECISION.value
            stepped.num_decisions += 1
            count_job_seconds(s, stepped)
            _observe(s, s.items[stepped.place], transfers, most, i)
        else:
            stepped.standing = Standing.QUESTION.value


@functools.cache
def compile_decisions() -> None:
    """Compile what is called here, or load it."""
    runs, transfers, most = numba.from_dtype(STEPPED_RUN)[::1], numba.float32[:, :, ::1], numba.float32[:, ::1]
    with compiling():
        decide.compile((runs, transfers, most, numba.int64))
