"""Which GPUs a job gets by a placement policy that is an order of GPUs, as ``policies/cluster_view.py`` has it."""

from __future__ import annotations

from ddlsched.engine.loop.loads import load_of
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import ONE, ZERO

__all__ = ["BY_LOAD", "BY_SERVER", "BY_SERVER_LOAD", "MOST_KEYS", "NO_ORDER", "choose_gpus"]

BY_LOAD, BY_SERVER, BY_SERVER_LOAD = 1, 2, 3
"""What GPUs are ordered by, in a row of ``orders``; 0 in place of the keys that a job's order has not."""
NO_ORDER = -1
"""In place of the first key: Python is asked."""
MOST_KEYS = 3
_MOST_LOAD = 1 << 61


@njit
def choose_gpus(s, number, order, first_gpus, multiples, columns, gpus):
    """Write the GPUs that a job gets, in placement order; return whether that was possible in 64 bits.

    ``order`` are the keys; ``multiples`` are, of each server, the common multiple of all servers' GPUs / its own, by
    which sums of loads become comparable means; ``columns``, of shape (GPUs, keys), is scratch. At least as many GPUs
    as the job needs must be eligible.
    """
    job = s.jobs[number]
    count = ZERO
    for server in range(len(first_gpus) - 1):
        server_load, known = ZERO, False
        for gpu in range(first_gpus[server], first_gpus[server + 1]):
            if s.gpus[gpu].free_bytes < job.memory_bytes:
                continue
            for key in range(MOST_KEYS):
                column = ZERO
                if order[key] == BY_LOAD:
                    column = load_of(s, gpu)
                elif order[key] == BY_SERVER:
                    column = server
                elif order[key] == BY_SERVER_LOAD:
                    if not known:
                        server_load, known = _server_load(s, server, first_gpus, multiples), True
                        if server_load < 0:
                            return False
                    column = server_load
                columns[gpu, key] = column
            gpus[count] = gpu
            count += 1
    _sort_first(gpus, count, job.num_gpus, columns)
    return True


@njit
def _server_load(s, server, first_gpus, multiples):
    """The sum of the loads of a server's GPUs x its multiple, or -1 if that might be too large."""
    total = ZERO
    for gpu in range(first_gpus[server], first_gpus[server + 1]):
        total += load_of(s, gpu)
        if total > _MOST_LOAD // multiples[server]:
            return -ONE
    return total * multiples[server]


@njit
def _before(columns, gpu, other):
    for key in range(MOST_KEYS):
        if columns[gpu, key] != columns[other, key]:
            return columns[gpu, key] < columns[other, key]
    return gpu < other


@njit
def _sort_first(gpus, count, needed, columns):
    """Bring the first so many of some GPUs to the front, in order."""
    for place in range(ONE, count):
        gpu = gpus[place]
        hole = place
        if place >= needed:
            if not _before(columns, gpu, gpus[needed - 1]):
                continue
            hole = needed - 1
        while hole > 0 and _before(columns, gpu, gpus[hole - 1]):
            gpus[hole] = gpus[hole - 1]
            hole -= 1
        gpus[hole] = gpu
