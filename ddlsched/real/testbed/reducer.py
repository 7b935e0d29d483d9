"""What moves bytes between the ranks of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Ended", "Reducer"]

Ended = Callable[[str | None], None]
"""Called once a chunk has been reduced, perhaps from another thread; with what went wrong, if it did."""


class Reducer(Protocol):
    """All-reduces over a group of ranks, several at a time.

    All ranks start the same chunks in the same order.
    """

    def listen(self, address: str) -> int:
        """Return the port at which the other ranks are to join; rank 0's."""
        ...

    def join(self, host: str, port: int, address: str, rank: int, size: int, threads: int) -> None:
        """Form the group; waits for all its ranks."""
        ...

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        """Begin to reduce one chunk of a message."""
        ...

    def received_bytes(self) -> int:
        """Return how many bytes this server has received by now, whoever sent them."""
        ...

    def cards_down(self) -> list[str]:
        """Return the names of this server's network cards that are down."""
        ...

    def leave(self) -> None:
        """Leave the group."""
        ...
