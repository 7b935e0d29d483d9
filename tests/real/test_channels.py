"""Lines of JSON over a connection: whatever pieces they come in, whole ones are read, and those too long end it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.real.channel import Channel, ChannelEndedError, WireError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel]]:
    ours, theirs = socket.socketpair()
    with ours, Channel(theirs, 200) as channel:
        yield ours, channel


def test_messages_come_whole_and_in_order_in_whatever_pieces(ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    rng, sent, got = np.random.default_rng(1), list[Any](), list[Any]()
    waiting = b""
    for number in range(60):
        message = {"number": number, "text": "é\u2028" * int(rng.integers(12))}
        sent.append(message)
        waiting += json.dumps(message, ensure_ascii=bool(rng.integers(2))).encode() + b"\n"
        size = int(rng.integers(len(waiting) + 1))
        piece, waiting = waiting[:size], waiting[size:]
        if piece:
            ours.sendall(piece)
            got += channel.receive()
    ours.sendall(waiting)
    while len(got) < len(sent):
        got += channel.receive()
    assert got == sent


def test_the_next_message_is_read_and_nothing_beyond_it(ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    ours.sendall(b'{"a": 1}\n{"b": 2}\nplain bytes')
    assert [channel.next(5), channel.next(5)] == [{"a": 1}, {"b": 2}]
    assert channel.taken().recv(99) == b"plain bytes"


@pytest.mark.parametrize("reads", ["next", "receive"])
def test_a_line_that_is_too_long_ends_it_at_once(reads: str, ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    begun_s = time.monotonic()
    ours.sendall(b"y" * 201)
    with pytest.raises(ChannelEndedError, match="a line of more than 200 bytes came"):
        channel.next(5) if reads == "next" else channel.receive()
    assert time.monotonic() - begun_s < 4


def test_a_line_of_the_most_bytes_is_read(ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    line = json.dumps({"a": "x" * 191}).encode()
    assert len(line) == 200
    ours.sendall(line)
    assert channel.receive() == []
    ours.sendall(b"\n")
    assert channel.receive() == [{"a": "x" * 191}]
    ours.sendall(line[:-3] + b'"}\n')
    assert channel.next(5) == {"a": "x" * 190}


def test_what_does_not_come_whole_in_time_is_told_and_what_is_no_message_ends_it(
    ends: tuple[socket.socket, Channel],
) -> None:
    ours, channel = ends
    ours.sendall(b'{"a":')
    with pytest.raises(WireError, match="nothing whole came in time"):
        channel.next(0.05)
    for bad in (b"[1]\n", b"\xff\n", b"{\n", b"7\n"):
        ours.sendall(bad)
        with pytest.raises(ChannelEndedError):
            channel.receive()
    ours.close()
    with pytest.raises(ChannelEndedError, match="the connection ended"):
        channel.receive()


def test_a_message_that_is_not_there_when_its_time_is_over_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    clock = SimpleNamespace(now_s=3.0)
    monkeypatch.setattr("ddlsched.real.channel.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    with Channel(ours) as channel, theirs:
        theirs.sendall(b"{")
        with pytest.raises(WireError, match=r"^nothing whole came in time$"):
            channel.next(0.0)
        theirs.sendall(b'}\n{"a":1}\n')
        assert channel.next(0.5) == {}
        assert ours.gettimeout() == 5.0
        assert channel.receive() == [{"a": 1}]
