"""The agent that stands on each host and takes part in rings for whoever knows the token, one measurement at a time."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import msgspec
import numpy as np

from ddlsched.errors import MeasurementError
from ddlsched.real.channel import Address, Channel, ChannelEndedError, WireError, connect
from ddlsched.real.listener import Caller, TokenService
from ddlsched.units import MAX_NS, is_whole

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


MAX_HOSTS = 64
MAX_JOBS = 64
MAX_REPEATS = 1000
_IDLE_S = 2 * STALL_S
"""So long a measuring host may say nothing between requests; its other agents end a ring within :data:`STALL_S`."""
_CONNECT_S = 20.0
"""So long an agent waits for the rings' connections from the rank before."""
_TURN_S = 1.0
_COPIES = 2
"""Of a message in memory, at most: the message and what arrives."""


class RingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement, as the measuring host asks each agent for it; what came over the network is checked here.

    Parameters
    ----------
    run
        Which rings belong together: a text of 32 hexadecimal digits.
    hosts
        Addresses of the agents in the order of the ring.
    rank
        Of this agent.
    jobs
        Rings at a time.
    message_bytes
        Of each all-reduce, a multiple of 4.
    repeats
        All-reduces of each ring, after one that is not counted.
    """

    run: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    hosts: Annotated[tuple[Address, ...], msgspec.Meta(min_length=2, max_length=MAX_HOSTS)]
    rank: Annotated[int, msgspec.Meta(ge=0)]
    jobs: Annotated[int, msgspec.Meta(ge=1, le=MAX_JOBS)]
    message_bytes: Annotated[int, msgspec.Meta(ge=ITEM_BYTES, le=MAX_NS, multiple_of=ITEM_BYTES)]
    repeats: Annotated[int, msgspec.Meta(ge=1, le=MAX_REPEATS)]

    @classmethod
    def parsed(cls, message: dict[str, Any], most_bytes: int) -> RingRequest:
        """Return the request in a message.

        Raises
        ------
        MeasurementError
            A field is missing, unknown or out of bounds, or it would take more memory than ``most_bytes``.
        """
        try:
            request = msgspec.convert(message, cls)
        except (msgspec.ValidationError, UnicodeError) as error:  # half a surrogate pair
            raise MeasurementError(f"a request came that is none: {error}") from None
        size = len(request.hosts)
        if request.rank >= size or request.message_bytes < ITEM_BYTES * size:
            raise MeasurementError(f"rank {request.rank} of {size}, {request.message_bytes} B came, out of bounds")
        if _COPIES * request.jobs * request.message_bytes > most_bytes:
            raise MeasurementError(
                f"{request.jobs} all-reduces of {request.message_bytes} B would take "
                f"{_COPIES * request.jobs * request.message_bytes / 1e6:.0f} MB; "
                f"expected at most {most_bytes / 1e6:.0f} MB (--memory-mb)"
            )
        return request


class RingAgent(TokenService):
    """Listens on one address until it is stopped.

    Parameters
    ----------
    address
        Where to listen; port 0 takes any that is free.
    token
        Without which nobody is answered.
    most_bytes
        Memory of one measurement.
    tell
        Told of each connection that was refused.
    """

    def __init__(
        self, address: Address, token: bytes, *, most_bytes: int = 2**31, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(address, token, tell)
        self._most_memory_bytes = most_bytes
        self._busy = threading.Lock()
        self._run: str | None = None
        self._arrived: queue.Queue[tuple[int, socket.socket]] = queue.Queue()

    def serve(self) -> None:
        """Answer everybody who knows the token until the agent is stopped: a measuring host in a thread of its own."""
        with contextlib.closing(self):
            while not self._closed:
                for caller in self.callers(_TURN_S):
                    if caller.role == {"kind": "control"}:
                        threading.Thread(target=self._control, args=(caller,), daemon=True).start()
                    else:
                        self._take_ring(caller)

    def _take_ring(self, caller: Caller) -> None:
        """Hand a ring's connection to the run that waits for it."""
        run, ring = caller.role.get("run"), caller.role.get("ring")
        if caller.role.get("kind") == "ring" and run == self._run and is_whole(ring, 0, MAX_JOBS - 1):
            self._arrived.put((int(str(ring)), caller.channel.taken()))
        else:
            self._turn_away(caller, "a connection for no ring of this measurement came")

    def _control(self, caller: Caller) -> None:
        """Carry out the measuring host's requests until it leaves or falls silent; one host at a time."""
        with caller.channel as channel:
            if not self._busy.acquire(blocking=False):
                channel.send({"kind": "error", "message": "the agent is busy with another measurement"})
                return
            try:
                while True:
                    self._carry_out(channel, channel.next(_IDLE_S))
            except ChannelEndedError:
                return
            except WireError as error:
                self._tell(f"refused {caller.peer}: {error}")
            finally:
                self._run = None
                self._busy.release()

    def _carry_out(self, channel: Channel, message: dict[str, Any]) -> None:
        """Take part in one measurement and say how long rank 0's all-reduces took; or say what went wrong."""
        with contextlib.ExitStack() as rings:
            try:
                request = RingRequest.parsed(message, self._most_memory_bytes)
                after, before = self._connected(channel, request, rings)
                channel.send({"kind": "done", "seconds": _measured(request, after, before)})
            except (MeasurementError, OSError) as error:
                channel.send({"kind": "error", "message": str(error)[:500]})

    def _connected(
        self, channel: Channel, request: RingRequest, rings: contextlib.ExitStack
    ) -> tuple[list[socket.socket], list[socket.socket]]:
        """Return each ring's connections to the next rank and from the one before, once everybody is ready.

        Two steps, so that every agent knows of the run before any connects to it.
        """
        self._forget_arrived()
        self._run = request.run
        _step(channel, "known", "connect")
        address = request.hosts[(request.rank + 1) % len(request.hosts)]
        roles = ({"kind": "ring", "run": request.run, "ring": ring} for ring in range(request.jobs))
        after = [rings.enter_context(connect(address, self._token, role).taken()) for role in roles]
        before: dict[int, socket.socket] = {}
        while len(before) < request.jobs:
            try:
                ring, arrived = self._arrived.get(timeout=_CONNECT_S)
            except queue.Empty:
                raise MeasurementError("the rank before did not connect") from None
            before[ring] = rings.enter_context(arrived)
        _step(channel, "ready", "start")
        return after, [before[ring] for ring in sorted(before)]

    def _forget_arrived(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._arrived.get_nowait()[1].close()


def _step(channel: Channel, own: str, expected: str) -> None:
    """Say how far this agent is, and wait until the measuring host says that all are."""
    channel.send({"kind": own})
    answer = channel.next(3 * STALL_S)
    if answer != {"kind": expected}:
        raise MeasurementError(f"{str(answer)[:80]} came; expected {expected!r}")


def _measured(request: RingRequest, after: list[socket.socket], before: list[socket.socket]) -> list[float]:
    """Return the mean time over the rings of each repeated all-reduce, as this rank saw it, seconds.

    Rank 0 starts all rings of a repeat together; the first repeat only opens the TCP windows.
    """
    together = threading.Barrier(request.jobs, timeout=STALL_S)
    size, count = len(request.hosts), request.message_bytes // ITEM_BYTES

    def ring(number: int) -> list[float]:
        times = []
        try:
            for _ in range(request.repeats + 1):
                if request.rank == 0:
                    together.wait()
                times.append(timed_all_reduce(count, request.rank, size, after[number], before[number]))
        except BaseException:
            together.abort()
            raise
        return times

    with ThreadPoolExecutor(request.jobs) as threads:
        try:
            rings = list(threads.map(ring, range(request.jobs)))
        except threading.BrokenBarrierError:
            raise MeasurementError("another ring of this measurement broke off") from None
    return [sum(times) / request.jobs for times in zip(*rings, strict=True)][1:]
