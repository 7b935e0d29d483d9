"""What moves bytes between the ranks of a job: real all-reduces over TCP with PyTorch's gloo."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddlsched.errors import TestbedError
from ddlsched.real.gate.client import GROUP_S
from ddlsched.real.testbed.machine import behind_this_thread

ITEM_BYTES = 4
"""Of a float32, of which messages consist."""
_TRANSFER_S = 3600.0
"""The gate finds out sooner when a transfer has no end."""
_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
_COUNTERS = Path("/proc/thread-self/net/dev")


Ended = Callable[[str | None], None]
"""Called once a chunk has been reduced, perhaps from another thread; with what went wrong, if it did."""


class GlooReducer:
    """A gloo process group of one rank a server; the sums are checked at both ends of each chunk.

    All ranks start the same chunks, of which several may be under way, in the same order.
    """

    def __init__(self) -> None:
        self._store: Any = None
        self._group: Any = None
        self._buffers: dict[int, Any] = {}
        self._rank = self._size = 0

    def listen(self, address: str) -> int:
        """Return the port at which the other ranks are to join."""
        from torch.distributed import TCPStore

        wait = timedelta(seconds=GROUP_S)
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=wait)
        return int(self._store.port)

    def join(self, host: str, port: int, address: str, rank: int, size: int, threads: int) -> None:
        """Form the group; waits for all its ranks, at most 20 s."""
        from torch.distributed import ProcessGroupGloo, TCPStore

        if self._store is None:
            self._store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=GROUP_S))
        options = ProcessGroupGloo._Options()
        options._threads = max(threads, 2)
        options._timeout = timedelta(seconds=GROUP_S)
        with behind_this_thread():
            options._devices = [ProcessGroupGloo.create_device(hostname=address)]
            self._group = ProcessGroupGloo(self._store, rank, size, options)
        self._group._set_default_timeout(timedelta(seconds=_TRANSFER_S))
        self._rank, self._size = rank, size

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        """Begin to reduce one chunk of a message."""
        part = self._part(task, message_bytes, chunk, chunks)
        if len(part) == 0:
            ended(None)
            return
        part[0] = part[-1] = self._rank + 1
        work = self._group.allreduce([part])
        work.get_future().add_done_callback(lambda future: ended(self._wrong(future, part)))

    def _part(self, task: int, message_bytes: float, chunk: int, chunks: int) -> Any:
        """Return a chunk's place in the message, which is kept for the next iteration."""
        import torch

        count = round(message_bytes / ITEM_BYTES)
        if task not in self._buffers:
            try:
                self._buffers[task] = torch.zeros(count)
            except RuntimeError:  # which PyTorch raises where memory is short
                raise TestbedError(f"no memory for a message of {message_bytes / 1e6:g} MB") from None
        return self._buffers[task][count * chunk // chunks : count * (chunk + 1) // chunks]

    def _wrong(self, future: Any, part: Any) -> str | None:
        try:
            future.wait()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        wanted = self._size * (self._size + 1) / 2
        if float(part[0]) != wanted or float(part[-1]) != wanted:
            return f"it came to the sums {float(part[0])} and {float(part[-1])}; expected {wanted}"
        part[0] = part[-1] = 0.0
        return None

    def received_bytes(self) -> int:
        """Return how many bytes this server's cards have received."""
        lines = _COUNTERS.read_text(encoding="utf-8").splitlines()[2:]
        cards = (line.split(":", 1) for line in lines)
        return sum(int(counts.split()[0]) for name, counts in cards if name.strip() != "lo")

    def cards_down(self) -> list[str]:
        """Return the names of this server's network cards that are down, or without a carrier."""
        with socket.socket() as asked:
            return [name for _, name in socket.if_nameindex() if name != "lo" and not _runs(asked, name)]

    def leave(self) -> None:
        """Leave the group, whoever is still in it."""
        self._group = self._store = None
        self._buffers.clear()


def _runs(asked: socket.socket, card: str) -> bool:
    try:
        answer = fcntl.ioctl(asked, _SIOCGIFFLAGS, struct.pack("16sh14x", card.encode(), 0))
    except OSError:
        return False
    return bool(struct.unpack_from("16xh", answer)[0] & _IFF_RUNNING)
