"""A connection that carries JSON objects, one a line, in both directions."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from ddlsched.errors import TestbedError

__all__ = ["MOST_BYTES", "Channel", "ChannelEndedError"]

MOST_BYTES = 1 << 24
"""Of a line: a job of 10,000 tasks fits."""
_SEND_S = 5.0
_PIECE_BYTES = 1 << 16


class ChannelEndedError(TestbedError):
    """The other side is gone."""


class Channel:
    """A stream socket with messages on it; several threads may send.

    Parameters
    ----------
    connection
        Connected; closed with the channel.
    most_bytes
        A longer line ends the channel.
    """

    def __init__(self, connection: socket.socket, most_bytes: int = MOST_BYTES) -> None:
        self._connection, self._most_bytes = connection, most_bytes
        self._connection.settimeout(_SEND_S)
        self._rest = b""
        self._sending = threading.Lock()
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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
        try:
            piece = self._connection.recv(_PIECE_BYTES)
        except TimeoutError:
            return []
        except OSError as error:
            raise ChannelEndedError(f"the connection failed ({error.strerror or error})") from None
        if not piece:
            raise ChannelEndedError("the connection ended")
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > self._most_bytes:
            raise ChannelEndedError(f"a line of more than {self._most_bytes} bytes came")
        return [_parsed(line) for line in lines]

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
