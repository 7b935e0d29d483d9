"""Drives a gate: reads what ranks say, tells it the time, and asks for decisions once what has come is taken in."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any, Protocol

from ddlsched.errors import TestbedError
from ddlsched.real.gate.gate import Gate
from ddlsched.real.gate.live_jobs import LiveRank
from ddlsched.real.gate.watch import Watch
from ddlsched.real.wire.channel import Channel, ChannelEndedError
from ddlsched.units import NS_PER_S

__all__ = ["ChannelRank", "Members", "run_gate"]


class ChannelRank:
    """A rank at the other end of a channel."""

    def __init__(self, channel: Channel, server: int, address: str) -> None:
        self.channel, self._server, self._address = channel, server, address

    @property
    def server(self) -> int:
        """Where it is."""
        return self._server

    @property
    def address(self) -> str:
        """Where the other ranks of its job reach it."""
        return self._address

    def send(self, message: dict[str, Any]) -> None:
        """Tell it something; TestbedError if it is gone."""
        try:
            self.channel.send(message)
        except ChannelEndedError as error:
            raise TestbedError(f"the worker on server {self._server} is gone: {self._last_words() or error}") from None

    def _last_words(self) -> str:
        """Return why the worker says that it ended, if it has said so."""
        try:
            said = [message for message in self.channel.receive() if message.get("say") == "failed"]
        except ChannelEndedError:
            return ""
        return str(said[0].get("error"))[:500] if said else ""


class Members(Protocol):
    """Whose messages are read."""

    def ranks(self) -> list[ChannelRank]:
        """Return all ranks; the same as last time, and new ones behind them."""
        ...


def run_gate(gate: Gate, members: Members, watch_message: Callable[[LiveRank, dict[str, Any]], None]) -> None:
    """Run a gate until all its jobs are done.

    Parameters
    ----------
    gate
        Whose time begins now.
    members
        The ranks.
    watch_message
        Told of every message before the gate is.

    Raises
    ------
    TestbedError
        A rank failed, hangs or is gone, a server is cut off, or nothing will ever happen again.
    """
    watch, begin_ns, known = Watch(gate), time.monotonic_ns(), 0
    with selectors.DefaultSelector() as selector:
        while not gate.finished:
            gate.decide(time.monotonic_ns() - begin_ns)
            ranks = members.ranks()
            for rank in ranks[known:]:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            known = len(ranks)
            now_ns = time.monotonic_ns() - begin_ns
            due_ns = min([watch.due_ns(), *gate.due_ns()])
            for key, _ in selector.select(max(due_ns - now_ns, 0) / NS_PER_S):
                for message in _received(gate, key.data):
                    now_ns = time.monotonic_ns() - begin_ns
                    watch_message(key.data, message)
                    if not watch.hear(key.data, message, now_ns):
                        gate.hear(key.data, message, now_ns)
            watch.look(time.monotonic_ns() - begin_ns)


def _received(gate: Gate, rank: ChannelRank) -> list[dict[str, Any]]:
    try:
        return rank.channel.receive()
    except ChannelEndedError as error:
        job, _ = gate.seats.get(rank, (None, 0))
        whose = f"of job {job.job.job_id!r}" if job is not None else "that stood ready"
        raise TestbedError(f"the worker {whose} on server {rank.server} has died: {error}") from None
