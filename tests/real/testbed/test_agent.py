"""An agent that hands out workers, none of which is asked for here."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ddlsched.errors import InputError
from ddlsched.real.channel import parse_address
from ddlsched.real.testbed import crews


def test_an_agent_serves_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, name in ((crews, "prepare"), (crews.signal, "signal")):  # of a whole process; no PyTorch
        monkeypatch.setattr(part, name, lambda *_: None)
    agent = crews.WorkerAgent(parse_address("127.0.0.1:0", any_port=True), b"a token for tests only")
    serving = threading.Thread(target=agent.serve, daemon=True)
    serving.start()
    agent.stop()
    serving.join(10)
    assert not serving.is_alive()


def test_nobody_reaches_an_agent_that_is_closed() -> None:
    agent = crews.WorkerAgent(parse_address("127.0.0.1:0", any_port=True), b"a token for tests only")
    socket.create_connection(agent.address).close()
    agent.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(agent.address)


def test_hosts_are_told_once_each(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("10.0.0.1:7 # the first\n\n10.0.0.2:7\n")
    assert [str(address) for address in crews.read_hosts(hosts, 2)] == ["10.0.0.1:7", "10.0.0.2:7"]
    hosts.write_text("10.0.0.1:7\n10.0.0.1:7\n")
    with pytest.raises(InputError, match=r"line 2: 10\.0\.0\.1:7 stands there twice"):
        crews.read_hosts(hosts, 2)


@pytest.mark.parametrize(("crew", "here"), [(crews.NamespaceCrew, True), (crews.HostCrew, False)])
def test_only_workers_in_namespaces_take_their_memory_from_this_machine(
    crew: type[crews.WorkerCrew], here: bool
) -> None:
    assert crew.on_this_machine is here
