"""The workers of a run: copies of a launcher on this machine, or of the agents on several hosts.

Every connection to an agent becomes the channel of one worker, so that the gate listens nowhere; a worker ends with
its connection. All-reduces go between the hosts themselves, neither encrypted nor proven, as gloo does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, MeasurementError, TestbedError, need
from ddlsched.io.tables import located, read_text, readable
from ddlsched.real.channel import Address, Channel, connect, connected_at, parse_address, read_token
from ddlsched.real.gate.live_jobs import GateRank
from ddlsched.real.listener import Caller, TokenService
from ddlsched.real.testbed.cabling import address_of, server_name
from ddlsched.real.testbed.launcher import become_worker, fork_worker, prepare
from ddlsched.real.testbed.machine import sigterm_as_ctrl_c
from ddlsched.real.testbed.namespaces import Registry, refuse_unable

_START_S = 120.0
_FOLDER = "ddlsched-testbed-"


class WorkerCrew(ABC):
    """Workers by server, started when they are needed and kept from run to run."""

    def __init__(self) -> None:
        self._all: list[GateRank] = []
        self._idle: dict[int, list[GateRank]] = defaultdict(list)

    on_this_machine = False
    """Whether all workers take their memory from this machine."""

    @abstractmethod
    def _connected(self, server: int) -> tuple[Channel, str]:
        """Return a channel to a new worker on a server, and the server's address."""

    def take(self, server: int) -> GateRank:
        """Return a worker that has nothing to do."""
        if not self._idle[server]:
            self.prepare(server, 1)
        return self._idle[server].pop()

    def prepare(self, server: int, count: int) -> None:
        """Let at least so many workers stand ready on a server."""
        while len(self._idle[server]) < count:
            channel, address = self._connected(server)
            rank = GateRank(channel, server, address)
            self._all.append(rank)
            self._idle[server].append(rank)

    def give_back(self, rank: GateRank) -> None:
        """Let a worker stand ready again."""
        self._idle[rank.server].append(rank)

    def ranks(self) -> list[GateRank]:
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
        need("the testbed", "torch", extra="real")
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
        try:
            channel = Channel(connected_at(self._folder / "workers", _START_S))
        except OSError as error:
            raise TestbedError(f"no worker for server {server} ({error.strerror or error})") from None
        channel.send({"namespace": server_name(server), "realtime": self._realtime})
        return channel, address_of(server)

    def close(self) -> None:
        """Let all workers end, and their launcher, with which the last of them dies."""
        super().close()
        with suppress(OSError):
            self._launcher.send_signal(signal.SIGKILL)
        self._launcher.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Return an environment in which workers find this package, and use one thread each."""
    root = str(Path(__file__).parents[3])
    paths = [root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return os.environ | quiet | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


MOST_WORKERS = 256
_TURN_S = 1.0


class HostCrew(WorkerCrew):
    """Workers on hosts, in the order of the servers."""

    def __init__(self, hosts: Sequence[Address], token: bytes, *, realtime: bool = True) -> None:
        super().__init__()
        self._hosts, self._token, self._realtime = tuple(hosts), token, realtime

    def _connected(self, server: int) -> tuple[Channel, str]:
        host = self._hosts[server]
        try:
            role = {"kind": "testbed", "address": host.host, "realtime": self._realtime}
            return connect(host, self._token, role, "ddlsched testbed agent"), host.host
        except MeasurementError as error:
            raise TestbedError(f"server {server}: {error}") from None


class WorkerAgent(TokenService):
    """Listens on one address and becomes a worker, in a copy of its process, for whoever proves to know the token.

    Parameters
    ----------
    address
        Where to listen; port 0 takes any that is free.
    token
        Without which nobody gets a worker.
    tell
        Told of each connection that was refused.
    """

    def __init__(self, address: Address, token: bytes, *, tell: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(address, token, tell)
        self._workers: set[int] = set()

    def serve(self) -> None:
        """Answer everybody who knows the token, each in a copy of this process, until stopped or interrupted."""
        prepare()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while not self._closed:
            callers = self.callers(_TURN_S)
            self._bury()
            for caller in callers:
                self._employ(caller)

    def _employ(self, caller: Caller) -> None:
        why = "a connection for no worker of a testbed came" if caller.role.get("kind") != "testbed" else ""
        if why or len(self._workers) >= MOST_WORKERS:
            self._tell(f"refused {caller.peer}: {why or f'there are {MOST_WORKERS} workers'}")
        else:
            self._workers.add(fork_worker(lambda: self._work(caller)))
        caller.channel.close()

    def _bury(self) -> None:
        for worker in list(self._workers):
            with suppress(ChildProcessError):
                if os.waitpid(worker, os.WNOHANG)[0] == 0:
                    continue
            self._workers.discard(worker)

    def _work(self, caller: Caller) -> None:
        self.forget()
        become_worker(caller.channel, namespace=None, realtime=bool(caller.role.get("realtime")))


@contextmanager
def crew_of(cluster: Cluster, hosts: Path | None, token_file: Path | None, *, realtime: bool) -> Iterator[WorkerCrew]:
    """Give the workers of a cluster: in namespaces that go afterwards, or on hosts. SIGTERM ends this as Ctrl-C does.

    Raises
    ------
    InputError
        No root, no tools, no PyTorch, a testbed in use, or a hosts file that does not fit.
    """
    if (hosts is None) != (token_file is None):
        raise InputError("--hosts and --token-file belong together; expected both or neither")
    if hosts is not None and token_file is not None:
        addresses = read_hosts(hosts, cluster.num_servers)
        with sigterm_as_ctrl_c(), HostCrew(addresses, read_token(token_file), realtime=realtime) as crew:
            yield crew
        return
    with namespace_crew(realtime=realtime) as crew_on, crew_on(cluster) as crew:
        yield crew


@contextmanager
def namespace_crew(*, realtime: bool) -> Iterator[Callable[[Cluster], AbstractContextManager[WorkerCrew]]]:
    """Give what makes the network of a cluster and gives its workers, of one cluster after another.

    PyTorch, of which all workers are copies, is loaded once. SIGTERM ends this as Ctrl-C does.

    Raises
    ------
    InputError
        No root, no tools, no PyTorch, or a testbed in use.
    """
    refuse_unable()
    need("the testbed", "torch", extra="real")
    with sigterm_as_ctrl_c(), Registry() as registry, NamespaceCrew(realtime=realtime) as crew:

        @contextmanager
        def crew_on(cluster: Cluster) -> Iterator[WorkerCrew]:
            with registry.used(cluster):
                try:
                    yield crew
                finally:
                    crew.dismiss()

        yield crew_on


def read_hosts(path: Path, num_servers: int) -> list[Address]:
    """Return the addresses in a hosts file: one a line, in the order of the servers; ``#`` begins a remark."""
    text = readable(path, "a hosts file", read_text)
    addresses: list[Address] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        address = located(f"{path}, line {number}", lambda: parse_address(entry))  # noqa: B023
        if address in addresses:
            raise InputError(f"{path}, line {number}: {address} stands there twice; expected each host once")
        addresses.append(address)
    if len(addresses) != num_servers:
        raise InputError(f"{path}: has {len(addresses)} hosts; expected {num_servers}, one a server (--servers)")
    return addresses
