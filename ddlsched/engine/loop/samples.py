"""Samples of the whole state of the cluster, at most as many as there are records."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.skipping.dormant_progress import dormant_busy_ns, dormant_sending
from ddlsched.engine.loop.skipping.foreseen import forget_foreseen, merge_samples
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import NEVER
from ddlsched.engine.records.layout import State


@njit
def take_samples(s: State, until_ns: int) -> None:
    """Record the state, which stays as it is until ``until_ns``, at each sampling time before that."""
    run = s.run[0]
    while run.next_sample_ns < until_ns:
        if run.num_samples == len(s.samples) - 1:  # the last is for the end of the run
            merge_samples(s)
            if run.next_sample_ns >= until_ns:
                return
        take_sample(s, run.next_sample_ns)
        take_foreseen(s)
        if run.next_sample_ns > NEVER - run.sample_step_ns:
            run.next_sample_ns = NEVER
        else:
            run.next_sample_ns += run.sample_step_ns


@njit
def take_sample(s: State, time_ns: int) -> None:
    run = s.run[0]
    record = s.samples[run.num_samples]
    run.num_samples += 1
    record.time_ns = time_ns
    record.busy_ns = run.busy_ns + np.float64(run.computing_gpus) * (time_ns - run.sampled_ns) + s.foreseen[0].busy_ns
    s.foreseen[0].busy_ns = 0.0
    record.allocated_gpus, record.queued_jobs = run.allocated_gpus, run.num_queued + run.num_elastic_queued
    record.active_transfers = run.num_active + run.others_active
    record.waiting_transfers = run.num_waiting + run.others_waiting
    for place in range(run.num_dormant):
        job = s.jobs[s.dormant[place]]
        record.busy_ns += np.float64(job.num_gpus) * dormant_busy_ns(s, job, run.sampled_ns, time_ns)
        record.active_transfers += dormant_sending(s, job, time_ns)
    run.busy_ns = 0.0
    run.sampled_ns = time_ns


@njit
def take_foreseen(s: State) -> None:
    """Add to the sample that was taken last the transfers of components that had jumped over its time."""
    record = s.samples[s.run[0].num_samples - 1]
    record.active_transfers += s.foreseen[0].running
    record.waiting_transfers += s.foreseen[0].waiting
    for place in range(len(s.foreseen) - 1):
        s.foreseen[place] = s.foreseen[place + 1]
    forget_foreseen(s.foreseen[len(s.foreseen) - 1])
