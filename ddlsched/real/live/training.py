"""Data-parallel PyTorch training that outlives changes of its nodes: ``train`` is all that a script calls.

Process groups are formed and left again and again in one process. A process that stays keeps its weights in memory and
joins the next group; one that joins loads the last commit. After a group that broke in the middle of a step all load
the last commit, since nobody knows who has done the step.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import distributed

from ddlsched.errors import InputError
from ddlsched.real.live.meetings import Seal, meet
from ddlsched.real.live.seat import CommitTimes, Orders, Seat


class Stateful(Protocol):
    """A model, an optimiser, a schedule, ...: what can give its state away and take it back."""

    def state_dict(self) -> Any:
        """Return the state, in what ``torch.save`` writes and ``torch.load`` reads with ``weights_only``."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a state."""


Step = Callable[[int], float]


def train(begin: Callable[[int, int], Step], state: Mapping[str, Stateful], samples_a_step: int) -> None:
    """Train until the last step is committed, whatever groups that takes; only the process of rank 0 returns.

    Parameters
    ----------
    begin
        Called in every new group with this process's rank and the number of ranks. Makes what depends on them
        (``DistributedDataParallel``, a sampler) and returns the step: a function from the step's number (from 0) to its
        loss, of which that of rank 0 is kept. A step must draw its samples by its number, the rank and the ranks alone.
    state
        What goes on from step to step, by names. It must be whole once the step returns.
    samples_a_step
        Of all ranks together, for the manager's measurements.

    Raises
    ------
    InputError
        This process was not started by ``ddlsched live``, or what is committed cannot be loaded.
    """
    if Seat.here is None:
        raise InputError("train: was called outside of a job; expected a script that ddlsched live runs")
    training = _Training(Seat.here, begin, state, samples_a_step)
    while not training.is_done:
        orders = training.seat.orders()
        try:
            training.in_group(orders)
        except RuntimeError:  # What gloo raises when another process has gone; it has no class of its own.
            if orders.ranks == 1:
                raise
            traceback.print_exc()


class _Training:
    """What a process holds from group to group."""

    def __init__(
        self, seat: Seat, begin: Callable[[int, int], Step], state: Mapping[str, Stateful], samples_a_step: int
    ) -> None:
        self.seat, self._begin, self._state, self._samples = seat, begin, state, samples_a_step
        self._in_memory: int | None = None
        """Steps that the state in memory has seen; None at first, in the middle of one, and after one that broke."""
        self._kept: Any = None
        """The last group, until the next. When a group goes, torch waits for its threads, and holds Python's lock if a
        DistributedDataParallel was the last to have it; a thread that has just ended a collective may need that lock.
        """
        self.is_done = False
        self._times = CommitTimes(seat.assignment.job)

    def in_group(self, orders: Orders) -> None:
        """Train as a rank of a group until the last step, or until all are asked to leave."""
        store = meeting(self.seat, orders)
        if store is None:
            return
        with group(store, orders), self.seat.writing(orders):
            self._kept = distributed.group.WORLD
            done = self._agree(orders)
            step = self._begin(orders.rank, orders.ranks)
            self._times.begin(orders)
            committed = done
            while done < self.seat.assignment.steps and not self._are_to_leave(orders):
                self._in_memory = None
                loss = float(step(done))
                done = self._in_memory = done + 1
                if orders.rank == 0:
                    self._losses.append(loss)
                    if self._times.is_due() or done == self.seat.assignment.steps:
                        self._commit()
                        committed = done
                    self.seat.report(self._losses, done * self._samples, orders.ranks, self._times.write_s)
            if orders.rank == 0 and committed < done:
                self._commit()
            if done == self.seat.assignment.steps and orders.rank > 0:
                self.seat.wait_for_leave()  # Until the manager ends this process, or wants it to do the step again.
        self.is_done = done == self.seat.assignment.steps and orders.rank == 0

    def _agree(self, orders: Orders) -> int:
        """Return the number of committed steps, once every rank has the state after them.

        Nobody of the group before can commit any more: all who are alive have left it for this one.
        """
        if orders.rank == 0:
            self._losses = self.seat.commits.losses()
            if not self._losses and not self.seat.commits.has_state(0):
                self._commit()  # What all begin with.
        done = _from_first(len(self._losses) if orders.rank == 0 else 0)
        if self._in_memory != done:
            self._load(done)
        self._in_memory = done
        distributed.barrier()
        return done

    def _load(self, done: int) -> None:
        try:
            with self.seat.commits.open_state(done) as file:
                kept = torch.load(file, weights_only=True)
            for name, each in self._state.items():
                each.load_state_dict(kept[name])
        except (OSError, InputError, KeyError) as error:
            where = self.seat.commits.name_of_state(done)
            raise InputError(f"{where}: cannot be loaded ({error}); expected the state that was committed") from None

    def _are_to_leave(self, orders: Orders) -> bool:
        """Return the same answer on every rank, so that all leave between the same two steps."""
        return bool(_from_first(orders.rank == 0 and self.seat.is_asked_to_leave()))

    def _commit(self) -> None:
        with self._times.timed():
            states = {name: each.state_dict() for name, each in self._state.items()}
            self.seat.commits.commit(self._losses, lambda file: torch.save(states, file))


def _from_first(value: int) -> int:
    """Return the value of rank 0."""
    shared = torch.tensor(value)
    distributed.broadcast(shared, 0)
    return int(shared)


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
