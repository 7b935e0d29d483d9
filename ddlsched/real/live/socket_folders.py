"""Folders of managers' sockets: each is there while its manager lives; what a killed one left, the next removes."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

__all__ = ["SOCKET", "listening_folder"]

SOCKET = "progress"
_PREFIX = "ddlsched-live-"
_UNFINISHED_PREFIX = ".ddlsched-live-"


def listening_folder(most_waiting: int) -> tuple[Path, socket.socket]:
    """Return a new folder of mode 0700 and the socket in it, which listens; first remove dead managers' folders.

    The folder gets its name once the socket listens: so one of this name whose socket nobody answers is a dead one's.
    A socket's path must be short, so it lies in the system's folder for temporary files.
    """
    _remove_dead()
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED_PREFIX))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(unfinished / SOCKET))
    (unfinished / SOCKET).chmod(0o600)
    listener.listen(most_waiting)
    folder = unfinished.with_name(_PREFIX + unfinished.name.removeprefix(_UNFINISHED_PREFIX))
    return unfinished.rename(folder), listener


def _remove_dead() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_own(folder) and _is_dead(folder / SOCKET):
            shutil.rmtree(folder, ignore_errors=True)


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
