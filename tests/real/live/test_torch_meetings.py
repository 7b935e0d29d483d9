"""Groups of PyTorch that meet by TCP, and what a stranger can do to them: python -m pytest -m torch."""

from __future__ import annotations

import importlib
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_live_manager import AllToTheFirst, Nodes

from ddlsched.real.live.commits import committed_steps
from ddlsched.real.live.manager import LiveManager
from ddlsched.real.live.meetings import NotSealedError
from ddlsched.real.live.seat import Orders

pytestmark = pytest.mark.torch
MOST_S = 20.0


@pytest.fixture
def place() -> Iterator[socket.socket]:
    importlib.import_module("torch.distributed")  # before threads do, which it cannot stand
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def meeting(rank: int, place: socket.socket, token: str = "t") -> Any:
    from ddlsched.real.live.training import meeting

    end = time.monotonic() + MOST_S

    def is_asked_to_leave(within_s: float) -> bool:
        assert time.monotonic() < end, f"rank {rank} has not met the other within {MOST_S} s"
        time.sleep(within_s)
        return False

    seat = SimpleNamespace(assignment=SimpleNamespace(token=token), place=place, is_asked_to_leave=is_asked_to_leave)
    return meeting(seat, Orders(1, rank, 2, *place.getsockname()))


def stranger(place: socket.socket) -> Any:
    from torch.distributed import TCPStore

    most = timedelta(seconds=MOST_S)
    return TCPStore(*place.getsockname(), is_master=False, wait_for_workers=False, timeout=most)


def first_rank(place: socket.socket, met: list[Any]) -> threading.Thread:
    """Have rank 0 meet others; if it never does, it does not keep the tests from their end."""
    thread = threading.Thread(target=lambda: met.append(meeting(0, place)), daemon=True)
    thread.start()
    return thread


def test_a_stranger_can_read_and_write_the_store_but_stand_for_no_rank(place: socket.socket) -> None:
    met: list[Any] = []
    first = first_rank(place, met)
    evil = stranger(place)
    evil.wait(["here0"])
    evil.set("here1", evil.get("here0"))
    first.join(0.3)
    assert first.is_alive()  # it still waits for rank 1
    second = meeting(1, place)
    first.join(10)
    assert not first.is_alive()
    second.set("address", b"of rank 1")
    assert met[0].get("address") == b"of rank 1"
    evil.set("address", b"of the stranger")
    with pytest.raises(NotSealedError, match="'address' was not written by this group"):
        met[0].get("address")


def test_a_store_answers_at_its_address_only(place: socket.socket) -> None:
    met: list[Any] = []
    first = first_rank(place, met)
    host, port = place.getsockname()
    meeting(1, place)
    first.join(10)
    socket.create_connection((host, port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_a_group_that_reports_by_tcp_trains_as_one_on_this_host(tmp_path: Path) -> None:
    losses = []
    for name, host in (("unix", None), ("tcp", "127.0.0.1")):
        (tmp_path / name).mkdir()
        live = LiveManager(tmp_path / name, Nodes(2), AllToTheFirst(), 1, host=host)
        live.store.submit("a", program="mlp", steps=30, max_nodes=2)
        live.run(120)
        losses.append(committed_steps(tmp_path / name / "a"))
        assert not list((tmp_path / name / "a").glob("rendezvous*"))
    assert len(losses[0]) == 30
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
