"""Where training processes report, a line of JSON a report: a Unix socket that only this user can open, or TCP.

The token of a job is not sent with reports. A report carries a proof in its place, an HMAC of all that it says under
the token.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from ddlsched.real.channel import Address, Count, connected_at, is_proven, parse_address, proof
from ddlsched.real.listener import LineListener, listening

MOST_BYTES = 1024
"""Of a report, with its line break."""
_MOST_CONNECTIONS = 256
_SOCKET = "progress"
_PREFIX = "ddlsched-live-"
_UNFINISHED_PREFIX = ".ddlsched-live-"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern="^[\x00-\x7f]*$")]


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A step of a job's that is committed, by the group of that generation."""

    job: Name
    token: Name
    generation: Count
    step: Count
    samples: Count
    nodes: Count
    loss: float | None
    """None if it is no finite number."""
    time_s: float
    commit_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """For how long the last commit held it up, seconds; 0 if there is none yet."""


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A process that waits for its orders, and whose group it was in last; 0 if none."""

    job: Name
    token: Name
    process: Count
    generation: Count
    host: Name
    """Where its next group is to meet if it is the first there."""
    port: Count
    script: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{0,64}$")] = ""
    """The SHA-256 of the script that it runs; empty for a program that has a name."""


_REPORTS: msgspec.json.Decoder[Report | Ready] = msgspec.json.Decoder(Report | Ready)


def parse_report(line: bytes) -> Report | Ready | None:
    """Return what a line says, or None if it is no report."""
    try:
        return _REPORTS.decode(line)
    except (ValueError, RecursionError):
        return None


def send_report(path: str, report: Report | Ready) -> None:
    """Send a report on a connection of its own; a manager that is not there is no reason to fail."""
    proven = msgspec.structs.replace(report, token=proof(report.token.encode(), *_said(report)).hex())
    try:
        with _connected(path) as connection:
            connection.sendall(msgspec.json.encode(proven) + b"\n")
    except OSError:
        return


def _said(report: Report | Ready) -> tuple[bytes]:
    return (msgspec.json.encode(msgspec.structs.replace(report, token="")),)


def _connected(path: str) -> socket.socket:
    """Return a connection to a path, or to HOST:PORT."""
    is_path = path.startswith("/")
    return connected_at(path, 1.0) if is_path else socket.create_connection(parse_address(path), timeout=1.0)


def address_towards(path: str) -> str:
    """Return by which address of its own this host reaches a path, or HOST:PORT; nothing is sent.

    Raises
    ------
    OSError
        No network leads there.
    """
    if path.startswith("/"):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(parse_address(path))
        return str(probe.getsockname()[0])


class ReportSocket(LineListener):
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
            self._folder, listener = _listening_folder()
            self.path = str(self._folder / _SOCKET)
        else:
            listener = listening(Address(host, 0))
            self.path = str(Address(host, listener.getsockname()[1]))
        super().__init__(listener, MOST_BYTES, most=_MOST_CONNECTIONS)

    def receive(self, timeout_s: float) -> list[Report | Ready]:
        """Return what has come in, after at most ``timeout_s``."""
        come = [self._believed(line) for _, line in self.lines(timeout_s)]
        believed = [report for report in come if report is not None]
        self.refused += len(come) - len(believed)
        return believed

    def _believed(self, line: bytes) -> Report | Ready | None:
        report = parse_report(line) if len(line) < MOST_BYTES else None
        token = None if report is None else self._token_of(report.job)
        if report is None or token is None or not is_proven(report.token, token.encode(), *_said(report)):
            return None
        return msgspec.structs.replace(report, token=token)

    def close(self) -> None:
        """Close it and remove its file."""
        super().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _listening_folder() -> tuple[Path, socket.socket]:
    """Return a new folder of mode 0700 and the socket in it, which listens; first remove dead managers' folders.

    The folder gets its name once the socket listens: so one of this name whose socket nobody answers is a dead one's.
    A socket's path must be short, so it lies in the system's folder for temporary files.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_own(left) and _is_dead(left / _SOCKET):
            shutil.rmtree(left, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED_PREFIX))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(unfinished / _SOCKET))
    (unfinished / _SOCKET).chmod(0o600)
    listener.listen(_MOST_CONNECTIONS)
    folder = unfinished.with_name(_PREFIX + unfinished.name.removeprefix(_UNFINISHED_PREFIX))
    return unfinished.rename(folder), listener


def _is_own(folder: Path) -> bool:
    try:
        there = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()


def _is_dead(path: Path) -> bool:
    """Return whether nobody listens at a socket; a manager that is only slow to answer lives."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False
