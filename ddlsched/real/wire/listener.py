"""Connections that have not proven anything yet: so many at a time, and a new one takes the place of the oldest."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections import Counter
from typing import Final

__all__ = ["MOST_OF_A_PEER", "Unproven"]

MOST_OF_A_PEER: Final = 16
"""A host proves one connection after the other; several agents of one host, or behind one address, some more."""
_MOST: Final = 128


class Unproven:
    """Limits connections whose handshake is under way, a peer and in all, without locking anybody out.

    A limit that refuses the next connection is a door that slow ones hold shut, also to an honest host of the same
    address. Here the oldest is ended instead: an honest handshake takes milliseconds, and is rarely the oldest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, str] = {}  # in order of arrival

    def add(self, connection: socket.socket, address: str) -> None:
        """Note a new connection from an address; end the oldest of its peer, or of all, if there are too many."""
        peer = _peer(address)
        with self._lock:
            if Counter(self._peers.values())[peer] >= MOST_OF_A_PEER:
                self._end(next(known for known, other in self._peers.items() if other == peer))
            elif len(self._peers) >= _MOST:
                self._end(next(iter(self._peers)))
            self._peers[connection] = peer

    def remove(self, connection: socket.socket) -> bool:
        """Return whether a connection, which has proven itself or failed to, was still among them."""
        with self._lock:
            return self._peers.pop(connection, None) is not None

    def _end(self, connection: socket.socket) -> None:
        del self._peers[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it, which closes it


def _peer(address: str) -> str:
    """Return whom an address belongs to: IPv6 hosts have 2**64 each."""
    host = ipaddress.ip_address(address.partition("%")[0])
    return str(ipaddress.ip_network((host, 64), strict=False)) if host.version == 6 else str(host)
