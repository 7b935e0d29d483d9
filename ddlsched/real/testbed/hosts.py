"""Workers on several real hosts: an agent on each, which whoever knows the token may ask for workers.

Every connection to an agent becomes the channel of one worker, so that the gate listens nowhere; a worker ends with
its connection. All-reduces go between the hosts themselves, neither encrypted nor proven, as gloo does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from ddlsched.errors import MeasurementError, TestbedError
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.launcher import become_worker, fork_worker, prepare
from ddlsched.real.wire.channel import Channel
from ddlsched.real.wire.handshake import Address, connect
from ddlsched.real.wire.listener import Caller, TokenListener

__all__ = ["MOST_WORKERS", "HostCrew", "WorkerAgent"]

MOST_WORKERS = 256
_TURN_S = 1.0


class HostCrew(WorkerCrew):
    """Workers on hosts, in the order of the servers."""

    def __init__(self, hosts: Sequence[Address], token: bytes, *, realtime: bool = True) -> None:
        super().__init__()
        self._hosts, self._token, self._realtime = tuple(hosts), token, realtime

    def _connected(self, server: int) -> tuple[Channel, str]:
        host = self._hosts[server]
        try:
            role = {"kind": "testbed", "address": host.host, "realtime": self._realtime}
            return connect(host, self._token, role, "ddlsched testbed agent"), host.host
        except MeasurementError as error:
            raise TestbedError(f"server {server}: {error}") from None


class WorkerAgent:
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
        self._listener, self._tell = TokenListener(address, token, tell), tell
        self.address = self._listener.address
        """Where it listens."""
        self._workers: set[int] = set()

    def serve(self) -> None:
        """Answer everybody who knows the token, each in a copy of this process, until interrupted."""
        prepare()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while True:
            callers = self._listener.callers(_TURN_S)
            self._bury()
            for caller in callers:
                self._employ(caller)

    def _employ(self, caller: Caller) -> None:
        why = "a connection for no worker of a testbed came" if caller.role.get("kind") != "testbed" else ""
        if why or len(self._workers) >= MOST_WORKERS:
            self._tell(f"refused {caller.peer}: {why or f'there are {MOST_WORKERS} workers'}")
        else:
            self._workers.add(fork_worker(lambda: self._work(caller)))
        caller.channel.close()

    def _bury(self) -> None:
        for worker in list(self._workers):
            with suppress(ChildProcessError):
                if os.waitpid(worker, os.WNOHANG)[0] == 0:
                    continue
            self._workers.discard(worker)

    def _work(self, caller: Caller) -> None:
        self._listener.forget()
        become_worker(caller.channel, namespace=None, realtime=bool(caller.role.get("realtime")))
