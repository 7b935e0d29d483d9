"""A job that was stopped or moved gets its state over the network."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.sharing.covers import join_placed
from ddlsched.engine.loop.skipping.dormancy import wake_all, wake_linked
from ddlsched.engine.loop.transfers import join_waiting
from ddlsched.engine.native.jit import NUMBER, NUMBERS, REALS, STATE, called_from_python
from ddlsched.engine.records.layout import State


@called_from_python(STATE, NUMBER, NUMBER, NUMBERS, NUMBERS, REALS, REALS)
def send_state(
    s: State,
    number: int,
    hold_ns: int,
    links: np.ndarray,
    ends: np.ndarray,
    sizes_bytes: np.ndarray,
    latency_ns: np.ndarray,
) -> None:
    """Have the state of a job that has just been placed come to it, before it holds its GPUs for ``hold_ns``.

    If that is below 0 it is state that the job saves while it works. Transfer i crosses the ``links`` up to
    ``ends[i]``, from the end of the one before. While state is on its way nobody on links skips iterations: any may
    carry it.
    """
    wake_linked(s)
    run = s.run[0]
    job = s.jobs[number]
    run.num_unsettled += 1
    run.communicate = run.components_changed = 1
    job.num_flows = job.flows_left = len(sizes_bytes)
    job.hold_ns = hold_ns
    place = 0
    for i in range(job.num_flows):
        transfer = s.transfers[job.first_flow + i]
        transfer.bytes = transfer.bytes_left = sizes_bytes[i]
        transfer.latency_ns = transfer.latency_left_ns = latency_ns[i]
        transfer.weight = 0.0  # not asked yet
        transfer.parts_sent = 0
        transfer.first_entry, transfer.num_entries = run.num_entries, ends[i] - place
        while place < ends[i]:
            s.entries[run.num_entries].link = links[place]
            s.entries[run.num_entries].share = 1.0
            s.entries[run.num_entries].transfer = job.first_flow + i
            run.num_entries += 1
            place += 1
        join_placed(s, job.first_flow + i)
        join_waiting(s, job.first_flow + i)


@called_from_python(STATE, NUMBER)
def plan_move(s: State, number: int) -> None:
    """Have a running job stop at the end of its iteration."""
    run = s.run[0]
    s.jobs[number].leaving = 1
    run.num_unsettled += 1
    run.components_changed = 1


@called_from_python(STATE)
def wake_running(s: State) -> None:
    """Give every job that skips iterations the state that it has now, for policies in Python to read."""
    wake_all(s)
