"""Which transfers start, decided by somebody outside of the run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.engine.field_values import NEVER, ONE, ZERO, Question
from ddlsched.engine.loop.admission import gather_transfers
from ddlsched.engine.loop.batch.runs import Standing, StepsOfADoor, log_share, remaining_service_ns
from ddlsched.engine.loop.transfers import bytes_left_now, most_sharing, start_transfer
from ddlsched.engine.native.jit import njit

MET = 4
"""Transfers that would be met of which a decision has features."""


class TransferArrays(NamedTuple):
    """What ``CommunicationEnv`` observes, a row a run: of shape (runs, 1 + :data:`MET`, 4), and (runs, 1)."""

    transfers: np.ndarray
    most: np.ndarray


@njit
def _open_round(s, run, i, a):
    """Transfers are to be chosen from."""
    run.place, run.count = ZERO, gather_transfers(s)


@njit
def _go_through(s, run, i, a):
    """Start the transfers of an instant that meet nobody, up to one that does."""
    while run.place < run.count:
        number = s.items[run.place]
        if _next_met(s, number, -ONE) != NEVER:
            return Standing.DECISION.value
        start_transfer(s, number)
        run.place += 1
    run.in_round = ZERO
    return Standing.EVENTS.value


@njit
def _act(s, run, i, a):
    """Start the transfer, or let it wait."""
    if run.action == 1:
        start_transfer(s, s.items[run.place])
    run.place += 1
    return Standing.EVENTS.value


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
def _observe_transfer(s, number, seen):
    """Write a row of what is observed of a run."""
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    seen[0] = log_share(bytes_left_now(transfer, s.run[0].now_ns) / 1e6)
    seen[1] = log_share(remaining_service_ns(job) / job.num_gpus / 1e9)
    seen[2] = job.num_gpus / s.run[0].num_gpus
    seen[3] = 1.0


@njit
def _observe(s, run, i, a):
    """Write what is observed of a run whose decision is about a transfer."""
    number = s.items[run.place]
    _observe_transfer(s, number, a.transfers[i, 0])
    other = _next_met(s, number, -ONE)
    for row in range(1, 1 + MET):
        if other == NEVER:
            a.transfers[i, row, :] = 0.0
        else:
            _observe_transfer(s, other, a.transfers[i, row])
            other = _next_met(s, number, other)
    a.most[i, 0] = log_share(most_sharing(s, s.transfers[number]))


TRANSFER_STEPS = StepsOfADoor(Question.COMMUNICATION, _go_through, _act, _open_round, _observe)
