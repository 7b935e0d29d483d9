"""Frames at random against everything that listens: nothing that comes ends it, or keeps it from serving the next.

``python -m pytest -m slow tests/real/test_random_frames.py`` sends 60,000; ``FUZZ`` says how many each listener gets.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tiers import examples

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import MeasurementError
from ddlsched.real.calibration import agent as agent_module
from ddlsched.real.calibration.agent import RingAgent
from ddlsched.real.calibration.measurements import MeasurePlan, measure
from ddlsched.real.channel import Address, WireError, _prove, connect
from ddlsched.real.gate.client import GateClient, RankMembership
from ddlsched.real.gate.service import GateService, Membership
from ddlsched.real.live.reports import Report, ReportSocket, send_report
from ddlsched.real.testbed.real_run import gate_settings

TOKEN = b"a token for tests only"
FRAMES = examples(20_000, by_default=100)
TURN = 50
"""After so many frames somebody is served."""
ODD: tuple[Any, ...] = (
    None, True, "", "\ud800", "a" * 300, -1, 0, 1, 2**20, 1e10, 1e15, 1e18, 2**63, 10**400, -(10**30), 0.5, 1e308,
    float("inf"), float("nan"),
    [], {}, [[]], {"a": {}}, [None] * 200,
)  # fmt: skip


def changed(message: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return a message of which fields are gone, odd, those of another, or too many."""
    made = dict(message)
    for _ in range(draw.choice((0, 1, 1, 2))):
        name = draw.choice([*made, "other"])
        if draw.random() < 0.3:
            made.pop(name, None)
        else:
            made[name] = draw.choice((*ODD, draw.choice(list(message.values())), draw.randrange(-3, 40)))
    return made


def frame(message: dict[str, Any], draw: random.Random) -> bytes:
    """Return the line of a changed message, sometimes damaged."""
    line = json.dumps(changed(message, draw)).encode()
    damage = draw.randrange(10)
    if damage == 0:
        line = line[: draw.randrange(len(line))]
    elif damage == 1:
        place = draw.randrange(len(line))
        line = line[:place] + draw.randbytes(draw.randrange(1, 9)) + line[place + 1 :]
    elif damage == 2:
        depth = draw.randrange(1, 3000)
        line = b'{"say":' * depth + b"1" + b"}" * depth
    elif damage == 3:
        line = draw.randbytes(draw.randrange(1, 2000))
    return line + draw.choice((b"\n", b"\n", b"\n", b"", b"\n\n"))


def sent(connection: socket.socket, lines: list[bytes]) -> None:
    """Send lines, as far as somebody takes them."""
    with contextlib.suppress(OSError), connection:
        for line in lines:
            connection.sendall(line)


def proven(address: Address, role: dict[str, Any], lines: list[bytes]) -> None:
    """Send lines to somebody who believes in the role."""
    with contextlib.suppress(MeasurementError):  # a role that is too long
        sent(connect(address, TOKEN, role).taken(), lines)


def tried(faults: list[str], send: Callable[[random.Random], int], serves: Callable[[], bool]) -> None:
    """Send frames until they are as many as asked; ``send`` returns how many it sent."""
    draw, count, until = random.Random(FRAMES), 0, TURN
    while count < FRAMES:
        count += send(draw)
        if count >= until:
            until = count + TURN
            assert not faults
            assert serves(), faults
    assert serves(), faults
    assert not faults


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What any thread ended with."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: found.append(repr(told.exc_value)))
    return found


@pytest.fixture(params=["preemptive", "bounded-overlap:limit=1"])
def gate(request: pytest.FixtureRequest) -> Iterator[GateService]:
    members = Membership(gate_settings(Cluster(num_servers=4), communication=request.param), lambda row: None)
    service = GateService(Address("127.0.0.1", 0), TOKEN, members)
    thread = threading.Thread(target=service.serve, daemon=True)
    thread.start()
    yield service
    service.stop()
    thread.join(10)
    assert not thread.is_alive()


JOIN = {"say": "join", "job_id": "a", "rank": 0, "size": 1, "iterations": 5, "compute_s": 0.1, "message_bytes": 1e6}
SAID = (
    JOIN,
    {"say": "ready", "task": 0, "iteration": 0, "message_bytes": 1e6},
    {"say": "sent", "task": 0, "iteration": 0, "chunk": 0},
    {"say": "iterated", "iteration": 0},
    {"say": "pong"},
)


@pytest.mark.drawn
def test_a_gate_goes_on(gate: GateService, faults: list[str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    numbers = itertools.count()

    def send(draw: random.Random) -> int:
        begin = [json.dumps(changed(JOIN, draw)).encode() + b"\n"] if draw.random() < 0.7 else []
        lines = [frame(draw.choice(SAID), draw) for _ in range(draw.randrange(1, 12))]
        proven(gate.address, changed({"kind": "gate", "server": draw.randrange(4)}, draw), begin + lines)
        return len(begin + lines)

    def serves() -> bool:
        served = threading.Event()
        member = RankMembership(
            job_id=f"served-{next(numbers)}", rank=0, size=1, iterations=1, compute_s=0.1, message_bytes=1e6
        )
        client = GateClient.connected(str(gate.address), token, member, 0)
        client.ready(0, 0, 1e6, lambda chunk, chunks: served.set(), lambda error: None)
        done = served.wait(10)
        client.close()
        return done

    tried(faults, send, serves)


@pytest.mark.drawn
def test_an_agent_that_measures_goes_on(faults: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "_CONNECT_S", 0.2)
    with contextlib.ExitStack() as stack:
        agents = [RingAgent(Address("127.0.0.1", 0), TOKEN, most_bytes=10**6) for _ in range(2)]
        for agent in agents:
            stack.callback(agent.stop)
            threading.Thread(target=agent.serve, daemon=True).start()
        hosts = tuple(agent.address for agent in agents)
        request = {
            "run": "0" * 32, "hosts": [list(host) for host in hosts], "rank": 0, "jobs": 1, "message_bytes": 1000,
            "repeats": 1,
        }  # fmt: skip
        greeting = {"nonce": "0" * 64, "role": '{"kind": "control"}', "proof": "0" * 64}

        def send(draw: random.Random) -> int:
            if draw.random() < 0.5:  # a stranger
                with contextlib.suppress(OSError):
                    sent(socket.create_connection(hosts[0], timeout=10), [frame(greeting, draw)])
                return 1
            lines = [frame(draw.choice((request, {"kind": "connect"})), draw) for _ in range(draw.randrange(1, 12))]
            role = {"kind": "control"} if draw.random() < 0.8 else changed({"kind": "ring", "ring": 0}, draw)
            proven(hosts[0], role, lines)
            return len(lines)

        def serves() -> bool:
            plan = MeasurePlan(hosts=hosts, jobs=(1,), message_bytes=(1000,), repeats=1)
            until_s = time.monotonic() + 10
            while True:
                try:
                    return len(list(measure(plan, TOKEN))) == 1
                except MeasurementError as error:  # what was asked last is still carried out
                    if "busy" not in str(error) or time.monotonic() > until_s:
                        raise

        tried(faults, send, serves)


REPORT: dict[str, Any] = {
    "job": "a", "token": "0" * 64, "generation": 1, "step": 3, "samples": 192, "nodes": 2, "loss": 0.5, "time_s": 1.0
}  # fmt: skip


@pytest.mark.drawn
def test_a_manager_hears_reports_beside_them(faults: list[str]) -> None:
    reports = ReportSocket({"a": "right"}.get)

    def send(draw: random.Random) -> int:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(reports.path)
        lines = [frame({"type": "Report", **REPORT}, draw) for _ in range(draw.randrange(1, 4))]
        sent(connection, lines)
        assert reports.receive(0.0) == []
        return len(lines)

    def serves() -> bool:
        send_report(reports.path, Report(**REPORT | {"token": "right"}))
        return [one.job for _ in range(5) for one in reports.receive(0.02)] == ["a"]

    try:
        tried(faults, send, serves)
    finally:
        reports.close()


def test_one_who_speaks_another_version_is_told_so_and_nothing_is_sent() -> None:
    channel = mock.Mock()
    channel.next.return_value = {"version": "older", "nonce": "1"}
    with pytest.raises(WireError, match="it speaks 'older'"):
        _prove(channel, b"token", {})
    channel.send.assert_not_called()
