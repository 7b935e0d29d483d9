"""The workers of a run: copies of a launcher on this machine, or of the agents on several hosts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from pathlib import Path

from ddlsched.errors import InputError, TestbedError
from ddlsched.real.gate.live_jobs import LiveRank
from ddlsched.real.gate.loop import ChannelRank
from ddlsched.real.testbed.cabling import address_of, server_name
from ddlsched.real.wire.channel import Channel

__all__ = ["NamespaceCrew", "WorkerCrew", "refuse_missing_torch"]

_START_S = 120.0
_FOLDER = "ddlsched-testbed-"


def refuse_missing_torch() -> None:
    """Raise InputError where PyTorch is not installed, without loading it."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise InputError("the testbed needs PyTorch; expected: pip install 'ddlsched[real]'")


class WorkerCrew(ABC):
    """Workers by server, started when they are needed and kept from run to run."""

    def __init__(self) -> None:
        self._all: list[ChannelRank] = []
        self._idle: dict[int, list[ChannelRank]] = defaultdict(list)

    on_this_machine = False
    """Whether all workers take their memory from this machine."""

    @abstractmethod
    def _connected(self, server: int) -> tuple[Channel, str]:
        """Return a channel to a new worker on a server, and the server's address."""

    def take(self, server: int) -> ChannelRank:
        """Return a worker that has nothing to do."""
        if not self._idle[server]:
            self.prepare(server, 1)
        return self._idle[server].pop()

    def prepare(self, server: int, count: int) -> None:
        """Let at least so many workers stand ready on a server."""
        while len(self._idle[server]) < count:
            channel, address = self._connected(server)
            rank = ChannelRank(channel, server, address)
            self._all.append(rank)
            self._idle[server].append(rank)

    def give_back(self, rank: LiveRank) -> None:
        """Let a worker stand ready again."""
        assert isinstance(rank, ChannelRank)
        self._idle[rank.server].append(rank)

    def ranks(self) -> list[ChannelRank]:
        """Return all workers, in the order in which they were started."""
        return self._all

    def dismiss(self) -> None:
        """Let all workers end; others are started when they are needed."""
        for rank in self._all:
            rank.channel.close()
        self._all, self._idle = [], defaultdict(list)

    def close(self) -> None:
        """Let all workers end, and whatever starts them."""
        self.dismiss()

    def __enter__(self) -> WorkerCrew:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let all workers end."""
        self.close()


class NamespaceCrew(WorkerCrew):
    """Workers in the namespaces of this machine.

    Parameters
    ----------
    realtime
        Whether workers run ahead of other processes (SCHED_FIFO), so that computes end in time.
    """

    on_this_machine = True

    def __init__(self, *, realtime: bool = True) -> None:
        super().__init__()
        refuse_missing_torch()
        self._realtime = realtime
        for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):  # by runs that were killed: one runs at a time
            shutil.rmtree(left, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        command = [sys.executable, "-m", "ddlsched.real.testbed.launcher", str(self._folder / "workers")]
        self._launcher = subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment())
        try:
            assert self._launcher.stdout is not None
            if self._launcher.stdout.readline() != b"ready\n":
                raise TestbedError("the launcher of workers did not start; what it said stands above")
        except BaseException:
            self.close()
            raise

    def _connected(self, server: int) -> tuple[Channel, str]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_START_S)
            connection.connect(str(self._folder / "workers"))
        except OSError as error:
            connection.close()
            raise TestbedError(f"no worker for server {server} ({error.strerror or error})") from None
        channel = Channel(connection)
        channel.send({"namespace": server_name(server), "realtime": self._realtime})
        return channel, address_of(server)

    def close(self) -> None:
        """Let all workers end, and their launcher, with which the last of them dies."""
        super().close()
        with contextlib.suppress(OSError):
            self._launcher.send_signal(signal.SIGKILL)
        self._launcher.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Return an environment in which workers find this package, and use one thread each."""
    root = str(Path(__file__).parents[2])
    paths = [root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return os.environ | quiet | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
