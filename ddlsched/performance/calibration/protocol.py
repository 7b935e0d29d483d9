"""What agents and the measuring host say to each other: short JSON messages with a length in front, and a token.

Nobody is believed who cannot prove to know the token, which itself is never sent: each side answers the other's
random number with an HMAC-SHA256 of both. Messages are bounded before they are read. Nothing is encrypted; what is
reduced is made up.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

from ddlsched.errors import InputError, MeasurementError
from ddlsched.io.tables import read_text, readable

__all__ = [
    "Address",
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
HANDSHAKE_S = 5.0
LEAST_TOKEN = 16
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


def read_token(path: Path) -> bytes:
    """Return the token in a file, without the space around it."""
    token = readable(path, "a file with a token", read_text).strip()
    if len(token) < LEAST_TOKEN:
        raise InputError(
            f"{path}: the token has {len(token)} characters; expected at least {LEAST_TOKEN} "
            "(openssl rand -hex 32 makes a good one)"
        )
    return token.encode()


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message."""
    data = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(data)) + data)


def receive(connection: socket.socket, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Return the next message.

    Raises
    ------
    MeasurementError
        It is too long, no JSON object, or the connection ended.
    """
    (length,) = struct.unpack(">I", exactly(connection, 4))
    if length > most_bytes:
        raise MeasurementError(f"a message of {length} bytes came; expected at most {most_bytes}")
    try:
        message = json.loads(exactly(connection, length).decode())
    except (ValueError, RecursionError):
        raise MeasurementError("a message that is no JSON came; expected a JSON object") from None
    if not isinstance(message, dict):
        raise MeasurementError("a message that is no JSON object came; expected one")
    return message


def exactly(connection: socket.socket, count: int) -> bytes:
    """Return the next ``count`` bytes."""
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise MeasurementError("the connection ended")
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
    except (OSError, MeasurementError, KeyError) as error:
        connection.close()
        raise MeasurementError(f"{address}: does not know the token, or is no agent ({error})") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _prove(connection: socket.socket, token: bytes, role: dict[str, Any]) -> None:
    greeting = receive(connection, MOST_UNPROVEN_BYTES)
    if greeting.get("version") != _VERSION:
        raise MeasurementError(f"it speaks {str(greeting.get('version'))[:40]!r}; expected {_VERSION!r}")
    nonces = str(greeting["nonce"]) + secrets.token_hex(_NONCE_BYTES)
    text = json.dumps(role)
    own = nonces[-2 * _NONCE_BYTES :]
    send(connection, {"nonce": own, "role": text, "proof": _proof(token, "asks", nonces, text)})
    if not hmac.compare_digest(
        str(receive(connection, MOST_UNPROVEN_BYTES)["proof"]), _proof(token, "answers", nonces, text)
    ):
        raise MeasurementError("its proof is wrong")


def answer_handshake(connection: socket.socket, token: bytes) -> dict[str, Any]:
    """Return the role of one who connected and has proven to know the token; prove it to him.

    Raises
    ------
    MeasurementError
        The proof is wrong, or what came is no handshake.
    """
    connection.settimeout(HANDSHAKE_S)
    nonce = secrets.token_hex(_NONCE_BYTES)
    send(connection, {"version": _VERSION, "nonce": nonce})
    answer = receive(connection, MOST_UNPROVEN_BYTES)
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


def _proof(token: bytes, side: str, nonces: str, role: str) -> str:
    return hmac.new(token, f"{side} {nonces} {role}".encode(), "sha256").hexdigest()
