"""Who listens: lines are read of everybody who connects, without ever waiting for one of them."""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ddlsched.errors import InputError
from ddlsched.real.channel import HANDSHAKE_S, MOST_UNPROVEN_BYTES, Address, Channel, Greeting, WireError

MOST_OF_A_PEER: Final = 16
"""A host proves one connection after the other; several agents of one host, or behind one address, some more."""
_MOST: Final = 128
_PAUSE_S = 0.1
_BACKLOG = 256


@dataclass(eq=False)
class Visitor:
    """One who has connected: since when, from where, and what of a line has come."""

    connection: socket.socket
    peer: str
    since_s: float = field(default_factory=time.monotonic)
    greeting: Greeting = field(default_factory=Greeting)
    received: bytes = b""


class LineListener:
    """Reads lines of whoever connects; of too many connections, a peer's or in all, the oldest is ended.

    A limit that refuses the next connection is a door that slow ones hold shut, also to an honest host of the same
    address. An honest one says its line within milliseconds, and is rarely the oldest.

    Parameters
    ----------
    listener
        Listens.
    most_bytes
        Of a line with its break; a longer one ends its connection.
    most, most_of_a_peer
        Connections at a time, in all and from one address.
    within_s
        So long a connection may be, seconds.
    tell
        Told of each connection that was refused.
    """

    def __init__(
        self,
        listener: socket.socket,
        most_bytes: int,
        *,
        most: int = _MOST,
        most_of_a_peer: int | None = None,
        within_s: float = float("inf"),
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._listener, self._most_bytes, self._tell = listener, most_bytes, tell
        self._most, self._most_of_a_peer, self._within_s = most, most_of_a_peer or most, within_s
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._visitors: dict[socket.socket, Visitor] = {}  # in order of arrival
        self._closed = False
        self.refused = 0
        """Connections that were ended, and lines that were dropped."""

    def fileno(self) -> int:
        """Return a number for selectors: something has come."""
        return self._selector.fileno()

    def lines(self, timeout_s: float) -> list[tuple[Visitor, bytes]]:
        """Return the lines that have come, with whose they are, after at most ``timeout_s``."""
        lines = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif (visitor := self._visitors.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                lines += [(visitor, line) for line in self._read(visitor)]
        late_s = time.monotonic() - self._within_s
        for visitor in [each for each in self._visitors.values() if each.since_s < late_s]:
            self.refuse(visitor, "nothing whole came in time")
        return lines

    def _accept(self) -> None:
        try:
            connection, peer = self._listener.accept()
        except OSError as error:
            if not self._closed:
                self._tell(f"a connection failed ({error.strerror or error})")
                time.sleep(_PAUSE_S)  # there may be no file descriptors left for a while
            return
        connection.setblocking(False)
        self.admit(connection, str(peer[0]) if peer else "")

    def admit(self, connection: socket.socket, address: str) -> Visitor:
        """Take in a connection from an address, in the place of the oldest if there are too many."""
        peer = _peer(address)
        if Counter(visitor.peer for visitor in self._visitors.values())[peer] >= self._most_of_a_peer:
            self.refuse(next(known for known in self._visitors.values() if known.peer == peer), "too many came")
        elif len(self._visitors) >= self._most:
            self.refuse(next(iter(self._visitors.values())), "too many came")
        self._visitors[connection] = visitor = Visitor(connection, peer)
        self._selector.register(connection, selectors.EVENT_READ)
        return visitor

    def _read(self, visitor: Visitor) -> list[bytes]:
        try:
            piece = visitor.connection.recv(self._most_bytes + 1)
        except OSError:
            piece = b""
        *lines, visitor.received = (visitor.received + piece).split(b"\n")
        if len(visitor.received) >= self._most_bytes:
            self.refuse(visitor, f"a line of more than {self._most_bytes} bytes came")
        elif not piece and visitor.received:
            self.refuse(visitor, "the connection ended within a line")
        elif not piece:
            self.part(visitor).close()
        return lines

    def refuse(self, visitor: Visitor, why: str) -> None:
        """End a connection."""
        self.refused += 1
        if visitor.connection in self._visitors:
            self._tell(f"refused {visitor.peer}: {why}")
            self.part(visitor).close()

    def part(self, visitor: Visitor) -> socket.socket:
        """Return a connection of which nothing more is read here."""
        del self._visitors[visitor.connection]
        self._selector.unregister(visitor.connection)
        return visitor.connection

    def stop(self) -> None:
        """Let nobody connect any more; whoever waits for lines, perhaps another thread, goes on and may end then."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close what a copy of this process has of everything, and end nothing."""
        for visitor in self._visitors:
            visitor.close()
        self._selector.close()
        self._listener.close()

    def close(self) -> None:
        """End everything."""
        self.stop()
        for visitor in list(self._visitors.values()):
            self.part(visitor).close()
        self._selector.close()
        self._listener.close()


class Caller(NamedTuple):
    """One who has proven to know the token: a channel to him, what for, and from which address."""

    channel: Channel
    role: dict[str, Any]
    peer: str


class TokenService(LineListener):
    """Listens on an address until it is stopped, and hands on who proves to know the token.

    Parameters
    ----------
    address
        Where to listen; port 0 takes any that is free.
    token
        Without which nobody is answered.
    tell
        Told of each connection that was refused.

    Raises
    ------
    InputError
        Nobody can listen there.
    """

    def __init__(self, address: Address, token: bytes, tell: Callable[[str], None]) -> None:
        listener = listening(address)
        super().__init__(listener, MOST_UNPROVEN_BYTES, most_of_a_peer=MOST_OF_A_PEER, within_s=HANDSHAKE_S, tell=tell)
        self._token = token
        self.address = Address(*listener.getsockname()[:2])
        """Where it listens."""

    def admit(self, connection: socket.socket, address: str) -> Visitor:
        """Greet whoever connects."""
        visitor = super().admit(connection, address)
        with contextlib.suppress(OSError):  # he has gone again, which is read
            connection.send(visitor.greeting.line)
        return visitor

    def callers(self, timeout_s: float) -> list[Caller]:
        """Return who has proven to know the token, after at most ``timeout_s``."""
        callers = []
        for visitor, line in self.lines(timeout_s):
            try:
                role, answer = visitor.greeting.answered(line, self._token)
                if visitor.connection not in self._visitors or visitor.received:
                    raise WireError("more than a handshake came")
                channel = Channel(self.part(visitor))
                channel.send(answer)
                callers.append(Caller(channel, role, visitor.peer))
            except WireError as error:
                self.refuse(visitor, str(error))
        return callers

    def _turn_away(self, caller: Caller, why: str) -> None:
        self._tell(f"refused {caller.peer}: {why}")
        caller.channel.close()


def listening(address: Address) -> socket.socket:
    """Return a socket that listens at an address.

    Raises
    ------
    InputError
        Nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        where = address if address.port else address.host
        raise InputError(f"{where}: cannot listen there ({error.strerror or error})") from None


def _peer(address: str) -> str:
    """Return whom an address belongs to: IPv6 hosts have 2**64 each."""
    if not address:
        return ""
    host = ipaddress.ip_address(address.partition("%")[0])
    return str(ipaddress.ip_network((host, 64), strict=False)) if host.version == 6 else str(host)
