"""How jobs start whose GPUs somebody outside of the run chooses, for what takes such decisions in compiled code.

A job starts here if no transfer of it crosses a link: it has none, or is on one server and only all-reduces over all of
its workers. What plans transfers over links is in Python, so that such a job goes back there.
"""

from __future__ import annotations

from ddlsched.engine.loop.codes import ASKS_PYTHON_BYTES, ONE, ZERO, JobState
from ddlsched.engine.loop.jit import njit
from ddlsched.engine.loop.state import width_of
from ddlsched.engine.loop.stepped_runs import log_share, place_job_at, remaining_service_ns

__all__ = ["begin_round", "can_start_here", "end_round", "observe_job", "room_of", "start_here"]


@njit
def begin_round(s, stepped):
    """The queue is to be placed."""
    stepped.in_round, stepped.place, stepped.count, stepped.job = ONE, ZERO, s.run[0].num_queued, -ONE


@njit
def end_round(s, stepped):
    """Those that have started leave the queue."""
    num_left = ZERO
    for place in range(stepped.count):
        number = s.queue[place]
        if s.jobs[number].state == JobState.QUEUED:
            s.queue[num_left] = number
            num_left += 1
    s.run[0].num_queued = s.run[0].num_sorted = num_left
    stepped.in_round = ZERO


@njit
def servers_of(s, gpus, count):
    """On how many servers the first of some GPUs are, those of one server one after another."""
    num_servers = ONE
    for place in range(1, count):
        if s.gpus[gpus[place]].server != s.gpus[gpus[place - 1]].server:
            num_servers += 1
    return num_servers


@njit
def can_start_here(s, number, gpus):
    """Whether a job can start on GPUs, those of one server one after another: no transfer of it then crosses a link.

    Python makes room for more jobs on a GPU.
    """
    job = s.jobs[number]
    for place in range(job.num_gpus):
        if s.gpus[gpus[place]].num_residents == width_of(s.residents):
            return False
    if job.num_transfers == 0:
        return True
    return servers_of(s, gpus, job.num_gpus) == 1 and s.transfers[job.first_transfer].bytes != ASKS_PYTHON_BYTES


@njit
def start_here(s, stepped, number, gpus, whole, fractions, placing_address):
    """Start a job; ``whole`` are zeros and ``fractions`` two rows of scratch, as long as any job has transfers."""
    job = s.jobs[number]
    count = job.num_transfers
    for place in range(count):
        transfer = s.transfers[job.first_transfer + place]
        fractions[0, place], fractions[1, place] = transfer.bytes, transfer.latency_ns
    none = whole[:0]
    place_job_at(
        placing_address,
        s,
        number,
        stepped.num_started,
        gpus[: job.num_gpus],
        servers_of(s, gpus, job.num_gpus),
        none,
        whole[:count],
        none,
        fractions[0, :0],
        fractions[0, :count],
        fractions[1, :count],
        whole[:count],
        ZERO,
    )
    stepped.num_started += 1


@njit
def room_of(s, job, first_gpus):
    """How many GPUs have the memory for a job, and how many do on the server that has most."""
    eligible = most = ZERO
    for server in range(len(first_gpus) - 1):
        here = ZERO
        for gpu in range(first_gpus[server], first_gpus[server + 1]):
            if s.gpus[gpu].free_bytes >= job.memory_bytes:
                here += 1
        eligible += here
        most = max(most, here)
    return eligible, most


@njit
def observe_job(s, number, eligible, most, row):
    """Write a row of ``queue_features``, of a job with so many eligible GPUs, at most so many of them on a server."""
    job = s.jobs[number]
    now_ns, num_gpus = s.run[0].now_ns, s.run[0].num_gpus
    row[0], row[1] = job.num_gpus / num_gpus, eligible / num_gpus
    row[2] = 1.0 if most >= job.num_gpus else 0.0
    row[3] = log_share(remaining_service_ns(job) / job.num_gpus / 1e9)
    row[4] = log_share(job.message_bytes / 1e6)
    row[5] = log_share((now_ns - job.arrival_ns) / 1e9)
    row[6] = 1.0
