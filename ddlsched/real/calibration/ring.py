"""A ring all-reduce over TCP connections: each rank sends to the next one and receives from the one before."""

from __future__ import annotations

import select
import socket
import time

import numpy as np

from ddlsched.errors import MeasurementError

__all__ = ["ITEM_BYTES", "all_reduce", "timed_all_reduce"]

ITEM_BYTES = 4
"""Of a float32, of which messages consist."""
STALL_S = 60.0
"""So long nothing may move before a measurement is given up."""
_START = b"\1"


def all_reduce(values: np.ndarray, rank: int, size: int, after: socket.socket, before: socket.socket) -> None:
    """Replace ``values`` by their sum over all ranks: n - 1 steps that add, n - 1 that hand the sums on.

    Parameters
    ----------
    values
        float32, as many on every rank; each of the 2 (n - 1) steps moves an n-th of them.
    rank, size
        Place in the ring, from 0, and the number of ranks.
    after, before
        Non-blocking connections to the next rank and from the one before.

    References
    ----------
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
    Comput. 69 (2009).
    """
    chunks = np.array_split(values, size)
    arrived = np.empty_like(chunks[0])  # the first chunk is the longest
    for step in range(size - 1):
        target = chunks[(rank - step - 1) % size]
        _exchange(after, chunks[(rank - step) % size], before, arrived[: len(target)])
        target += arrived[: len(target)]
    for step in range(size - 1):
        _exchange(after, chunks[(rank - step + 1) % size], before, chunks[(rank - step) % size])


def timed_all_reduce(count: int, rank: int, size: int, after: socket.socket, before: socket.socket) -> float:
    """Return the seconds of an all-reduce of ``count`` items, from rank 0's start signal on; checks the sums.

    Every rank but 0 waits for the signal, which goes round once, so that none sends ahead of time.
    """
    values = np.full(count, rank + 1, np.float32)
    if rank != 0:
        before.settimeout(STALL_S)
        if before.recv(len(_START)) != _START:
            raise MeasurementError("the rank before ended its connection")
    begin = time.perf_counter()
    if rank != size - 1:
        after.settimeout(STALL_S)
        after.sendall(_START)
    for connection in (after, before):
        connection.setblocking(False)
    all_reduce(values, rank, size, after, before)
    seconds = time.perf_counter() - begin
    if not (values == size * (size + 1) / 2).all():
        raise MeasurementError("an all-reduce came to wrong sums; expected every rank's values, once each")
    return seconds


def _exchange(after: socket.socket, outgoing: np.ndarray, before: socket.socket, incoming: np.ndarray) -> None:
    """Send one array while receiving another."""
    to_send, to_fill = outgoing.data.cast("B"), incoming.data.cast("B")
    while to_send or to_fill:
        can_read, can_write, _ = select.select([before] if to_fill else [], [after] if to_send else [], [], STALL_S)
        if not can_read and not can_write:
            raise MeasurementError(f"nothing moved for {STALL_S:g} s")
        if can_read:
            count = before.recv_into(to_fill)
            if count == 0:
                raise MeasurementError("the rank before ended its connection")
            to_fill = to_fill[count:]
        if can_write:
            to_send = to_send[after.send(to_send) :]
