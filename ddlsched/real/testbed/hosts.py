"""Workers on several real hosts: an agent on each, which whoever knows the token may ask for workers.

The handshake is that of ``ddlsched calibrate-agent`` (:mod:`ddlsched.real.wire.handshake`). Every
connection to an agent becomes the channel of one worker, so that the gate listens nowhere; a worker ends with its
connection. All-reduces go between the hosts themselves, neither encrypted nor proven, as gloo does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from ddlsched.errors import InputError, MeasurementError, TestbedError
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.launcher import become_worker, fork_worker, prepare
from ddlsched.real.wire.handshake import Address, answer_handshake, connect

__all__ = ["MOST_UNPROVEN", "MOST_WORKERS", "Agent", "HostCrew"]

MOST_WORKERS = 256
MOST_UNPROVEN = 16
"""Connections at a time that have proven nothing yet; one more ends the oldest of them."""
_PROVEN = b"\1"
_TURN_S = 1.0


class HostCrew(WorkerCrew):
    """Workers on hosts, in the order of the servers."""

    def __init__(self, hosts: Sequence[Address], token: bytes, *, realtime: bool = True) -> None:
        super().__init__()
        self._hosts, self._token, self._realtime = tuple(hosts), token, realtime

    def _connected(self, server: int) -> tuple[socket.socket, str]:
        host = self._hosts[server]
        try:
            role = {"kind": "testbed", "address": host.host, "realtime": self._realtime}
            return connect(host, self._token, role), host.host
        except MeasurementError as error:
            text = str(error).replace("ddlsched calibrate-agent", "ddlsched testbed agent")
            raise TestbedError(f"server {server}: {text}") from None


class Agent:
    """Listens on one address and becomes a worker, in a copy of its process, for whoever proves to know the token.

    Parameters
    ----------
    address
        Where to listen; port 0 takes any that is free.
    token
        Without which nobody gets a worker.
    tell
        Told of each connection that was refused.
    """

    def __init__(self, address: Address, token: bytes, *, tell: Callable[[str], None] = lambda _: None) -> None:
        self._token, self._tell = token, tell
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._listener = socket.create_server(address, family=family, backlog=256)
        except OSError as error:
            raise InputError(f"{address}: cannot listen there ({error.strerror or error})") from None
        self.address = Address(*self._listener.getsockname()[:2])
        """Where it listens."""
        self._unproven: dict[int, int] = {}  # where a worker's proof is read, and the worker; in order of arrival
        self._workers: set[int] = set()

    def serve(self) -> None:
        """Answer everybody who connects, each in a copy of this process, until interrupted."""
        prepare()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while True:
            sources: list[Any] = [self._listener, *self._unproven]
            readable, _, _ = select.select(sources, [], [], _TURN_S)
            for proof in [proof for proof in self._unproven if proof in readable]:
                del self._unproven[proof]
                os.close(proof)
            self._bury()
            if self._listener in readable:
                self._accept()

    def _accept(self) -> None:
        try:
            connection, peer = self._listener.accept()
        except OSError as error:
            self._tell(f"a connection failed ({error.strerror or error})")
            return
        if len(self._workers) >= MOST_WORKERS:
            self._tell(f"refused {peer[0]}: there are {MOST_WORKERS} workers")
        else:
            if len(self._unproven) >= MOST_UNPROVEN:
                self._end_oldest()
            proof, proven = os.pipe()
            worker = fork_worker(lambda: self._work(connection, str(peer[0]), proven))
            os.close(proven)
            self._workers.add(worker)
            self._unproven[proof] = worker
        connection.close()

    def _end_oldest(self) -> None:
        proof = next(iter(self._unproven))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._unproven.pop(proof), signal.SIGKILL)
        os.close(proof)

    def _bury(self) -> None:
        for worker in list(self._workers):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(worker, os.WNOHANG)[0] == 0:
                    continue
            self._workers.discard(worker)

    def _work(self, connection: socket.socket, peer: str, proven: int) -> None:
        self._listener.close()
        try:
            role = answer_handshake(connection, self._token)
            if role.get("kind") != "testbed":
                raise MeasurementError("a connection for no worker of a testbed came")
        except (MeasurementError, OSError, ValueError, RecursionError) as error:
            self._tell(f"refused {peer}: {error}")
            return
        os.write(proven, _PROVEN)
        connection.settimeout(None)
        become_worker(connection, namespace=None, realtime=bool(role.get("realtime")))
