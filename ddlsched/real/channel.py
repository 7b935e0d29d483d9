"""A connection that carries JSON objects, one a line, in both directions.

Who may talk to whom: a token that both sides know and neither sends, and one HMAC for all that is proven by it.

Each side answers the other's random number with an HMAC-SHA256 of both. Messages are bounded before they are read, in
bytes and, as a whole, in time. Nothing is encrypted.

Why not one of a library: ``multiprocessing.connection`` takes HMAC-MD5 up to Python 3.11 and reads without any
deadline; ``ssl`` knows shared keys from Python 3.13 on only, and certificates for a measurement of minutes are more to
get wrong than a token; ZeroMQ and others hide the plain TCP sockets that are to be measured.

Who listens: lines are read of everybody who connects, without ever waiting for one of them.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import secrets
import selectors
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from ddlsched.errors import InputError, MeasurementError, TestbedError
from ddlsched.io.files import read_text, readable

MOST_BYTES = 1 << 24
"""Of a line: a job of 10,000 tasks fits."""
_SEND_S = 5.0
_PIECE_BYTES = 1 << 16


class WireError(TestbedError, MeasurementError):
    """What came is no message, or none came in time; a run and a measurement end alike."""


class ChannelEndedError(WireError):
    """The other side is gone."""


class Channel:
    """A stream socket with messages on it; several threads may send.

    JSON is the standard library's: errors that are told may hold half a surrogate pair, which msgspec refuses.

    Parameters
    ----------
    connection
        Connected; closed with the channel.
    most_bytes
        A longer line ends the channel.
    """

    def __init__(self, connection: socket.socket, most_bytes: int = MOST_BYTES) -> None:
        self._connection, self.most_bytes = connection, most_bytes
        self._connection.settimeout(_SEND_S)
        self._rest = b""
        self._sending = threading.Lock()
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Channel:
        """Return itself; it is closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def fileno(self) -> int:
        """Return the socket's number, for selectors."""
        return self._connection.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises
        ------
        ChannelEndedError
            The other side is gone, or takes nothing for 5 s.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError as error:
            raise ChannelEndedError(f"a message could not be sent ({error.strerror or error})") from None

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that one reading brings, perhaps none; waits only if nothing has come.

        Raises
        ------
        ChannelEndedError
            The connection ended, or what came is no message.
        """
        *lines, self._rest = (self._rest + self._piece()).split(b"\n")
        self._refuse_long(self._rest)
        return [_parsed(line) for line in lines]

    def next(self, within_s: float) -> dict[str, Any]:
        """Return one message, all of which must come in time, and read nothing beyond it.

        A timeout of each piece would not do: whoever sends a byte now and then would be waited for without end.

        Raises
        ------
        WireError
            It is too late, or (:class:`ChannelEndedError`) the connection ended, or what came is no message.
        """
        ends_s = time.monotonic() + within_s
        line = b""
        while not line.endswith(b"\n"):
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise WireError("nothing whole came in time")
            self._connection.settimeout(left_s)
            piece = self._piece(socket.MSG_PEEK)
            line += self._connection.recv(piece.find(b"\n") + 1 or len(piece)) if piece else b""
            self._refuse_long(line)
        self._connection.settimeout(_SEND_S)
        return _parsed(line)

    def _piece(self, flags: int = 0) -> bytes:
        try:
            piece = self._connection.recv(_PIECE_BYTES, flags)
        except TimeoutError:
            return b""
        except OSError as error:
            raise ChannelEndedError(f"the connection failed ({error.strerror or error})") from None
        if not piece:
            raise ChannelEndedError("the connection ended")
        return piece

    def _refuse_long(self, line: bytes) -> None:
        if len(line) > self.most_bytes:
            raise ChannelEndedError(f"a line of more than {self.most_bytes} bytes came")

    def taken(self) -> socket.socket:
        """Return the connection for plain bytes from here on."""
        return self._connection

    def close(self) -> None:
        """Close the connection; the other side's next reading says so."""
        self._connection.close()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ChannelEndedError(f"{line[:60]!r} came; expected a JSON object")
    return message


MOST_UNPROVEN_BYTES = 512
"""Of a line before the token is proven."""
HANDSHAKE_S = 10.0
"""For a whole handshake, however many pieces it comes in."""
LEAST_TOKEN = 16
_VERSION = "ddlsched 2"
_NONCE_BYTES = 32


class Address(NamedTuple):
    """A host and a TCP port."""

    host: Annotated[str, msgspec.Meta(max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, *, any_port: bool = False) -> Address:
    """Return what ``host:port`` or ``[IPv6]:port`` says; port 0 (any that is free) only if ``any_port``."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or not (0 if any_port else 1) <= int(port) <= 65_535:
        raise InputError(f"{text!r} is no address; expected HOST:PORT, such as 10.0.0.1:7411")
    return Address(host, int(port))


def read_token(path: Path) -> bytes:
    """Return the token in a file, without the space around it.

    Raises
    ------
    InputError
        It cannot be read, is short, or others than its owner may read or change it.
    """
    token = readable(path, "a file with a token", _private_text).strip()
    if len(token) < LEAST_TOKEN:
        raise InputError(
            f"{path}: the token has {len(token)} characters; expected at least {LEAST_TOKEN} "
            "(openssl rand -hex 32 makes a good one)"
        )
    return token.encode()


def _private_text(path: Path) -> str:
    text, mode = read_text(path), stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise InputError(f"{path}: others can read or change it (mode {mode:04o}); expected: chmod 600 {path}")
    return text


def proof(key: bytes, *parts: str | bytes) -> bytes:
    """Return what only who knows a key can say of some parts; their order and their ends count."""
    digest = hmac.new(key, digestmod="sha256")
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def is_proven(said: str | bytes, key: bytes, *parts: str | bytes) -> bool:
    """Return whether somebody's proof, as bytes or in hexadecimal digits, is that of these parts."""
    known = proof(key, *parts)
    return (
        hmac.compare_digest(said.encode(), known.hex().encode())
        if isinstance(said, str)
        else (hmac.compare_digest(said, known))
    )


class Answer(msgspec.Struct):
    """What one who connects says to a greeting."""

    nonce: str
    role: str
    proof: str


class Greeting:
    """One handshake, as the side sees it that listens."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(_NONCE_BYTES)

    @property
    def line(self) -> bytes:
        """What is said first."""
        return json.dumps({"version": _VERSION, "nonce": self._nonce}).encode() + b"\n"

    def answered(self, line: bytes, token: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the role of one who has proven to know the token, and what proves it to him.

        Raises
        ------
        WireError
            The proof is wrong, or what came is no handshake.
        """
        try:
            answer = msgspec.json.decode(line, type=Answer)
            role = json.loads(answer.role)
            is_good = len(answer.nonce) == 2 * _NONCE_BYTES and is_proven(
                answer.proof, token, "asks", self._nonce, answer.nonce, answer.role
            )
        except (ValueError, RecursionError):  # of which msgspec's errors are
            raise WireError("a handshake without nonce, role and proof came") from None
        if not is_good:
            raise WireError("a wrong proof of the token came")
        if not isinstance(role, dict):
            raise WireError("a role that is no JSON object came")
        return role, {"proof": proof(token, "answers", self._nonce, answer.nonce, answer.role).hex()}


def connect(address: Address, token: bytes, role: dict[str, Any], there: str = "ddlsched calibrate-agent") -> Channel:
    """Return a channel to one who has proven to know the token, and to whom we have.

    Parameters
    ----------
    address
        Of the other side.
    token
        Which both know.
    role
        What the connection is for; covered by the proof.
    there
        The command that is expected to listen there.

    Raises
    ------
    MeasurementError
        Nobody answers there, or one who does not know the token.
    """
    try:
        channel = Channel(socket.create_connection(address, timeout=HANDSHAKE_S), MOST_UNPROVEN_BYTES)
    except (OSError, UnicodeError) as error:  # a host's name may be none
        why = getattr(error, "strerror", None) or error
        raise MeasurementError(f"{address}: cannot be reached ({why}); expected `{there}` there") from None
    try:
        _prove(channel, token, role)
    except (OSError, WireError, KeyError, ValueError) as error:
        channel.close()
        raise MeasurementError(f"{address}: does not know the token, or is no agent ({error})") from None
    except BaseException:
        channel.close()
        raise
    channel.most_bytes = MOST_BYTES
    return channel


def _prove(channel: Channel, token: bytes, role: dict[str, Any]) -> None:
    ends_s = time.monotonic() + HANDSHAKE_S
    greeting = channel.next(HANDSHAKE_S)
    if greeting.get("version") != _VERSION:
        raise WireError(f"it speaks {str(greeting.get('version'))[:40]!r}; expected {_VERSION!r}")
    own, text = secrets.token_hex(_NONCE_BYTES), json.dumps(role)
    said = str(greeting["nonce"]), own, text
    channel.send({"nonce": own, "role": text, "proof": proof(token, "asks", *said).hex()})
    if not is_proven(str(channel.next(ends_s - time.monotonic())["proof"]), token, "answers", *said):
        raise WireError("its proof is wrong")


MOST_OF_A_PEER: Final = 16
"""A host proves one connection after the other; several agents of one host, or behind one address, some more."""
_MOST: Final = 128
_PAUSE_S = 0.1


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
        """Let nobody connect any more; whoever waits for lines, perhaps another thread, goes on."""
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


class TokenListener(LineListener):
    """Listens on an address, and hands on who proves to know the token.

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

    def __init__(self, address: Address, token: bytes, tell: Callable[[str], None] = lambda _: None) -> None:
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


class TokenService:
    """Serves who proves to know the token on an address, until it is closed.

    Parameters
    ----------
    address
        Where to listen; port 0 takes any that is free.
    token
        Without which nobody is answered.
    tell
        Told of each connection that was refused.
    """

    def __init__(self, address: Address, token: bytes, tell: Callable[[str], None]) -> None:
        self._listener, self._tell, self._closed = TokenListener(address, token, tell), tell, False
        self.address = self._listener.address
        """Where it listens."""

    def close(self) -> None:
        """Stop listening; who serves returns."""
        self._closed = True
        self._listener.stop()

    def _refuse(self, caller: Caller, why: str) -> None:
        self._tell(f"refused {caller.peer}: {why}")
        caller.channel.close()


def listening(address: Address, backlog: int = 256) -> socket.socket:
    """Return a socket that listens at an address.

    Raises
    ------
    InputError
        Nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=backlog)
    except OSError as error:
        where = address if address.port else address.host
        raise InputError(f"{where}: cannot listen there ({error.strerror or error})") from None


def _peer(address: str) -> str:
    """Return whom an address belongs to: IPv6 hosts have 2**64 each."""
    if not address:
        return ""
    host = ipaddress.ip_address(address.partition("%")[0])
    return str(ipaddress.ip_network((host, 64), strict=False)) if host.version == 6 else str(host)
