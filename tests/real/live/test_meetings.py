"""How the processes of a group meet, in a store of this test's, and what their manager tells them of where."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_live_manager import AllToTheFirst, Nodes, received

from ddlsched.real.live import meetings
from ddlsched.real.live.manager import LiveManager
from ddlsched.real.live.meetings import NotSealedError, Seal, meet
from ddlsched.real.live.processes import JobProcesses
from ddlsched.real.live.reports import Ready, ReportSocket, address_towards, send_report
from ddlsched.real.live.seat import LEAVE, Assignment, Orders, Seat
from ddlsched.real.live.store import JobStore


class Kept(dict[str, bytes]):
    """A store as PyTorch's, in which everybody may write; one for all groups, as if ports were taken again."""

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class Sealed:
    """A process's view of it."""

    def __init__(self, kept: Kept, token: str, generation: int) -> None:
        self.kept, self.seal = kept, Seal(token, generation)

    def set(self, key: str, value: bytes) -> None:
        self.kept[key] = self.seal.put_on(key, value)

    def get(self, key: str) -> bytes:
        return self.seal.take_off(key, self.kept[key])

    def check(self, keys: list[str]) -> bool:
        return self.kept.check(keys)


class Asked:
    """A seat that is asked to leave after so many looks."""

    def __init__(self, looks: float = float("inf")) -> None:
        self.looks = looks

    def is_asked_to_leave(self, within_s: float) -> bool:
        time.sleep(min(within_s, 0.02))
        self.looks -= 1
        return self.looks < 0


def orders(rank: int, ranks: int, generation: int = 1) -> Orders:
    return Orders(generation, rank, ranks, "10.0.0.7", 4242)


def refused() -> Sealed:
    raise ConnectionRefusedError(111, "Connection refused")


def broken(keys: object = None) -> bool:
    raise RuntimeError("Broken pipe\nand a page of addresses")


def test_all_ranks_meet() -> None:
    kept, met = Kept(), []

    def come(rank: int) -> None:
        met.append(meet(Asked(), orders(rank, 3), lambda: Sealed(kept, "t", 1)))

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
    for number, thread in enumerate(threads):
        thread.start()
        time.sleep(0.02)
        assert (len(met) > 0) == (number == 2)  # nobody goes on before the last has come
        if number == 2:
            break
    for thread in threads:
        thread.join(10)
    assert len(met) == 3
    assert None not in met


def test_a_rank_leaves_when_rank_0_dies_before_it_opens_the_store() -> None:
    assert meet(Asked(looks=5), orders(1, 2), refused) is None


def test_a_rank_leaves_when_rank_0_dies_with_the_store() -> None:
    store = Sealed(Kept(), "t", 1)
    store.check = broken  # type: ignore[method-assign]
    assert meet(Asked(looks=5), orders(1, 2), lambda: store) is None


@pytest.mark.parametrize(("store", "said"), [(refused, r"\[Errno 111\] Connection refused"), (broken, "Broken pipe")])
def test_rank_0_that_cannot_be_reached_is_an_error_that_says_what_is_expected(
    store: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meetings, "_REACH_S", 0.05)
    with pytest.raises(SystemExit, match=rf"10\.0\.0\.7:4242: group 1 cannot meet there \({said}\)") as error:
        meet(Asked(), orders(1, 2), store)
    assert "nodes must reach each other by TCP" in str(error.value)


def test_a_rank_that_is_slow_to_come_is_waited_for_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "_REACH_S", 0.01)
    assert meet(Asked(looks=30), orders(0, 2), lambda: Sealed(Kept(), "t", 1)) is None


@pytest.mark.parametrize(
    ("token", "generation"), [("another", 1), ("t", 2)], ids=["another job", "another group of the job"]
)
def test_who_is_not_of_the_group_is_not_taken_for_a_rank_of_it(
    token: str, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meetings, "_REACH_S", 0.05)
    kept = Kept()
    Sealed(kept, token, generation).set("here1", b"")
    with pytest.raises(SystemExit, match=r"here1.*was not written by this group"):
        meet(Asked(), orders(0, 2), lambda: Sealed(kept, "t", 1))


def test_a_seal_is_good_for_one_key_and_one_value() -> None:
    seal = Seal("t", 1)
    sealed = seal.put_on("rank0", b"address")
    assert seal.take_off("rank0", sealed) == b"address"
    for key, value in (("rank1", sealed), ("rank0", sealed[:-1]), ("rank0", sealed + b"x"), ("rank0", b"")):
        with pytest.raises(NotSealedError, match=f"{key!r} was not"):
            seal.take_off(key, value)


class Pipes:
    """A launcher whose processes are what is written to them."""

    def start(self, node: str, log: io.IOBase) -> SimpleNamespace:
        return SimpleNamespace(stdin=io.BytesIO(), poll=lambda: None)

    def end(self, process: SimpleNamespace) -> None:
        process.stdin = None


def told(job: JobProcesses, node: str) -> list[bytes]:
    """Return what a process was told since it knows what it is for."""
    return job.workers[node].process.stdin.getvalue().splitlines(keepends=True)[1:]


@pytest.fixture
def job(tmp_path: Path) -> JobProcesses:
    job = JobProcesses(Assignment("a", "t", "mlp", 5, str(tmp_path), "h:1", 0), launcher=Pipes())
    job.add(["n1", "n2", "n3"], 0.0)
    return job


def ready(job: JobProcesses, node: str, port: int) -> None:
    worker = job.workers[node]
    job.take_ready(Ready("a", "t", worker.number, worker.generation, f"host-of-{node}", port))


def test_all_of_a_group_are_told_where_the_oldest_listens_and_so_is_the_next_group(job: JobProcesses) -> None:
    for node, port in (("n3", 3), ("n2", 2), ("n1", 1)):
        assert not job.can_form()  # nobody is told anything before all have said where they would meet
        ready(job, node, port)
    job.form(7, 0.0)
    first = [json.loads(told(job, node)[0]) for node in ("n1", "n2", "n3")]
    assert first == [Orders(7, rank, 3, "host-of-n1", 1).__dict__ for rank in range(3)]
    job.remove(["n1"])  # rank 0 dies before anybody has met it
    job.ask_to_leave(1.0)
    ready(job, "n2", 22)
    assert not job.can_form()
    ready(job, "n3", 33)
    job.form(8, 1.0)
    assert [told(job, node)[1] for node in ("n2", "n3")] == [LEAVE, LEAVE]
    second = [json.loads(told(job, node)[2]) for node in ("n2", "n3")]
    assert second == [Orders(8, rank, 2, "host-of-n2", 22).__dict__ for rank in range(2)]


def test_a_place_that_was_good_for_the_group_before_is_not_taken_again(job: JobProcesses) -> None:
    for port, node in enumerate(job.workers, 1):
        ready(job, node, port)
    job.form(7, 0.0)
    late = Ready("a", "t", job.workers["n1"].number, 0, "host-of-n1", 99)  # said before its orders came
    job.take_ready(late)
    assert job.workers["n1"].meets_at == ("host-of-n1", 1)
    assert not job.workers["n1"].is_ready


def test_a_place_is_believed_with_the_token_only_and_not_that_of_a_manager_before(tmp_path: Path) -> None:
    before = JobStore(tmp_path / "jobs.sqlite")
    before.submit("a", program="count", steps=5, max_nodes=1)
    old = before.start("a")
    before.close()
    store = JobStore(tmp_path / "jobs.sqlite")  # of the manager that takes over
    store.requeue("running")
    token = store.start("a")
    reports = ReportSocket(store.token_of, "127.0.0.1")
    for each, port in ((old, 1), ("wrong", 2), (token, 3)):
        send_report(reports.path, Ready("a", each, 1, 0, "127.0.0.1", port))
    assert [said.port for said in received(reports)] == [3]
    assert reports.refused == 2
    reports.close()
    store.close()


def test_a_process_has_a_place_at_one_address_and_says_which(tmp_path: Path) -> None:
    reports = ReportSocket(lambda job: "t", "127.0.0.1")
    read, write = os.pipe()
    line = Assignment("a", "t", "count", 5, str(tmp_path), reports.path, os.getpid(), process=4)
    os.write(write, json.dumps(line.__dict__).encode() + b"\n")
    seat = Seat(read)
    thread = threading.Thread(target=seat.orders, daemon=True)
    thread.start()
    (said,) = received(reports)
    assert (said.host, said.process) == ("127.0.0.1", 4)
    assert seat.place.getsockname() == (said.host, said.port)
    with pytest.raises(ConnectionRefusedError):  # not before it is rank 0 of a group
        socket.create_connection((said.host, said.port), timeout=5)
    os.write(write, json.dumps(orders(0, 1).__dict__).encode() + b"\n")
    thread.join(10)
    assert not thread.is_alive()
    seat.place.close()
    reports.close()
    os.close(read)
    os.close(write)


def test_a_host_that_does_not_know_its_manager_says_so(tmp_path: Path) -> None:
    read, write = os.pipe()
    line = Assignment("a", "t", "count", 5, str(tmp_path), "no.such.host.invalid:5", 0)
    os.write(write, json.dumps(line.__dict__).encode() + b"\n")
    seat = Seat(read)
    with pytest.raises(SystemExit, match=r"no\.such\.host\.invalid:5: no way to the manager"):
        seat.orders()
    os.close(read)
    os.close(write)


def test_an_address_towards_a_path_and_a_host() -> None:
    assert address_towards("/tmp/progress") == address_towards("127.0.0.1:5") == "127.0.0.1"


@pytest.mark.long
def test_a_manager_that_is_started_again_has_its_jobs_meet_anew(tmp_path: Path) -> None:
    places = []
    for _ in range(2):
        live = LiveManager(tmp_path, Nodes(2), AllToTheFirst(), 1, host="127.0.0.1")
        live.store.submit("a", program="count", steps=10_000, max_nodes=2)
        while not (live.running and len(live.running["a"].group) == 2):
            assert live.turn()
        first = live.running["a"].group[0]
        places.append((first.generation, *first.meets_at))
        live.close()
    assert [generation for generation, _, _ in places] == [1, 2]
    assert {host for _, host, _ in places} == {"127.0.0.1"}
    assert min(port for _, _, port in places) > 0


def test_a_process_whose_manager_is_gone_fails() -> None:
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(SystemExit) as ended:
        Seat(read)
    os.close(read)
    assert ended.value.code == 1


def test_who_hangs_is_who_takes_longer_than_that(job: JobProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started at 0 s; n1 and n2 train from 10 s on, of whom one is stopped, and n3 never starts."""
    stopped: set[str] = set()
    monkeypatch.setattr("ddlsched.real.live.processes.LiveProcess.is_stopped", lambda worker: worker.node in stopped)

    def hanging(now_s: float) -> list[str]:
        return [worker.node for worker in job.hanging(now_s, 8.0)]

    assert (hanging(8.0), hanging(8.1)) == ([], ["n1", "n2", "n3"])
    for node in ("n1", "n2"):
        ready(job, node, 1)
    job.form(1, 10.0)
    assert (hanging(18.0), hanging(18.1)) == (["n3"], ["n3", "n1", "n2"])
    stopped.add("n2")
    assert hanging(18.1) == ["n3", "n2"]
