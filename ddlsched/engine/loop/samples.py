"""Samples of the whole state of the cluster, at most as many as there are records."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.skipping.dormant_progress import dormant_busy_ns, dormant_sending
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import NEVER
from ddlsched.engine.records.layout import Records, State


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


@njit
def forget_foreseen(record: Records) -> None:
    record.busy_ns, record.running, record.waiting = 0.0, 0, 0


@njit
def settled(s: State, until_ns: int) -> tuple[int, int]:
    """How far samples are apart once a time is reached, and when the next of those is that are left then."""
    run = s.run[0]
    taken, step_ns, next_ns = run.num_samples, run.sample_step_ns, run.next_sample_ns
    while taken + max((until_ns - 1 - next_ns) // step_ns + 1, 0) > len(s.samples) - 1:
        next_ns += step_ns if taken % 2 == 0 else 0
        taken, step_ns = taken // 2, 2 * step_ns
    return step_ns, next_ns


@njit
def settle_samples(s: State, until_ns: int) -> None:
    """Take samples as seldom from now on as when a time is reached, which is sure to be."""
    step_ns = settled(s, until_ns)[0]
    while s.run[0].sample_step_ns < step_ns:
        merge_samples(s)


@njit
def merge_samples(s: State) -> None:
    """Make one of every two samples, and take half as many from now on; one left over joins the next."""
    run = s.run[0]
    odd = run.num_samples % 2
    for place in range(run.num_samples // 2):
        busy_ns = s.samples[2 * place].busy_ns
        s.samples[place] = s.samples[2 * place + 1]
        s.samples[place].busy_ns += busy_ns
    if odd == 1:
        run.busy_ns += s.samples[run.num_samples - 1].busy_ns
    else:
        run.next_sample_ns += run.sample_step_ns
    for place in range(len(s.foreseen)):
        last = 2 * place + 1 - odd
        busy_ns = 0.0
        for other in range(max(last - 1, 0), min(last + 1, len(s.foreseen))):
            busy_ns += s.foreseen[other].busy_ns
            s.foreseen[other].busy_ns = 0.0
        if last < len(s.foreseen):
            s.foreseen[place] = s.foreseen[last]
        else:
            forget_foreseen(s.foreseen[place])
        s.foreseen[place].busy_ns = busy_ns
    run.num_samples //= 2
    run.sample_step_ns *= 2
