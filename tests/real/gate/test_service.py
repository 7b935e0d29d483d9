"""A gate on TCP and the ranks of users' jobs: they join, take turns, and a failure stays in its job. No PyTorch."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, MeasurementError, TestbedError
from ddlsched.real.channel import parse_address
from ddlsched.real.gate import client as client_module
from ddlsched.real.gate import service
from ddlsched.real.gate.client import GateClient
from ddlsched.real.gate.client import RankMembership as Member
from ddlsched.real.gate.live_jobs import SentRow
from ddlsched.real.gate.service import GateService, Membership
from ddlsched.real.testbed.real_run import gate_settings

TOKEN = "0123456789abcdef"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


class Gate:
    """A gate in a thread."""

    def __init__(self, **policies: Any) -> None:
        self.rows: list[SentRow] = []
        self.refused: list[str] = []
        settings = gate_settings(Cluster(num_servers=4), **policies)
        self.members = Membership(settings, self.rows.append)
        address = parse_address("127.0.0.1:0", any_port=True)
        self.service = GateService(address, TOKEN.encode(), self.members, tell=self.refused.append)
        self.thread = threading.Thread(target=self.service.serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.service.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate(communication="bounded-overlap:limit=1")
    yield made
    made.close()


def joined(gate: Gate, token: Path, job: str, size: int = 2, servers: tuple[int, ...] = (0, 1)) -> list[GateClient]:
    def join(rank: int) -> GateClient:
        member = Member(job_id=job, rank=rank, size=size, iterations=10, compute_s=0.1, message_bytes=1e6)
        return GateClient.connected(str(gate.service.address), token, member, servers[rank])

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


class Transfer:
    """What ranks are told of an all-reduce, and answer at once if they are to."""

    def __init__(self, clients: list[GateClient], task: int = 0, *, answer: bool = True, size: float = 1e6) -> None:
        self.clients, self.task, self.told, self.failed = clients, task, [], []
        self.came = threading.Event()
        for number, client in enumerate(clients):
            client.ready(task, 0, size, self._send(number, answer), self._fail)

    def _send(self, number: int, answer: bool) -> Any:
        def send(chunk: int, chunks: int) -> None:
            self.told.append((number, chunk, chunks))
            if answer:
                self.clients[number].sent(self.task, 0, chunk, last=chunk == chunks - 1)
            self.came.set()

        return send

    def _fail(self, error: TestbedError) -> None:
        self.failed.append(str(error))
        self.came.set()

    def end(self) -> None:
        for number, chunk, chunks in list(self.told):
            self.clients[number].sent(self.task, 0, chunk, last=chunk == chunks - 1)


def eventually(what: Any) -> bool:
    until_s = time.monotonic() + 10
    while not what() and time.monotonic() < until_s:
        time.sleep(0.005)
    return bool(what())


def test_both_ranks_are_told_to_send_once_both_are_ready(gate: Gate, token: Path) -> None:
    clients = joined(gate, token, "a")
    transfer = Transfer(clients)
    assert eventually(lambda: gate.rows)
    assert sorted(transfer.told) == [(0, 0, 1), (1, 0, 1)]
    assert (gate.rows[0].job_id, gate.rows[0].task, gate.rows[0].message_bytes) == ("a", "bucket-0", 1e6)


def test_two_jobs_on_the_same_links_take_turns_and_others_do_not_wait(gate: Gate, token: Path) -> None:
    first = Transfer(joined(gate, token, "a"), answer=False)
    assert eventually(lambda: len(first.told) == 2)
    second, elsewhere = Transfer(joined(gate, token, "b")), Transfer(joined(gate, token, "c", servers=(2, 3)))
    assert eventually(lambda: gate.rows)
    assert (gate.rows[0].job_id, second.told) == ("c", [])
    assert elsewhere.told
    first.end()
    assert eventually(lambda: len(gate.rows) == 3)
    assert [row.job_id for row in gate.rows] == ["c", "a", "b"]


@pytest.mark.long
def test_a_rank_that_leaves_ends_its_job_and_lets_others_go_on(gate: Gate, token: Path) -> None:
    clients = joined(gate, token, "a")
    first = Transfer(clients, answer=False)
    assert eventually(lambda: len(first.told) == 2)
    second = Transfer(joined(gate, token, "b"))
    clients[1].close()
    assert eventually(lambda: len(first.failed) == 2)
    assert any("job 'a', rank 1: is gone" in text for text in first.failed)
    assert eventually(lambda: gate.rows)
    assert len(second.told) == 2


def test_a_gate_that_is_gone_fails_what_waits_and_what_comes(token: Path) -> None:
    gate = Gate()
    clients = joined(gate, token, "a")
    transfer = Transfer(clients, answer=False)
    assert eventually(lambda: len(transfer.told) == 2)
    gate.close()
    assert eventually(lambda: len(transfer.failed) == 2)
    assert all("job 'a': the gate is gone" in text for text in transfer.failed)
    assert eventually(lambda: all(client._channel._connection.fileno() == -1 for client in transfer.clients))
    assert len(Transfer(clients, 1).failed) == 2


def test_who_leaves_fails_what_waits_for_the_gate_at_once(gate: Gate, token: Path) -> None:
    clients = joined(gate, token, "a")
    transfer = Transfer(clients[:1])  # which waits for the other rank
    clients[0].close()
    assert transfer.failed == ["the gate was left"]


def test_a_rank_that_the_job_has_not_is_refused(gate: Gate, token: Path) -> None:
    beyond = Member(job_id="a", rank=2, size=2, iterations=10, compute_s=0.1, message_bytes=1e6)
    with pytest.raises(TestbedError, match="rank 2 of 2 joined; expected 0 to 1"):
        GateClient.connected(str(gate.service.address), token, beyond, 0)


def test_ranks_that_differ_in_a_messages_size_end_their_job(gate: Gate, token: Path) -> None:
    clients = joined(gate, token, "a")
    failed: list[str] = []
    for client, size in zip(clients, (1e6, 2e6), strict=True):
        client.ready(0, 0, size, lambda chunk, chunks: None, lambda error: failed.append(str(error)))
    assert eventually(lambda: len(failed) == 2)
    assert "its ranks would send 1e+06, 2e+06 bytes; expected the same on every rank" in failed[0]


def test_a_job_of_the_same_name_is_refused_and_the_first_goes_on(gate: Gate, token: Path) -> None:
    clients = joined(gate, token, "a")
    with pytest.raises(TestbedError, match="job 'a', rank 0, has joined already; expected a job_id of its own"):
        joined(gate, token, "a")
    Transfer(clients)
    assert eventually(lambda: gate.rows)


def test_a_server_that_the_network_lacks_is_refused(gate: Gate, token: Path) -> None:
    with pytest.raises(TestbedError, match=r"server [45] joined; the gate's network has 4 \(--servers\)"):
        joined(gate, token, "a", servers=(4, 5))


def test_a_wrong_token_is_refused(gate: Gate, token: Path) -> None:
    token.write_text("another-token-of-enough-length")
    with pytest.raises(MeasurementError, match="does not know the token"):
        joined(gate, token, "a", 1)
    assert eventually(lambda: gate.refused)
    assert "a wrong proof of the token came" in gate.refused[0]


def test_a_time_may_be_one_of_numpys(gate: Gate, token: Path) -> None:
    for number, compute_s in enumerate((np.float64(0.1), np.float32(0.1))):
        member = Member(job_id=f"a{number}", rank=0, size=1, iterations=10, compute_s=compute_s, message_bytes=1e6)
        GateClient.connected(str(gate.service.address), token, member, 0).close()


@pytest.mark.long
def test_ranks_that_never_come_are_not_waited_for_without_end(
    gate: Gate, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_module._BEGIN_S == 120.0  # the two minutes of GateClient's description
    monkeypatch.setattr(client_module, "_BEGIN_S", 0.3)
    with pytest.raises(TestbedError, match=r"job 'a' did not begin within 0\.3 s; expected 3 ranks at the gate"):
        joined_alone(gate, token)
    for thread in threading.enumerate():
        if thread.name == "ddlsched gate":  # whose connection is closed
            thread.join(5)
            assert not thread.is_alive()


def joined_alone(gate: Gate, token: Path) -> None:
    member = Member(job_id="a", rank=0, size=3, iterations=10, compute_s=0.1, message_bytes=1e6)
    GateClient.connected(str(gate.service.address), token, member, 0)


def test_nonsense_ends_who_says_it_and_nobody_else(gate: Gate, token: Path) -> None:
    clients = joined(gate, token, "a")
    clients[0]._channel.send({"say": "sent", "task": 7})
    lost = Transfer(clients)
    assert eventually(lambda: lost.failed)
    Transfer(joined(gate, token, "b"))
    assert eventually(lambda: gate.rows)


def test_what_no_gate_says_fails_what_waits(gate: Gate, token: Path) -> None:
    clients = joined(gate, token, "a")
    transfer = Transfer(clients, answer=False)
    assert eventually(lambda: len(transfer.told) == 2)
    (rank, *_), message = gate.members.jobs["a"].ranks, {"do": "send", "task": 7, "iteration": 0, "chunk": 0}
    rank.channel.send(message)
    assert eventually(lambda: transfer.failed)
    assert "job 'a': KeyError: (7, 0)" in transfer.failed[0]


def test_a_job_that_cannot_be_is_refused_to_all_its_ranks(gate: Gate, token: Path) -> None:
    def join(rank: int) -> str:
        member = Member(job_id="a", rank=rank, size=2, iterations=0, compute_s=0.1, message_bytes=1e6)
        with pytest.raises(TestbedError, match="iterations") as error:
            GateClient.connected(str(gate.service.address), token, member, rank)
        return str(error.value)

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(join, range(2)))) == 1


def test_an_address_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = parse_address(f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(InputError, match="cannot listen there"):
            GateService(address, b"", Membership(gate_settings(Cluster(num_servers=2)), lambda row: None))


class Silent(GateClient):
    """A rank whose process was stopped: it answers nothing."""

    def _obey(self, message: dict[str, Any]) -> None:
        if message["do"] != "ping":
            super()._obey(message)


@pytest.mark.long
def test_a_rank_that_hangs_loses_its_links_to_others(gate: Gate, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HANG_S", 0.8)
    member = Member(job_id="a", rank=0, size=1, iterations=10, compute_s=0.1, message_bytes=1e6)
    silent = Transfer([Silent.connected(str(gate.service.address), token, member, 0)], answer=False)
    assert eventually(lambda: silent.told)
    other = Transfer(joined(gate, token, "b"))
    assert eventually(lambda: silent.failed)
    assert "job 'a', rank 0: hangs: nothing heard for" in silent.failed[0]
    assert eventually(lambda: gate.rows)
    assert len(other.told) == 2
