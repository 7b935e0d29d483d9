"""Process groups of PyTorch that can be formed and left again and again in one process."""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch import distributed

from ddlsched.live.seat import Orders, Seat

__all__ = ["group", "meeting"]

_LOOK_S = 0.002
_FORMING = timedelta(seconds=15)
"""How long the members of a group, who have met, try to connect."""
_STEP = timedelta(days=1)
"""How long they wait for each other in a step. The manager ends those that hang."""


def meeting(seat: Seat, orders: Orders) -> Any:
    """Return the store in which all ranks of a group have met, or None if one of them has died before it came.

    A group that torch begins to form and that misses a rank would hold the others until a timeout, and leave torch's
    count of groups different from that of a process that joins later.
    """
    store = distributed.FileStore(str(seat.folder / f"rendezvous{orders.generation}"), orders.ranks)
    store.set(f"here{orders.rank}", "")
    everybody = [f"here{rank}" for rank in range(orders.ranks)]
    while not store.check(everybody):
        if seat.is_asked_to_leave():
            return None
        time.sleep(_LOOK_S)
    return store


@contextmanager
def group(store: Any, orders: Orders) -> Iterator[None]:
    """Be a rank of a process group.

    Raises
    ------
    SystemExit
        A rank died just now; what torch has begun cannot be begun again in this process.
    """
    before = _sockets()
    try:
        distributed.init_process_group("gloo", store=store, rank=orders.rank, world_size=orders.ranks, timeout=_FORMING)
    except RuntimeError as error:
        sys.exit(f"group {orders.generation} cannot be formed: {error}")
    distributed.distributed_c10d._set_pg_timeout(_STEP)
    connections = [socket.socket(fileno=os.dup(each)) for each in _sockets() - before]
    try:
        yield
    finally:
        _shut(connections)
        distributed.destroy_process_group()


def _sockets() -> set[int]:
    """Return the file descriptors of this process's sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # The one of the listing itself has gone.
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found


def _shut(connections: list[socket.socket]) -> None:
    """End a group's connections, so that what other ranks, and this one, still wait for in it fails at once.

    gloo closes them with the last reference to the group, and DistributedDataParallel leaves one behind.
    """
    for connection in connections:
        with suppress(OSError), connection:  # One that the other side has closed.
            if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # gloo cannot lose its listener.
                connection.shutdown(socket.SHUT_RDWR)
