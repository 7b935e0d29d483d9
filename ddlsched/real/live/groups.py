"""Process groups of PyTorch that can be formed and left again and again in one process."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch import distributed

from ddlsched.real.live.meetings import Seal, meet
from ddlsched.real.live.seat import Orders, Seat

__all__ = ["group", "meeting"]

_REACHING_S = 2.0
"""How long a process waits for rank 0's host to answer before it looks again whether it is asked to leave."""
_FORMING = timedelta(seconds=15)
"""How long the members of a group, who have met, try to connect."""
_STEP = timedelta(days=1)
"""How long they wait for each other in a step. The manager ends those that hang."""


def meeting(seat: Seat, orders: Orders) -> Any:
    """Return the store in which all ranks of a group have met, or None if one of them has died before it came.

    Raises
    ------
    SystemExit
        Rank 0 cannot be reached.
    """
    seal = Seal(seat.assignment.token, orders.generation)
    return meet(seat, orders, lambda: _Sealed(_store(seat, orders), seal))


def _store(seat: Seat, orders: Orders) -> distributed.TCPStore:
    """Open the group's store as its rank 0, or reach it.

    Raises
    ------
    OSError, RuntimeError
        Nobody answers there; torch by itself would ask for seconds, and write a page about it.
    """
    server = {}
    if orders.rank == 0:  # By itself torch would listen at every address of this host.
        server = {"is_master": True, "master_listen_fd": os.dup(seat.place.fileno())}
    else:
        socket.create_connection((orders.host, orders.port), _REACHING_S).close()
    return distributed.TCPStore(orders.host, orders.port, wait_for_workers=False, timeout=_FORMING, **server)


class _Sealed(distributed.Store):  # type: ignore[misc]
    """A store with a group's seal on each value. Counts, which no group needs to be formed, have none."""

    def __init__(self, store: distributed.Store, seal: Seal) -> None:
        super().__init__()
        self._store, self._seal = store, seal

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, self._seal.put_on(key, value))

    def get(self, key: str) -> bytes:
        return self._seal.take_off(key, self._store.get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def wait(self, keys: list[str], timeout: timedelta = _FORMING) -> None:
        self._store.wait(keys, timeout)


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
