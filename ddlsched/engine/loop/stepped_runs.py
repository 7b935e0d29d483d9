"""Runs that stand still where somebody outside decides, many of them in arrays: what all such decisions have in common.

The loop, and what places a job, are called by their addresses: to compile them once more with what calls them would
take as long as they do themselves.
"""

from __future__ import annotations

import functools
import math
from enum import IntEnum

import numba
import numpy as np

from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.compilation import PLACE_JOB, compile_loop
from ddlsched.engine.loop.placement import place_job
from ddlsched.engine.native.jit import STATE, address_of, caller_of, njit
from ddlsched.policies.queue_features import LARGEST_LOG

__all__ = ["STEPPED_RUN", "Standing", "advance_at", "loop_address", "place_job_at", "placing_address"]


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
    "in_round",
    "job",
    "num_chosen",
    "num_started",
]
STEPPED_RUN = np.dtype([*((name, np.int64) for name in _INTEGERS), ("now_s", np.float64), ("job_seconds", np.float64)])
"""``state`` is the address of a state; ``place`` and ``count`` say which of the transfers, or of the queued jobs, of
the instant is decided about; ``job_seconds`` have passed in all, x the jobs that were there, up to ``now_s``. While
jobs are placed ``in_round`` is 1, ``job`` the one that is placed, or -1, ``num_chosen`` how many GPUs it has already;
``num_started`` counts the jobs that have been placed."""


_CALL_LOOP, _CALL_PLACING = caller_of(numba.int64, (STATE,)), caller_of(numba.void, PLACE_JOB)


@njit
def advance_at(address, s):
    """Call the compiled loop, whose address is given."""
    return _CALL_LOOP(address, (s,))


@njit
def place_job_at(
    address,
    s,
    number,
    stay,
    chosen,
    num_servers,
    job_links,
    num_links,
    links,
    shares,
    wire_bytes,
    latency_ns,
    load_ns,
    hold_ns,
):
    """Call what places a job, whose address is given, with the arguments of ``place_job``."""
    _CALL_PLACING(
        address,
        (
            s,
            number,
            stay,
            chosen,
            num_servers,
            job_links,
            num_links,
            links,
            shares,
            wire_bytes,
            latency_ns,
            load_ns,
            hold_ns,
        ),
    )


@njit
def log_share(value):
    """As ``queue_features.log_share``."""
    return min(math.log1p(max(value, 0.0)) / LARGEST_LOG, 1.0)


@njit
def remaining_service_ns(job):
    """What is left of a job's service as policies see it."""
    if job.misjudged_iterations == 0 or job.iterations_left == 0:
        return job.remaining_service_ns
    more = max(job.misjudged_iterations, 1 - job.iterations_left)
    return job.remaining_service_ns + more * (job.service_ns // job.iterations)


@njit
def count_job_seconds(s, stepped):
    """Count the time since the last decision x the jobs that were there."""
    run = s.run[0]
    now_s = run.now_ns / 1e9
    stepped.job_seconds += (now_s - stepped.now_s) * stepped.num_there
    for place in range(stepped.num_arrived, run.next_arrival):
        stepped.job_seconds += (run.now_ns - s.jobs[s.arrivals[place]].arrival_ns) / 1e9
    stepped.num_arrived, stepped.now_s = run.next_arrival, now_s
    stepped.num_there = run.next_arrival - (stepped.num_jobs - run.num_jobs_left)


@functools.cache
def loop_address() -> int:
    """Compile the loop, or load it, and return its address."""
    compile_loop()
    return address_of(advance, (STATE,))


@functools.cache
def placing_address() -> int:
    """Compile what places a job, or load it, and return its address."""
    compile_loop()
    return address_of(place_job, PLACE_JOB)
