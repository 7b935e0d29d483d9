"""How jobs start whose GPUs somebody outside of the run chooses, for what takes such decisions in compiled code.

A job starts here if its transfers are all-reduces over all of its workers, in rings over servers along the topology's
own routes, as :class:`~ddlsched.engine.decisions.costs.CommunicationCosts` plans them. Others go back to Python.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.engine.field_values import ONE, ZERO, JobState
from ddlsched.engine.loop.batch.runs import call_placing, job_features, log_share, remaining_service_ns
from ddlsched.engine.native.jit import njit, width_of

_MOST_SERVICE = 9e18


class StartTables(NamedTuple):
    """What jobs put on the network by the number of their servers, and what is written while one starts.

    Attributes
    ----------
    wire_bytes, load_ns
        Of each run and transfer: what it moves over each link of a ring over so many servers, and what that counts in
        loads; ``wire_bytes`` on 0 servers is -1 if Python plans the transfer.
    most_servers
        Of each run: how many servers a job with transfers has at most that starts here.
    first_links, path_links, latency_s
        Of each pair of servers, row by row: where its links begin among all, and how late a byte comes along them. One
        for all runs.
    servers, job_links, links, shares, num_links, bytes, latency_ns, loads_ns
        Scratch; ``shares`` are ones.
    placing_address
        Where the code lies of what places a job.
    """

    wire_bytes: np.ndarray
    load_ns: np.ndarray
    most_servers: np.ndarray
    first_links: np.ndarray
    path_links: np.ndarray
    latency_s: np.ndarray
    servers: np.ndarray
    job_links: np.ndarray
    links: np.ndarray
    shares: np.ndarray
    num_links: np.ndarray
    bytes: np.ndarray
    latency_ns: np.ndarray
    loads_ns: np.ndarray
    placing_address: int


@njit
def begin_round(s, run, i, a):
    """The queue is to be placed."""
    run.place, run.count, run.job = ZERO, s.run[0].num_queued, -ONE


@njit
def end_round(s, run):
    """Those that have started leave the queue."""
    num_left = ZERO
    for place in range(run.count):
        number = s.queue[place]
        if s.jobs[number].state == JobState.QUEUED:
            s.queue[num_left] = number
            num_left += 1
    s.run[0].num_queued = s.run[0].num_sorted = num_left
    run.in_round = ZERO


@njit
def _list_servers(s, gpus, count, servers):
    """Write the servers of the first of some GPUs, ascending, each once, and return how many there are."""
    num_servers = ZERO
    for place in range(count):
        server = s.gpus[gpus[place]].server
        hole = num_servers
        while hole > 0 and servers[hole - 1] > server:
            hole -= 1
        if hole > 0 and servers[hole - 1] == server:
            continue
        for later in range(num_servers, hole, -1):
            servers[later] = servers[later - 1]
        servers[hole] = server
        num_servers += 1
    return num_servers


@njit
def _list_ring(num_servers, t):
    """Write the links of the ring over some servers, and return how many they are, and the latency of its cables, s."""
    count, slowest_s = ZERO, 0.0
    if num_servers < 2:
        return count, slowest_s
    for place in range(num_servers):
        t.links[count] = t.servers[place]  # a server's card
        count += 1
    for place in range(num_servers):
        pair = t.servers[place] * (len(t.servers)) + t.servers[(place + 1) % num_servers]
        for link in range(t.first_links[pair], t.first_links[pair + 1]):
            t.links[count] = t.path_links[link]
            count += 1
        slowest_s = max(slowest_s, t.latency_s[pair])
    return count, 2 * (num_servers - 1) * slowest_s


@njit
def _list_job_links(count, t):
    """Write each of the links of a ring once, and return how many they are."""
    num_links = ZERO
    for place in range(count):
        known = False
        for earlier in range(num_links):
            known = known or t.job_links[earlier] == t.links[place]
        if not known:
            t.job_links[num_links] = t.links[place]
            num_links += 1
    return num_links


@njit
def _plan(s, i, job, num_servers, num_links, cables_s, t):
    """Write what a job's transfers put on their ring, and return what they take in an iteration, ns."""
    run, total_ns = s.run[0], ZERO
    for place in range(job.num_transfers):
        transfer = job.first_transfer + place
        wire_bytes = t.wire_bytes[i, transfer, num_servers]
        t.num_links[place], t.bytes[place] = num_links, wire_bytes
        t.latency_ns[place] = (run.latency_s + cables_s) * 1e9
        t.loads_ns[place] = t.load_ns[i, transfer, num_servers] if num_links > 0 else ZERO
        total_ns += np.int64(np.rint((run.latency_s + cables_s + run.per_byte_s * wire_bytes) * 1e9))
        for link in range(num_links):
            t.links[place * num_links + link] = t.links[link]
    return total_ns


@njit
def _may_start(s, i, job, gpus, num_servers, t):
    """Whether a job with these GPUs may start here, as far as that is known before its ring."""
    for place in range(job.num_gpus):
        if s.gpus[gpus[place]].num_residents == width_of(s.residents):
            return False  # Python makes room for more jobs on a GPU
    if job.num_transfers == 0:
        return True
    return t.wire_bytes[i, job.first_transfer, 0] >= 0.0 and num_servers <= t.most_servers[i]


@njit
def starts_here(s, run, i, number, gpus, t):
    """Start a job on GPUs, in placement order, unless Python is to do so; return whether it has started."""
    now, job = s.run[0], s.jobs[number]
    num_servers = _list_servers(s, gpus, job.num_gpus, t.servers)
    if not _may_start(s, i, job, gpus, num_servers, t):
        return False
    num_links, cables_s = _list_ring(num_servers if job.num_transfers > 0 else ZERO, t)
    crossings = num_links * job.num_transfers
    num_job_links = _list_job_links(num_links, t)
    if now.num_entries + crossings > len(s.entries) or now.num_job_links + num_job_links > len(s.job_links):
        return False  # Python makes room for more
    iteration_ns = _plan(s, i, job, num_servers, num_links, cables_s, t)
    if float(iteration_ns) * job.iterations * job.num_gpus + job.service_ns > _MOST_SERVICE:
        return False  # Python says what is wrong
    if num_links > 0:
        job.communication_ns = iteration_ns
    count = job.num_transfers
    call_placing(
        t.placing_address,
        (
            s,
            number,
            run.num_started,
            gpus[: job.num_gpus],
            num_servers,
            t.job_links[:num_job_links],
            t.num_links[:count],
            t.links[:crossings],
            t.shares[:crossings],
            t.bytes[:count],
            t.latency_ns[:count],
            t.loads_ns[:count],
            ZERO,
        ),
    )
    run.num_started += 1
    return True


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
    gpus = job.num_gpus, eligible, most, s.run[0].num_gpus
    waited_ns = s.run[0].now_ns - job.arrival_ns
    features = job_features(gpus, remaining_service_ns(job), job.message_bytes, waited_ns, log_share)
    for place in range(len(features)):
        row[place] = features[place]
    row[len(features)] = 1.0
