"""A connection that carries JSON objects, one a line, in both directions."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

from ddlsched.errors import MeasurementError, TestbedError

__all__ = ["MOST_BYTES", "Channel", "ChannelEndedError", "WireError"]

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
