"""Starts workers as copies of a process that has PyTorch loaded: a copy takes milliseconds, loading takes seconds.

It listens on a Unix socket. Each connection says in which namespace its worker is to run, becomes that worker's
channel to the gate, and is the worker's life: with it the worker ends. Workers die with the launcher.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlsched.real.channel import Channel
from ddlsched.real.testbed.gloo import GlooReducer
from ddlsched.real.testbed.machine import ahead_of_others
from ddlsched.real.testbed.namespaces import CARD, NAMESPACES
from ddlsched.real.testbed.worker import Worker

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_FIRST_S = 10.0


def prepare() -> None:
    """Load what workers need, and let the kernel bury those that have ended."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def fork_worker(work: Callable[[], None]) -> int:
    """Return the number of a copy of this process that does ``work``, and nothing of what this one would do after."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gate's, with which workers end
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            work()
            code = 0
    finally:
        os._exit(code)


def become_worker(channel: Channel, *, namespace: str | None, realtime: bool) -> None:
    """Serve the gate at the other end of a channel, within a namespace, ahead of other processes if allowed to."""
    if namespace is not None:
        with (NAMESPACES / namespace).open("rb") as file:
            os.environ["GLOO_SOCKET_IFNAME"] = CARD  # for groups that PyTorch makes itself
            if _libc().setns(file.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"the namespace {namespace} cannot be entered")
    with ahead_of_others(realtime):
        Worker(channel, GlooReducer).serve()


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def main(path: str) -> None:
    """Listen at a path until the process that started this one is gone."""
    parent = os.getppid()
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # which end the parent, and with it this process
        signal.signal(number, signal.SIG_IGN)
    prepare()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(0o600)
    listener.listen(256)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while os.getppid() == parent:
        connection, _ = listener.accept()
        fork_worker(lambda: _serve(listener, connection))  # noqa: B023
        connection.close()


def _serve(listener: socket.socket, connection: socket.socket) -> None:
    listener.close()
    channel = Channel(connection)
    wanted = channel.next(_FIRST_S)
    become_worker(channel, namespace=wanted["namespace"], realtime=bool(wanted["realtime"]))


if __name__ == "__main__":
    main(sys.argv[1])
