"""A gate that listens on TCP for the ranks of users' own jobs, which prove to know a token."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from ddlsched.real.gate.loop import ChannelRank
from ddlsched.real.gate.membership import Membership
from ddlsched.real.wire.channel import ChannelEndedError
from ddlsched.real.wire.handshake import Address
from ddlsched.real.wire.listener import Caller, TokenListener
from ddlsched.units import NS_PER_S

__all__ = ["GateService"]

_TURN_S = 1.0


class GateService:
    """Serves :class:`~ddlsched.real.gate.membership.Membership` on an address until it is closed.

    Parameters
    ----------
    address
        Where to listen; port 0 takes any that is free.
    token
        Without which nobody may join.
    members
        The jobs.
    tell
        Told of each connection that was refused.
    """

    def __init__(
        self, address: Address, token: bytes, members: Membership, *, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._members, self._tell = members, tell
        self._listener = TokenListener(address, token, tell)
        self.address = self._listener.address
        """Where it listens."""
        self._servers: dict[str, int] = {}
        self._closed = False
        self._look_ns = 0

    def close(self) -> None:
        """Stop listening; :meth:`serve` returns, and every rank is told by the end of its connection."""
        self._closed = True
        self._listener.stop()

    def serve(self) -> None:
        """Let ranks join, and decide, until closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while not self._closed:
                    self._turn(selector)
            finally:
                self._listener.close()
                for key in list(selector.get_map().values()):
                    if isinstance(key.data, ChannelRank):
                        key.data.channel.close()

    def _turn(self, selector: selectors.BaseSelector) -> None:
        wake_ns = self._members.wake_ns
        until_s = _TURN_S if wake_ns is None else max(wake_ns - self._members.now_ns(), 0) / NS_PER_S
        for key, _ in selector.select(min(until_s, _TURN_S)):
            if key.fileobj is not self._listener:
                self._read(selector, key.data)
        for caller in self._listener.callers(0.0):
            self._take_in(selector, caller)
        if self._members.now_ns() >= self._look_ns:
            self._look_ns = self._members.now_ns() + int(_TURN_S * NS_PER_S)
            self._members.look_after()
        self._members.decide()

    def _take_in(self, selector: selectors.BaseSelector, caller: Caller) -> None:
        if caller.role.get("kind") != "gate":
            self._tell(f"refused {caller.peer}: a connection for no rank of a job came")
            caller.channel.close()
            return
        given = caller.role.get("server")
        server = given if isinstance(given, int) else self._servers.setdefault(caller.peer, len(self._servers))
        selector.register(caller.channel, selectors.EVENT_READ, ChannelRank(caller.channel, server, caller.peer))

    def _read(self, selector: selectors.BaseSelector, rank: ChannelRank) -> None:
        try:
            for message in rank.channel.receive():
                self._members.hear(rank, message)
        except ChannelEndedError as error:
            selector.unregister(rank.channel)
            rank.channel.close()
            self._members.lose(rank, f"is gone: {error}")
