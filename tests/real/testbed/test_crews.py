"""Workers by server, what starts them and what they are told, with stand-ins for processes, sockets and PyTorch."""

from __future__ import annotations

import ctypes
import errno
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kept_numbers import answered

import ddlsched
from ddlsched import errors
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, MeasurementError, TestbedError
from ddlsched.real.channel import Channel, ChannelEndedError, parse_address
from ddlsched.real.testbed import crews, launcher
from ddlsched.real.testbed.crews import HostCrew, NamespaceCrew, WorkerAgent, WorkerCrew, crew_of, namespace_crew


class Crew(WorkerCrew):
    """Workers that are numbers in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []
        self.closed: list[int] = []

    def _connected(self, server: int) -> tuple[Channel, str]:
        number = len(self.made)
        self.made.append(server)
        return SimpleNamespace(close=lambda: self.closed.append(number), number=number), f"at {server}"  # type: ignore


def test_workers_are_started_when_there_are_too_few_and_kept() -> None:
    with Crew() as crew:
        crew.prepare(3, 2)
        assert crew.made == [3, 3]
        first = crew.take(3)
        assert (first.server, first.address, first.channel.number) == (3, "at 3", 1)  # type: ignore[attr-defined]
        crew.take(3)
        crew.take(0)
        crew.give_back(first)
        assert crew.take(3) is first
        crew.prepare(3, 1)
        assert crew.made == [3, 3, 0, 3]
        crew.prepare(3, 1)
        assert [rank.server for rank in crew.ranks()] == crew.made
        crew.dismiss()
        assert crew.closed == [0, 1, 2, 3]
        assert crew.ranks() == []
        crew.take(3)
        assert len(crew.made) == 5
    assert crew.closed == [0, 1, 2, 3, 4]


class Launcher:
    """Stands for the process that copies itself: it listens, or says something else."""

    def __init__(self, said: bytes) -> None:
        self.told: list[Any] = []
        self.said = said

    def __call__(self, command: list[str], **settings: Any) -> Launcher:
        self.command, self.settings = command, settings
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(command[-1])
        self.listener.listen(4)
        self.stdout = SimpleNamespace(readline=lambda: self.said)
        return self

    def send_signal(self, number: int) -> None:
        self.told.append(number)

    def wait(self) -> None:
        self.told.append("wait")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder in which a socket's path is not too long."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, short: Path) -> Launcher:
    process = Launcher(b"ready\n")
    monkeypatch.setattr(subprocess, "Popen", process)
    monkeypatch.setattr(errors, "find_spec", lambda _: object())
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    return process


def test_workers_of_namespaces_come_from_a_launcher_that_goes_with_the_crew(
    started: Launcher, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/one{os.pathsep}{os.pathsep}/two")
    (short / "ddlsched-testbed-left" / "a").mkdir(parents=True)
    (short / "ddlsched-other").mkdir()
    with NamespaceCrew(realtime=False) as crew:
        folder = Path(started.command[-1]).parent
        assert sorted(short.iterdir()) == sorted([folder, short / "ddlsched-other"])
        assert folder.name.startswith("ddlsched-testbed-")
        assert started.command[:-1] == [sys.executable, "-m", "ddlsched.real.testbed.launcher"]
        assert Path(started.command[-1]).name == "workers"
        environment = started.settings.pop("env")
        assert started.settings == {"stdout": subprocess.PIPE}
        root, *others = environment["PYTHONPATH"].split(os.pathsep)
        assert (Path(root) / "ddlsched" / "__init__.py").samefile(ddlsched.__file__)
        assert others == ["/one", "/two"]
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["TORCH_CPP_LOG_LEVEL"] == "ERROR"
        assert environment["PATH"] == os.environ["PATH"]
        waits_s: list[float | None] = []

        class Noting(socket.socket):
            def settimeout(self, after_s: float | None) -> None:
                waits_s.append(after_s)
                super().settimeout(after_s)

        with monkeypatch.context() as own:
            own.setattr(socket, "socket", Noting)
            rank = crew.take(2)
        assert waits_s[0] == 120.0
        assert rank.address == "10.77.0.3"
        connection, _ = started.listener.accept()
        assert Channel(connection).next(5.0) == {"namespace": "ddlsched-2", "realtime": False}
        connection.close()
        assert started.told == []
        started.listener.close()
        with pytest.raises(TestbedError, match=r"no worker for server 4 \(Connection refused\)"):
            crew.take(4)
    assert started.told == [signal.SIGKILL, "wait"]
    assert [path.name for path in short.iterdir()] == ["ddlsched-other"]


def test_a_launcher_that_does_not_start_is_told_and_nothing_is_left(started: Launcher, short: Path) -> None:
    started.said = b""
    with pytest.raises(TestbedError, match="the launcher of workers did not start"):
        NamespaceCrew()
    started.listener.close()
    assert started.told == [signal.SIGKILL, "wait"]
    assert list(short.iterdir()) == []


def test_workers_on_hosts_are_asked_of_the_agent_of_their_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def connect(*given: Any) -> str:
        asked.append(given)
        if len(asked) > 1:
            raise MeasurementError("nobody")
        return "a channel"

    monkeypatch.setattr(crews, "connect", connect)
    hosts = [parse_address("10.0.0.1:7"), parse_address("10.0.0.2:8")]
    crew = HostCrew(hosts, b"token")
    assert crew.take(1).address == "10.0.0.2"
    role = {"kind": "testbed", "address": "10.0.0.2", "realtime": True}
    assert asked == [(hosts[1], b"token", role, "ddlsched testbed agent")]
    with pytest.raises(TestbedError, match="server 0: nobody"):
        crew.take(0)
    asked.clear()
    HostCrew(hosts, b"token", realtime=False).take(0)
    assert asked[0][2]["realtime"] is False


def test_a_crew_is_of_hosts_if_they_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: Launcher
) -> None:
    two, events = Cluster(num_servers=2), list[str]()
    hosts, token = tmp_path / "hosts", tmp_path / "token"
    hosts.write_text("10.0.0.1:7\n# none\n10.0.0.2:7\n")
    token.write_text("a token of thirty-two letters at least\n")
    token.chmod(0o600)
    for given in ((hosts, None), (None, token)):
        said = answered(lambda given=given: crew_of(two, *given, realtime=True).__enter__())
        assert said == "--hosts and --token-file belong together; expected both or neither"
    with crew_of(two, hosts, token, realtime=False) as crew:
        assert isinstance(crew, HostCrew)
        assert (len(crew._hosts), crew._realtime) == (2, False)
    with pytest.raises(InputError, match="has 2 hosts; expected 3, one a server"):
        crew_of(Cluster(num_servers=3), hosts, token, realtime=False).__enter__()

    class Registry:
        def __enter__(self) -> Registry:
            events.append("held")
            return self

        def __exit__(self, *_: object) -> None:
            events.append("given up")

        @contextmanager
        def used(self, cluster: Cluster) -> Any:
            events.append(f"network of {cluster.num_servers}")
            yield
            events.append("network gone")

    monkeypatch.setattr(crews, "Registry", Registry)
    monkeypatch.setattr(crews, "refuse_unable", lambda: events.append("asked"))
    monkeypatch.setattr(NamespaceCrew, "dismiss", lambda _: events.append("dismissed"))
    with crew_of(two, None, None, realtime=False) as crew:
        assert isinstance(crew, NamespaceCrew)
        assert crew._realtime is False
        events.append("used")
    ends = ["dismissed", "network gone", "dismissed", "given up"]  # the second time as the crew is closed
    assert events == ["asked", "held", "network of 2", "used", *ends]
    started.listener.close()
    events.clear()
    with namespace_crew(realtime=True) as crew_on:
        for number in (2, 3):
            with crew_on(Cluster(num_servers=number)):
                pass
    again = [word for number in (2, 3) for word in (f"network of {number}", "dismissed", "network gone")]
    assert events == ["asked", "held", *again, "dismissed", "given up"]
    started.listener.close()


class Caller:
    def __init__(self, **role: Any) -> None:
        self.role, self.peer, self.closed = role, "10.0.0.9:5", False
        self.channel = self

    def close(self) -> None:
        self.closed = True


def test_an_agent_becomes_a_worker_for_who_asks_for_one_up_to_256(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    served: list[Any] = []
    agent = WorkerAgent(parse_address("127.0.0.1:0", any_port=True), b"a token for tests only", tell=told.append)
    numbers = iter(range(1000, 2000))
    works: list[Any] = []
    gone: set[int] = set()

    def waited(number: int, how: int) -> tuple[int, int]:
        assert how == os.WNOHANG
        if number == 1003:
            raise ChildProcessError
        return (number if number in gone else 0, 0)

    def callers(turn_s: float) -> list[Caller]:
        assert turn_s == 1.0
        turn = next(turns, None)
        if turn is None:
            agent.stop()
            return []
        served.extend(turn)
        return turn

    def prepared() -> None:
        told.append("prepared")

    monkeypatch.setattr(crews, "prepare", prepared)
    monkeypatch.setattr(crews.signal, "signal", lambda *given: told.append(f"{given}"))
    monkeypatch.setattr(crews, "fork_worker", lambda work: (works.append(work), next(numbers))[1])
    monkeypatch.setattr(crews.os, "waitpid", waited)
    monkeypatch.setattr(agent, "callers", callers)
    monkeypatch.setattr(agent, "forget", lambda: told.append("forgot"))
    ask = {"kind": "testbed", "realtime": 1}
    turns = iter([[Caller(**ask) for _ in range(255)], [Caller(**ask), Caller(kind="gate"), Caller()]])
    agent.serve()
    # Before the second turn's callers come, 1003 has been found to be nobody's.
    assert len(works) == 256
    refused = "refused 10.0.0.9:5: a connection for no worker of a testbed came"
    assert told == ["prepared", f"{(signal.SIGCHLD, signal.SIG_DFL)}", refused, refused]
    assert all(caller.closed for caller in served)
    told.clear()
    agent._employ(Caller(**ask))  # type: ignore[arg-type]
    agent._employ(Caller(**ask))  # type: ignore[arg-type]
    agent._employ(Caller(**ask))  # type: ignore[arg-type]
    assert len(works) == 257
    assert told == ["refused 10.0.0.9:5: there are 256 workers"] * 2
    gone |= {1000, 1200}
    agent._bury()
    assert len(agent._workers) == 254
    told.clear()
    became: list[Any] = []
    monkeypatch.setattr(crews, "become_worker", lambda channel, **how: became.append((channel, how)))
    works[0]()
    assert told == ["forgot"]
    assert became == [(served[0], {"namespace": None, "realtime": True})]
    agent._work(Caller(kind="testbed"))  # type: ignore[arg-type]
    assert became[1][1] == {"namespace": None, "realtime": False}


def test_a_launcher_serves_each_connection_in_a_copy_until_its_parent_is_gone(
    monkeypatch: pytest.MonkeyPatch, short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, told, became = short / "workers", list[Any](), list[Any]()
    gates: list[Channel] = []
    parents = iter([5, 5, 5, 1])
    torch = ModuleType("torch")
    torch.set_num_threads = lambda count: told.append(f"threads {count}")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    libc = SimpleNamespace(prctl=lambda *given: told.append(given))
    monkeypatch.setattr(launcher, "_libc", lambda: libc)
    monkeypatch.setattr(launcher.signal, "signal", lambda *given: told.append(given))

    def getppid() -> int:
        parent = next(parents)
        if path.exists() and parent == 5:  # a gate connects
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(path))
            gates.append(Channel(connection))
            gates[-1].send({"namespace": f"ddlsched-{len(gates)}", "realtime": len(gates) % 2})
        return parent

    monkeypatch.setattr(launcher.os, "getppid", getppid)

    def fork_worker(work: Any) -> int:
        assert path.stat().st_mode & 0o777 == 0o600
        with monkeypatch.context() as own:
            own.setattr(socket.socket, "close", lambda _: told.append("closed"))
            work()
        return 7

    monkeypatch.setattr(launcher, "fork_worker", fork_worker)
    monkeypatch.setattr(launcher, "become_worker", lambda channel, **how: became.append((type(channel), how)))
    waits_s: list[float] = []

    class Noting(Channel):
        def next(self, timeout_s: float) -> Any:
            waits_s.append(timeout_s)
            return super().next(timeout_s)

    monkeypatch.setattr(launcher, "Channel", Noting)
    launcher.main(str(path))
    assert waits_s == [10.0, 10.0]
    assert capsys.readouterr().out == "ready\n"
    ignored = [(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
    assert told[:5] == [(1, signal.SIGKILL), *ignored, "threads 1", (signal.SIGCHLD, signal.SIG_IGN)]
    assert told[5:] == ["closed", "closed"]  # the listener, in each copy
    assert became == [
        (Noting, {"namespace": "ddlsched-1", "realtime": True}),
        (Noting, {"namespace": "ddlsched-2", "realtime": False}),
    ]
    for gate in gates:
        with pytest.raises(ChannelEndedError):
            gate.next(5.0)


@pytest.mark.long
def test_a_copy_does_its_work_and_nothing_after(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a copy has children of its own and what becomes of them
    for fails in (False, True):
        read, write = os.pipe()

        def work(fails: bool = fails, write: int = write) -> None:
            handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD)
            os.write(write, str(handlers == (signal.SIG_IGN, signal.SIG_DFL)).encode())
            if fails:
                os.close(2)
                raise ValueError

        ends_with = SimpleNamespace(prctl=lambda *given, write=write: os.write(write, f"{given} ".encode()))
        monkeypatch.setattr(launcher, "_libc", lambda libc=ends_with: libc)
        child = launcher.fork_worker(work)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            assert pipe.read() == f"{(1, signal.SIGKILL)} True".encode()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == fails


def test_a_worker_goes_into_its_namespace_ahead_of_others_if_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[Any] = []
    (tmp_path / "ddlsched-1").write_text("")

    @contextmanager
    def ahead(wanted: bool) -> Any:
        told.append(f"ahead {wanted}")
        yield
        told.append("as before")

    def setns(number: int, kind: int) -> int:
        told.append((str(Path(f"/proc/self/fd/{number}").readlink()), kind))
        return 0

    libc = SimpleNamespace(setns=setns)
    monkeypatch.setattr(launcher, "NAMESPACES", tmp_path)
    monkeypatch.setattr(launcher, "_libc", lambda: libc)
    monkeypatch.setattr(launcher, "ahead_of_others", ahead)
    made = lambda *given: SimpleNamespace(serve=lambda: told.append(given))  # noqa: E731
    monkeypatch.setattr(launcher, "Worker", made)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "before")
    channel: Any = "a channel"
    launcher.become_worker(channel, namespace=None, realtime=False)
    serves = ("a channel", launcher.GlooReducer)
    assert told == ["ahead False", serves, "as before"]
    assert os.environ["GLOO_SOCKET_IFNAME"] == "before"
    launcher.become_worker(channel, namespace="ddlsched-1", realtime=True)
    entered = (str(tmp_path / "ddlsched-1"), 0x40000000)
    assert told[3:] == [entered, "ahead True", serves, "as before"]
    assert os.environ["GLOO_SOCKET_IFNAME"] == "net0"


def test_a_copy_whose_parent_has_died_meanwhile_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_libc", lambda: SimpleNamespace(prctl=lambda *_: None))
    monkeypatch.setattr(launcher.os, "getpid", lambda: -5)  # which is not what the copy finds
    child = launcher.fork_worker(lambda: os._exit(7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_namespace_that_cannot_be_entered_is_said_with_the_systems_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert launcher._libc().close(-1) == -1
    assert ctypes.get_errno() == errno.EBADF
    (tmp_path / "ddlsched-1").write_text("")
    monkeypatch.setattr(launcher, "NAMESPACES", tmp_path)
    monkeypatch.setattr(launcher, "_libc", lambda: SimpleNamespace(setns=lambda *_: -1))
    monkeypatch.setattr(launcher, "Worker", None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "before")
    with pytest.raises(OSError, match="the namespace ddlsched-1 cannot be entered") as error:
        launcher.become_worker(None, namespace="ddlsched-1", realtime=False)  # type: ignore[arg-type]
    assert error.value.errno == errno.EBADF


def test_as_a_program_it_listens_where_it_is_told_and_keeps_no_connection(
    monkeypatch: pytest.MonkeyPatch, short: Path
) -> None:
    path, told, parents = short / "workers", list[Any](), iter([5, 5, 5, 1])
    monkeypatch.setitem(sys.modules, "torch", Mock())
    monkeypatch.setattr(ctypes, "CDLL", Mock())
    monkeypatch.setattr(signal, "signal", Mock())
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "fork", lambda: told.append("forked") or 7)
    out = Mock(write=told.append, flush=lambda: told.append("flushed"))
    connection = Mock(close=lambda: told.append("closed"))
    listener = Mock(
        bind=lambda where: Path(where).touch(),
        listen=lambda waiting: told.append(f"listens to {waiting}"),
        accept=lambda: told.append("waits") or (connection, None),
    )
    monkeypatch.setattr(socket, "socket", lambda *_: listener)
    with monkeypatch.context() as own:
        own.setattr(sys, "argv", ["launcher", str(path)])
        own.setattr(sys, "stdout", out)
        own.delitem(sys.modules, "ddlsched.real.testbed.launcher")
        runpy.run_module("ddlsched.real.testbed.launcher", run_name="__main__")
    assert told == ["listens to 256", "ready\n", "flushed", *["waits", "forked", "closed"] * 2]
    assert path.exists()


def test_what_cannot_be_removed_of_runs_before_is_left_there(
    started: Launcher, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short / "ddlsched-testbed-old").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", _refuse)
        crews.NamespaceCrew(realtime=False).close()
    assert {path.name for path in short.iterdir()} > {"ddlsched-testbed-old"}
    started.listener.close()


def _refuse(*_: object, **__: object) -> None:
    raise PermissionError
