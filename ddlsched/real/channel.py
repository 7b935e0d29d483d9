"""A connection that carries JSON objects, one a line, in both directions.

Who may talk to whom: a token that both sides know and neither sends, and one HMAC for all that is proven by it.

Each side answers the other's random number with an HMAC-SHA256 of both. Messages are bounded before they are read, in
bytes and, as a whole, in time. Nothing is encrypted.

Why not one of a library: ``multiprocessing.connection`` takes HMAC-MD5 up to Python 3.11 and reads without any
deadline; ``ssl`` knows shared keys from Python 3.13 on only, and certificates for a measurement of minutes are more to
get wrong than a token; ZeroMQ and others hide the plain TCP sockets that are to be measured.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from ddlsched.errors import InputError, MeasurementError, TestbedError
from ddlsched.io.tables import read_text, readable
from ddlsched.units import MAX_NS

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

    def try_to_send(self, message: dict[str, Any]) -> None:
        """Send a message to one who may be gone, which the next reading says."""
        with suppress(ChannelEndedError):
            self.send(message)

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


Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NS)]
"""A whole number in a message."""
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
    if isinstance(said, str):
        said, known = said.encode(), known.hex().encode()
    return hmac.compare_digest(said, known)


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


def connected_at(path: Path | str, within_s: float) -> socket.socket:
    """Return a connection to a Unix socket; OSError if nobody takes it in time."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(within_s)
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


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
