"""How the processes of a group meet before PyTorch forms it: in a store that rank 0 opens, at an address of its host.

PyTorch's store asks nobody who he is. So all that a group writes there is sealed under its job's token, which nobody
else has, and what is not is an error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from ddlsched.real.channel import is_proven, proof
from ddlsched.real.live.seat import Orders, Seat

_SEAL_BYTES = 32
_LOOK_S = 0.002
_AGAIN_S = 0.5
"""After an error of torch's, about each of which it writes a page."""
_REACH_S = 60.0
"""How long a process tries to reach rank 0 of its group, who may be slow to begin."""


class Meeting(Protocol):
    """What processes meet in: bytes by keys, as in a store of PyTorch."""

    def set(self, key: str, value: bytes, /) -> None:
        """Keep a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether there is a value for every key."""


class NotSealedError(RuntimeError):
    """A value in a store is not of the group that meets there."""


class Seal:
    """What only the processes of one group can put before a value; another group of the same job has another.

    Parameters
    ----------
    token
        Of the job's present start.
    generation
        Of the group.
    """

    def __init__(self, token: str, generation: int) -> None:
        self._key = proof(token.encode(), f"group {generation}")

    def put_on(self, key: str, value: bytes) -> bytes:
        """Return a value with its seal, which is good for that key alone."""
        return proof(self._key, key, value) + value

    def take_off(self, key: str, sealed: bytes) -> bytes:
        """Return the value.

        Raises
        ------
        NotSealedError
            Somebody else has written it, or for another key.
        """
        seal, value = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if not is_proven(seal, self._key, key, value):
            raise NotSealedError(f"what is there for {key!r} was not written by this group")
        return value


def meet(seat: Seat, orders: Orders, open_store: Callable[[], Meeting]) -> Meeting | None:
    """Return the store in which all ranks of a group have met, or None if one of them has died before it came.

    A group that torch begins to form and that misses a rank would hold the others until a timeout, and leave torch's
    count of groups different from that of a process that joins later.

    Parameters
    ----------
    open_store
        Opens it, or as another rank than 0 reaches the one that rank 0 has opened; raises OSError or RuntimeError
        if nobody answers.

    Raises
    ------
    SystemExit
        Rank 0 cannot be reached, and the manager does not know that it has died.
    """
    store: Meeting | None = None
    until_s, pause_s = time.monotonic() + _REACH_S, 0.0
    while not seat.is_asked_to_leave(pause_s):
        try:
            if store is None:
                store = open_store()
                store.set(_here(orders.rank), b"")
            if _have_all_come(store, orders.ranks):
                return store
            until_s, pause_s = time.monotonic() + _REACH_S, _LOOK_S
        except (OSError, RuntimeError) as error:  # The latter is what torch raises where a connection breaks.
            if time.monotonic() > until_s:
                sys.exit(_unreachable(orders, error))
            pause_s = _LOOK_S if isinstance(error, OSError) else _AGAIN_S
    return None


def _here(rank: int) -> str:
    return f"here{rank}"


def _have_all_come(store: Meeting, ranks: int) -> bool:
    """Return whether every rank has; raises where somebody else says so in its place."""
    everybody = [_here(rank) for rank in range(ranks)]
    return store.check(everybody) and all(store.get(key) == b"" for key in everybody)


def _unreachable(orders: Orders, error: Exception) -> str:
    where = f"{orders.host}:{orders.port}"
    said = str(error).partition("\n")[0]
    return (
        f"{where}: group {orders.generation} cannot meet there ({said}); expected that its rank 0 answers: "
        "nodes must reach each other by TCP at any port, at the addresses by which they reach the manager"
    )
