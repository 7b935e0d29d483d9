"""Books closed at the end of a run or of a warm-up."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.failures import cut_compute
from ddlsched.engine.loop.gpu_groups import part_groups_of
from ddlsched.engine.loop.placement import book, expand, spread_links
from ddlsched.engine.loop.skipping.dormancy import wake_all
from ddlsched.engine.loop.time_accounts import computed_ns, count_time, simulated_for
from ddlsched.engine.loop.transfers import leave_waiting, stop_transfer
from ddlsched.engine.native.jit import NUMBERS, STATE, called_from_python, njit
from ddlsched.engine.records.field_values import JobState, TransferState
from ddlsched.engine.records.layout import State


@called_from_python(STATE, NUMBERS)
def add_busy_ns(s: State, busy_ns: np.ndarray) -> None:
    """Add to ``busy_ns`` what each GPU has computed so far."""
    wake_all(s)
    for gpu in range(len(s.gpus)):
        busy_ns[gpu] += s.gpus[gpu].busy_ns
        for place in range(s.gpus[gpu].num_residents):
            number = s.residents[gpu, place]
            job = s.jobs[s.workers[number].job]
            source = simulated_for(s, job, number)
            busy_ns[gpu] += computed_ns(s, job, number)
            g = s.gpus[s.workers[source].gpu]
            if g.worker == source:
                busy_ns[gpu] += s.run[0].now_ns - g.started_ns


@called_from_python(STATE)
def close_books(s: State) -> None:
    """At the end of a run that was cut off: count what unfinished jobs have done and waited so far."""
    run = s.run[0]
    wake_all(s)
    for number in range(len(s.jobs)):
        job = s.jobs[number]
        if job.state == JobState.QUEUED:
            job.queueing_ns += run.now_ns - job.since_ns
            job.since_ns = run.now_ns
        elif job.state == JobState.RUNNING:
            if job.lockstep == 1:
                expand(s, job)
            if job.grouped == 0:
                part_groups_of(s, job)
            job.samples_left = max(job.samples_left - (job.start_iterations_left - job.iterations_left) * job.batch, 0)
            count_time(job, run.now_ns)
            for worker in range(job.first_worker, job.first_worker + job.num_gpus):
                cut_compute(s, job, worker)
            book(s, job)
            for transfer in range(job.first_transfer, job.first_transfer + job.num_transfers):
                close_transfer(s, transfer)
            for transfer in range(job.first_flow, job.first_flow + job.num_flows):
                close_transfer(s, transfer)
    for number in range(len(s.jobs)):  # once what runs on others' links has stopped, too
        if s.jobs[number].state == JobState.RUNNING and s.jobs[number].folded == 1:
            spread_links(s, s.jobs[number], len(s.jobs))


@njit
def close_transfer(s: State, number: int) -> None:
    if s.transfers[number].state == TransferState.ACTIVE:
        stop_transfer(s, number)
    elif s.transfers[number].state == TransferState.WAITING:
        leave_waiting(s, number)
