"""The agent that stands on each host and takes part in rings for whoever knows the token, one measurement at a time."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ddlsched.errors import InputError, MeasurementError
from ddlsched.real.calibration.ring import ITEM_BYTES, STALL_S, timed_all_reduce
from ddlsched.real.wire.handshake import (
    Address,
    ConnectionEndedError,
    answer_handshake,
    connect,
    receive,
    send,
)
from ddlsched.real.wire.listener import Unproven
from ddlsched.units import is_whole

__all__ = ["MAX_HOSTS", "MAX_JOBS", "MAX_REPEATS", "Agent", "Request"]

MAX_HOSTS = 64
MAX_JOBS = 64
MAX_REPEATS = 1000
_IDLE_S = 2 * STALL_S
"""So long a measuring host may say nothing between requests; its other agents end a ring within :data:`STALL_S`."""
_CONNECT_S = 20.0
"""So long an agent waits for the rings' connections from the rank before."""
_PAUSE_S = 0.1
_COPIES = 2
"""Of a message in memory, at most: the message and what arrives."""


@dataclass(frozen=True)
class Request:
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

    run: str
    hosts: tuple[Address, ...]
    rank: int
    jobs: int
    message_bytes: int
    repeats: int

    @classmethod
    def parsed(cls, message: dict[str, Any], most_bytes: int) -> Request:
        """Return the request in a message.

        Raises
        ------
        MeasurementError
            A field is missing, unknown or out of bounds, or it would take more memory than ``most_bytes``.
        """
        names = set(cls.__dataclass_fields__)
        if set(message) != names:
            raise MeasurementError(f"a request with the fields {sorted(message)[:10]} came; expected {sorted(names)}")
        hosts, count = message["hosts"], 0
        if isinstance(hosts, list) and 2 <= len(hosts) <= MAX_HOSTS and all(map(_is_address, hosts)):
            count = len(hosts)
        checks = {
            "hosts": count > 0,
            "run": isinstance(message["run"], str) and len(message["run"]) == 32 and message["run"].isalnum(),
            "rank": is_whole(message["rank"], 0, count - 1),
            "jobs": is_whole(message["jobs"], 1, MAX_JOBS),
            "repeats": is_whole(message["repeats"], 1, MAX_REPEATS),
            "message_bytes": is_whole(message["message_bytes"], ITEM_BYTES * max(count, 1), most_bytes),
        }
        for name, good in checks.items():
            if not good:
                raise MeasurementError(f"a request came in which {name} is {str(message[name])[:80]}, out of bounds")
        taken = _COPIES * message["jobs"] * message["message_bytes"]
        if message["message_bytes"] % ITEM_BYTES or taken > most_bytes:
            raise MeasurementError(
                f"{message['jobs']} all-reduces of {message['message_bytes']} B would take {taken / 1e6:.0f} MB; "
                f"expected at most {most_bytes / 1e6:.0f} MB (--memory-mb) and a multiple of {ITEM_BYTES} B"
            )
        return cls(**{**message, "hosts": tuple(Address(*host) for host in hosts)})


def _is_address(host: object) -> bool:
    return (
        isinstance(host, list)
        and len(host) == 2
        and isinstance(host[0], str)
        and len(host[0]) <= 255
        and is_whole(host[1], 1, 65_535)
    )


class Agent:
    """Listens on one address until it is closed.

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
        self._token, self._most_bytes, self._tell = token, most_bytes, tell
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._listener = socket.create_server(address, family=family, backlog=256)
        except OSError as error:
            raise InputError(f"{address}: cannot listen there ({error.strerror or error})") from None
        self.address = Address(*self._listener.getsockname()[:2])
        """Where it listens."""
        self._unproven = Unproven()
        self._busy = threading.Lock()
        self._run: str | None = None
        self._arrived: queue.Queue[tuple[int, socket.socket]] = queue.Queue()
        self._closed = False

    def __enter__(self) -> Agent:
        """Return itself; it is closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self.close()

    def close(self) -> None:
        """Stop listening; :meth:`serve` returns."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def serve(self) -> None:
        """Answer everybody who connects, each in a thread, until the agent is closed."""
        while not self._closed:
            try:
                connection, peer = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                self._tell(f"a connection failed ({error.strerror or error})")
                time.sleep(_PAUSE_S)  # there may be no file descriptors left for a while
                continue
            self._unproven.add(connection, str(peer[0]))
            threading.Thread(target=self._answer, args=(connection, str(peer[0])), daemon=True).start()

    def _answer(self, connection: socket.socket, peer: str) -> None:
        """Find out who it is; a ring's connection is handed to the run that waits for it, control is kept."""
        keep = False
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            role = answer_handshake(connection, self._token)
            if not self._unproven.remove(connection):
                return  # It was ended, as the oldest of too many, when its proof came.
            connection.settimeout(None)
            if role == {"kind": "control"}:
                self._control(connection)
                return
            run, ring = role.get("run"), role.get("ring")
            if role.get("kind") != "ring" or run != self._run or not is_whole(ring, 0, MAX_JOBS - 1):
                raise MeasurementError("a connection for no ring of this measurement came")
            self._arrived.put((int(str(ring)), connection))
            keep = True
        except (MeasurementError, OSError, ValueError, RecursionError) as error:
            self._tell(f"refused {peer}: {error}")
        finally:
            self._unproven.remove(connection)
            if not keep:
                connection.close()

    def _control(self, connection: socket.socket) -> None:
        """Carry out the measuring host's requests until it leaves or falls silent; one host at a time."""
        if not self._busy.acquire(blocking=False):
            send(connection, {"kind": "error", "message": "the agent is busy with another measurement"})
            return
        try:
            while True:
                try:
                    message = receive(connection, within_s=_IDLE_S)
                except ConnectionEndedError:
                    return
                self._carry_out(connection, message)
        finally:
            self._run = None
            self._busy.release()

    def _carry_out(self, connection: socket.socket, message: dict[str, Any]) -> None:
        """Take part in one measurement and say how long rank 0's all-reduces took; or say what went wrong."""
        rings: list[socket.socket] = []
        try:
            request = Request.parsed(message, self._most_bytes)
            after, before = self._connected(connection, request, rings)
            seconds = _measured(request, after, before)
            send(connection, {"kind": "done", "seconds": seconds})
        except (MeasurementError, OSError) as error:
            send(connection, {"kind": "error", "message": str(error)[:500]})
        finally:
            for ring in rings:
                ring.close()

    def _connected(
        self, connection: socket.socket, request: Request, rings: list[socket.socket]
    ) -> tuple[list[socket.socket], list[socket.socket]]:
        """Return each ring's connections to the next rank and from the one before, once everybody is ready.

        Two steps, so that every agent knows of the run before any connects to it.
        """
        self._forget_arrived()
        self._run = request.run
        _step(connection, "known", "connect")
        address = request.hosts[(request.rank + 1) % len(request.hosts)]
        after = []
        for ring in range(request.jobs):
            after.append(connect(address, self._token, {"kind": "ring", "run": request.run, "ring": ring}))
            rings.append(after[-1])
        before: dict[int, socket.socket] = {}
        while len(before) < request.jobs:
            try:
                ring, arrived = self._arrived.get(timeout=_CONNECT_S)
            except queue.Empty:
                raise MeasurementError("the rank before did not connect") from None
            rings.append(arrived)
            before[ring] = arrived
        _step(connection, "ready", "start")
        return after, [before[ring] for ring in sorted(before)]

    def _forget_arrived(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._arrived.get_nowait()[1].close()


def _step(connection: socket.socket, own: str, expected: str) -> None:
    """Say how far this agent is, and wait until the measuring host says that all are."""
    send(connection, {"kind": own})
    answer = receive(connection, within_s=3 * STALL_S)
    if answer != {"kind": expected}:
        raise MeasurementError(f"{str(answer)[:80]} came; expected {expected!r}")


def _measured(request: Request, after: list[socket.socket], before: list[socket.socket]) -> list[float]:
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
