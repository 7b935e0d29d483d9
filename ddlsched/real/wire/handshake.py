"""What agents and the measuring host say to each other: short JSON messages with a length in front, and a token.

Nobody is believed who cannot prove to know the token, which itself is never sent: each side answers the other's
random number with an HMAC-SHA256 of both. Messages are bounded before they are read, in bytes and, as a whole, in time.
Nothing is encrypted; what is reduced is made up.

Why not one of a library: ``multiprocessing.connection`` takes HMAC-MD5 up to Python 3.11, reads without any deadline,
and its listener proves one peer after the other, so that a single silent one keeps out all others; ``ssl`` knows
shared keys from Python 3.13 on only, and certificates for a measurement of minutes are more to get wrong than a token;
ZeroMQ and others hide the plain TCP sockets that are to be measured. What is our own is the handshake:
:func:`answer_handshake` and its other side, :func:`connect`.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

from ddlsched.errors import InputError, MeasurementError
from ddlsched.io.tables import read_text, readable

__all__ = [
    "Address",
    "ConnectionEndedError",
    "answer_handshake",
    "connect",
    "parse_address",
    "read_token",
    "receive",
    "send",
]

MOST_BYTES = 65_536
"""Of a message of somebody who knows the token."""
MOST_UNPROVEN_BYTES = 512
"""Of a message before the token is proven."""
HANDSHAKE_S = 10.0
"""For a whole handshake, however many pieces it comes in."""
LEAST_TOKEN = 16
_SEND_S = 10.0
_VERSION = "ddlsched-calibrate 1"
_NONCE_BYTES = 32


class Address(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int

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


class ConnectionEndedError(MeasurementError):
    """The other side has closed the connection."""


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


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message; OSError if the other side does not take it."""
    data = json.dumps(message).encode()
    connection.settimeout(_SEND_S)
    connection.sendall(struct.pack(">I", len(data)) + data)


def receive(connection: socket.socket, most_bytes: int = MOST_BYTES, *, within_s: float) -> dict[str, Any]:
    """Return the next message, all of which must come within ``within_s``.

    Raises
    ------
    MeasurementError
        It is too long, too late, no JSON object, or (:class:`ConnectionEndedError`) the connection ended.
    """
    ends_s = time.monotonic() + within_s
    (length,) = struct.unpack(">I", exactly(connection, 4, ends_s))
    if length > most_bytes:
        raise MeasurementError(f"a message of {length} bytes came; expected at most {most_bytes}")
    try:
        message = json.loads(exactly(connection, length, ends_s).decode())
    except (ValueError, RecursionError):
        raise MeasurementError("a message that is no JSON came; expected a JSON object") from None
    if not isinstance(message, dict):
        raise MeasurementError("a message that is no JSON object came; expected one")
    return message


def exactly(connection: socket.socket, count: int, ends_s: float) -> bytes:
    """Return the next ``count`` bytes, which must come before ``ends_s`` of the monotonic clock.

    A timeout of each piece would not do: whoever sends a byte now and then would be waited for without end.
    """
    data = bytearray()
    while len(data) < count:
        connection.settimeout(max(ends_s - time.monotonic(), 1e-3))
        try:
            part = connection.recv(count - len(data))
        except TimeoutError:
            part = None
        if part is None or time.monotonic() > ends_s:
            raise MeasurementError("nothing whole came in time")
        if not part:
            raise ConnectionEndedError("the connection ended")
        data += part
    return bytes(data)


def connect(address: Address, token: bytes, role: dict[str, Any]) -> socket.socket:
    """Return a connection to an agent that has proven to know the token, and to which we have.

    Parameters
    ----------
    address
        Of the agent.
    token
        Which both know.
    role
        What the connection is for; covered by the proof.

    Raises
    ------
    MeasurementError
        Nobody answers there, or one who does not know the token.
    """
    try:
        connection = socket.create_connection(address, timeout=HANDSHAKE_S)
    except OSError as error:
        raise MeasurementError(
            f"{address}: cannot be reached ({error.strerror or error}); expected `ddlsched calibrate-agent` there"
        ) from None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _prove(connection, token, role)
    except (OSError, MeasurementError, KeyError, ValueError) as error:
        connection.close()
        raise MeasurementError(f"{address}: does not know the token, or is no agent ({error})") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _prove(connection: socket.socket, token: bytes, role: dict[str, Any]) -> None:
    ends_s = time.monotonic() + HANDSHAKE_S
    greeting = _unproven(connection, ends_s)
    if greeting.get("version") != _VERSION:
        raise MeasurementError(f"it speaks {str(greeting.get('version'))[:40]!r}; expected {_VERSION!r}")
    nonces = str(greeting["nonce"]) + secrets.token_hex(_NONCE_BYTES)
    text = json.dumps(role)
    own = nonces[-2 * _NONCE_BYTES :]
    send(connection, {"nonce": own, "role": text, "proof": _proof(token, "asks", nonces, text)})
    proof = str(_unproven(connection, ends_s)["proof"]).encode()
    if not hmac.compare_digest(proof, _proof(token, "answers", nonces, text).encode()):
        raise MeasurementError("its proof is wrong")


def answer_handshake(connection: socket.socket, token: bytes) -> dict[str, Any]:
    """Return the role of one who connected and has proven to know the token; prove it to him.

    Raises
    ------
    MeasurementError
        The proof is wrong, or what came is no handshake.
    """
    ends_s = time.monotonic() + HANDSHAKE_S
    nonce = secrets.token_hex(_NONCE_BYTES)
    send(connection, {"version": _VERSION, "nonce": nonce})
    answer = _unproven(connection, ends_s)
    own, role, proof = (answer.get(name) for name in ("nonce", "role", "proof"))
    if not isinstance(own, str) or not isinstance(role, str) or not isinstance(proof, str):
        raise MeasurementError("a handshake without nonce, role and proof came")
    nonces = nonce + own
    if len(own) != 2 * _NONCE_BYTES or not hmac.compare_digest(
        proof.encode(), _proof(token, "asks", nonces, role).encode()
    ):
        raise MeasurementError("a wrong proof of the token came")
    send(connection, {"proof": _proof(token, "answers", nonces, role)})
    parsed = json.loads(role)
    if not isinstance(parsed, dict):
        raise MeasurementError("a role that is no JSON object came")
    return parsed


def _unproven(connection: socket.socket, ends_s: float) -> dict[str, Any]:
    return receive(connection, MOST_UNPROVEN_BYTES, within_s=ends_s - time.monotonic())


def _proof(token: bytes, side: str, nonces: str, role: str) -> str:
    return hmac.new(token, f"{side} {nonces} {role}".encode(), "sha256").hexdigest()
