"""A gate that listens on TCP for the ranks of users' own jobs, which prove to know a token."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from ddlsched.errors import InputError, MeasurementError
from ddlsched.real.gate.loop import ChannelRank
from ddlsched.real.gate.membership import Membership
from ddlsched.real.wire.channel import Channel, ChannelEndedError
from ddlsched.real.wire.handshake import Address, answer_handshake
from ddlsched.real.wire.listener import Unproven
from ddlsched.units import NS_PER_S

__all__ = ["GateService"]

_TURN_S = 1.0


class GateService:
    """Serves :class:`~ddlsched.real.gate.membership.Membership` on an address until it is closed.

    Parameters
    ----------
    address
        Where to listen; port 0 takes any that is free.
    token
        Without which nobody may join.
    members
        The jobs.
    tell
        Told of each connection that was refused.
    """

    def __init__(
        self, address: Address, token: bytes, members: Membership, *, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._token, self._members, self._tell = token, members, tell
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._listener = socket.create_server(address, family=family, backlog=256)
        except OSError as error:
            raise InputError(f"{address}: cannot listen there ({error.strerror or error})") from None
        self.address = Address(*self._listener.getsockname()[:2])
        """Where it listens."""
        self._unproven = Unproven()
        self._proven: queue.SimpleQueue[tuple[socket.socket, dict[str, Any], str]] = queue.SimpleQueue()
        self._wakes, self._wake = socket.socketpair()
        self._servers: dict[str, int] = {}
        self._closed = False
        self._look_ns = 0

    def close(self) -> None:
        """Stop listening; :meth:`serve` returns, and every rank is told by the end of its connection."""
        self._closed = True
        self._wake.send(b"\0")

    def serve(self) -> None:
        """Let ranks join, and decide, until closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            try:
                while not self._closed:
                    self._turn(selector)
            finally:
                self._listener.close()
                for key in list(selector.get_map().values()):
                    if isinstance(key.data, ChannelRank):
                        key.data.channel.close()

    def _turn(self, selector: selectors.BaseSelector) -> None:
        wake_ns = self._members.wake_ns
        until_s = _TURN_S if wake_ns is None else max(wake_ns - self._members.now_ns(), 0) / NS_PER_S
        for key, _ in selector.select(min(until_s, _TURN_S)):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wakes:
                self._wakes.recv(4096)
                self._take_in(selector)
            else:
                self._read(selector, key.data)
        if self._members.now_ns() >= self._look_ns:
            self._look_ns = self._members.now_ns() + int(_TURN_S * NS_PER_S)
            self._members.look_after()
        self._members.decide()

    def _accept(self) -> None:
        try:
            connection, peer = self._listener.accept()
        except OSError as error:
            self._tell(f"a connection failed ({error.strerror or error})")
            return
        self._unproven.add(connection, str(peer[0]))
        threading.Thread(target=self._prove, args=(connection, str(peer[0])), daemon=True).start()

    def _prove(self, connection: socket.socket, peer: str) -> None:
        try:
            role = answer_handshake(connection, self._token)
            if not self._unproven.remove(connection) or role.get("kind") != "gate":
                raise MeasurementError("a connection for no rank of a job came")
            self._proven.put((connection, role, peer))
            self._wake.send(b"\0")
        except (MeasurementError, OSError, ValueError, RecursionError) as error:
            self._unproven.remove(connection)
            self._tell(f"refused {peer}: {error}")
            connection.close()

    def _take_in(self, selector: selectors.BaseSelector) -> None:
        while not self._proven.empty():
            connection, role, peer = self._proven.get()
            given = role.get("server")
            server = given if isinstance(given, int) else self._servers.setdefault(peer, len(self._servers))
            rank = ChannelRank(Channel(connection), server, peer)
            selector.register(rank.channel, selectors.EVENT_READ, rank)

    def _read(self, selector: selectors.BaseSelector, rank: ChannelRank) -> None:
        try:
            for message in rank.channel.receive():
                self._members.hear(rank, message)
        except ChannelEndedError as error:
            selector.unregister(rank.channel)
            rank.channel.close()
            self._members.lose(rank, f"is gone: {error}")
