"""A rank's side of a gate: says what is ready, is told in a thread of its own what to send."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlsched.errors import TestbedError
from ddlsched.real.channel import Channel, ChannelEndedError, connect, parse_address, read_token

_BEGIN_S = 120.0


@dataclass(frozen=True, kw_only=True)
class RankMembership:
    """Who joins.

    Parameters
    ----------
    job_id
        Of the job, the same on all its ranks and nobody else's.
    rank, size
        Of the process, and of the job.
    iterations, compute_s, message_bytes
        What policies know of the job: how often it iterates, what an iteration computes, seconds, and reduces, bytes.
    """

    job_id: str
    rank: int
    size: int
    iterations: int
    compute_s: float
    message_bytes: float


@dataclass(frozen=True)
class _Waiting:
    send: Callable[[int, int], None]
    fail: Callable[[TestbedError], None]


class GateClient:
    """A connection to a gate, which has let the job begin.

    Parameters
    ----------
    channel
        To the gate.
    member
        Who joins.

    Raises
    ------
    TestbedError
        The gate refuses the job, or not all its ranks join within two minutes.
    """

    def __init__(self, channel: Channel, member: RankMembership) -> None:
        self._channel, self._member = channel, member
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._lock = threading.Lock()
        self._failed: TestbedError | None = None
        self._began = threading.Event()
        channel.send({"say": "join", **vars(member)})
        self._thread = threading.Thread(target=self._listen, name="ddlsched gate", daemon=True)
        self._thread.start()
        if not self._began.wait(_BEGIN_S):
            self.close()
            raise TestbedError(
                f"job {member.job_id!r} did not begin within {_BEGIN_S:g} s; expected {member.size} ranks at the gate"
            )
        if self._failed is not None:
            raise self._failed

    @classmethod
    def connected(cls, address: str, token_file: Path, member: RankMembership, server: int | None = None) -> GateClient:
        """Return a connection to the gate at ``HOST:PORT``; ``server`` is this machine's number in its network."""
        role = {"kind": "gate", "server": server}
        return cls(connect(parse_address(address), read_token(token_file), role, "ddlsched testbed gate"), member)

    def ready(
        self,
        task: int,
        iteration: int,
        message_bytes: float,
        send: Callable[[int, int], None],
        fail: Callable[[TestbedError], None],
    ) -> None:
        """Say that this rank is ready for an all-reduce.

        Parameters
        ----------
        task, iteration, message_bytes
            Which, and how large.
        send
            Called with (chunk, chunks) whenever the gate says to send a chunk, in the gate's thread.
        fail
            Called instead if the gate is gone or has dropped the job.
        """
        with self._lock:
            failed = self._failed
            if failed is None:
                self._waiting[task, iteration] = _Waiting(send, fail)
        if failed is not None:
            fail(failed)
            return
        message = {"say": "ready", "task": task, "iteration": iteration, "message_bytes": message_bytes}
        with contextlib.suppress(ChannelEndedError):  # the thread finds it out, too
            self._channel.send(message)

    def sent(self, task: int, iteration: int, chunk: int, *, last: bool) -> None:
        """Say that a chunk has been sent; after the last one nothing is left to be told of the all-reduce."""
        if last:
            with self._lock:
                self._waiting.pop((task, iteration), None)
        with contextlib.suppress(ChannelEndedError):
            self._channel.send({"say": "sent", "task": task, "iteration": iteration, "chunk": chunk})

    def iterated(self, iteration: int) -> None:
        """Say that an iteration has ended."""
        with contextlib.suppress(ChannelEndedError):
            self._channel.send({"say": "iterated", "iteration": iteration})

    def close(self) -> None:
        """Leave the gate."""
        self._fail(TestbedError("the gate was left"))
        self._channel.close()

    def _listen(self) -> None:
        try:
            while True:
                for message in self._channel.receive():
                    self._obey(message)
        except ChannelEndedError as error:
            self._fail(TestbedError(f"job {self._member.job_id!r}: the gate is gone ({error})"))
        except TestbedError as error:
            self._fail(error)
        except Exception as error:
            self._fail(TestbedError(f"job {self._member.job_id!r}: {type(error).__name__}: {error}"))
        finally:
            self._channel.close()

    def _obey(self, message: dict[str, Any]) -> None:
        if message["do"] == "begin":
            self._began.set()
        elif message["do"] == "ping":
            self._channel.send({"say": "pong"})
        elif message["do"] == "fail":
            raise TestbedError(str(message["error"]))
        else:
            with self._lock:
                waiting = self._waiting[message["task"], message["iteration"]]
            waiting.send(message["chunk"], message["chunks"])

    def _fail(self, error: TestbedError) -> None:
        with self._lock:
            self._failed = self._failed or error
            waiting, self._waiting = list(self._waiting.values()), {}
        self._began.set()
        for one in waiting:
            one.fail(error)
