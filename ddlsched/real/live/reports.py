"""Where training processes report, a line of JSON a report: a Unix socket that only this user can open, or TCP.

The token of a job is not sent with reports. A report carries a proof in its place, an HMAC of all that it says under
the token.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
import selectors
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError
from ddlsched.real.live.socket_folders import SOCKET, listening_folder
from ddlsched.units import MAX_NS, is_whole

__all__ = ["MOST_BYTES", "Ready", "Report", "ReportSocket", "address_towards", "parse_report", "send_report"]

MOST_BYTES = 1024
"""Of a report, with its line break."""
_MOST_CONNECTIONS = 256


@dataclass(frozen=True)
class Report:
    """A step of a job's that is committed, by the group of that generation."""

    job: str
    token: str
    generation: int
    step: int
    samples: int
    nodes: int
    loss: float
    time_s: float


@dataclass(frozen=True)
class Ready:
    """A process that waits for its orders, and whose group it was in last; 0 if none."""

    job: str
    token: str
    process: int
    generation: int
    host: str
    """Where its next group is to meet if it is the first there."""
    port: int


def parse_report(line: bytes) -> Report | Ready | None:
    """Return what a line says, or None if it is no report."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):  # No JSON, no UTF-8, or brackets without end.
        return None
    for kind in (Report, Ready):
        fields = dataclasses.fields(kind)
        if isinstance(said, dict) and said.keys() == {field.name for field in fields}:
            return kind(**said) if all(_CHECKS[field.type](said[field.name]) for field in fields) else None
    return None


def _is_name(value: Any) -> bool:
    """Return whether a value is text in ASCII, as names and tokens are; JSON may hold half a surrogate pair."""
    return isinstance(value, str) and 0 < len(value) <= 200 and value.isascii()


def _is_finite(value: Any) -> bool:
    """Return whether a value is a finite number, and no whole number that is too large for a float."""
    is_number = isinstance(value, float) or is_whole(value, -MAX_NS)
    return is_number and math.isfinite(value)


_CHECKS: dict[Any, Callable[[Any], bool]] = {
    "str": _is_name,
    "int": lambda value: is_whole(value, 0),
    "float": _is_finite,
}


def send_report(path: str, report: Report | Ready) -> None:
    """Send a report on a connection of its own; a manager that is not there is no reason to fail."""
    try:
        with _connected(path) as connection:
            proven = dataclasses.replace(report, token=_proof(report))
            connection.sendall(json.dumps(proven.__dict__).encode() + b"\n")
    except OSError:
        return


def _proof(report: Report | Ready) -> str:
    """Return what only who knows the token can say of what a report says."""
    said = {name: value for name, value in report.__dict__.items() if name != "token"}
    kind = type(report).__name__
    return hmac.new(report.token.encode(), f"{kind} {json.dumps(said)}".encode(), hashlib.sha256).hexdigest()


def _connected(path: str) -> socket.socket:
    """Return a connection to a path, or to HOST:PORT."""
    if not path.startswith("/"):
        host, _, port = path.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=1.0)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(1.0)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def address_towards(path: str) -> str:
    """Return by which address of its own this host reaches a path, or HOST:PORT; nothing is sent.

    Raises
    ------
    OSError
        No network leads there.
    """
    if path.startswith("/"):
        return "127.0.0.1"
    host, _, port = path.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


class ReportSocket:
    """Takes reports in without ever waiting; drops what is malformed, too long, or not proven by the job's token.

    A process reports on a connection of its own and closes it. So of too many connections the oldest is dropped.

    Parameters
    ----------
    token_of
        From a job's name to the token under which its reports are believed, or None.
    host
        On which address of this machine to listen by TCP, at any port; by default a Unix socket.

    Raises
    ------
    InputError
        Nobody can listen there.
    """

    def __init__(self, token_of: Callable[[str], str | None], host: str | None = None) -> None:
        self._token_of = token_of
        self._folder: Path | None = None
        if host is None:
            self._folder, self._listener = listening_folder(_MOST_CONNECTIONS)
            self.path = str(self._folder / SOCKET)
        else:
            self._listener = _listening(host)
            self.path = f"{host}:{self._listener.getsockname()[1]}"
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._buffers: dict[socket.socket, bytes] = {}
        self.refused = 0
        """Reports and connections that were dropped."""

    def receive(self, timeout_s: float) -> list[Report | Ready]:
        """Return what has come in, after at most ``timeout_s``."""
        reports: list[Report | Ready] = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._buffers:  # else it has just been dropped
                reports += self._read(key.fileobj)
        return reports

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # It has gone again, or this process has no file left to open.
            return
        if len(self._buffers) >= _MOST_CONNECTIONS:
            self._drop(next(iter(self._buffers)))
            self.refused += 1
        connection.setblocking(False)
        self._buffers[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> list[Report | Ready]:
        try:
            received = connection.recv(MOST_BYTES + 1)
        except OSError:
            received = b""
        *lines, rest = (self._buffers[connection] + received).split(b"\n")
        self._buffers[connection] = rest
        reports = [report for line in lines if (report := self._believed(line)) is not None]
        if not received or len(rest) >= MOST_BYTES:
            self.refused += bool(rest)
            self._drop(connection)
        return reports

    def _believed(self, line: bytes) -> Report | Ready | None:
        report = parse_report(line) if len(line) < MOST_BYTES else None
        token = None if report is None else self._token_of(report.job)
        if report is None or token is None:
            self.refused += 1
            return None
        known = dataclasses.replace(report, token=token)
        if not hmac.compare_digest(report.token, _proof(known)):
            self.refused += 1
            return None
        return known

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._buffers[connection]
        connection.close()

    def close(self) -> None:
        """Close it and remove its file."""
        for connection in list(self._buffers):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _listening(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), backlog=_MOST_CONNECTIONS)
    except OSError as error:
        raise InputError(
            f"{host}: cannot listen there ({error.strerror or error}); expected a name of this host"
        ) from None
