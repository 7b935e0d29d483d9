"""A rank's side of a gate: says what is ready, is told in a thread of its own what to send."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ddlsched.errors import TestbedError
from ddlsched.real.channel import Channel, ChannelEndedError, Count, connect, parse_address, read_token
from ddlsched.units import MAX_MESSAGE_BYTES, MAX_NS, NS_PER_S

MOST_RANKS = 4096
GROUP_S = 20.0
"""Ranks that form a group answer nothing meanwhile, and give up after so long."""
_BEGIN_S = 120.0


class RankMembership(msgspec.Struct, frozen=True, kw_only=True, tag_field="say", tag="join"):
    """Who joins; the message that says so.

    Parameters
    ----------
    job_id
        Of the job, the same on all its ranks and nobody else's.
    rank, size
        Of the process, and of the job.
    iterations, compute_s, message_bytes
        What policies know of the job: how often it iterates, what an iteration computes, seconds, and reduces, bytes.
    """

    job_id: Annotated[str, msgspec.Meta(min_length=1)]
    rank: Count
    size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    iterations: Count
    compute_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_NS / NS_PER_S)]
    message_bytes: Annotated[float, msgspec.Meta(ge=0, le=MAX_MESSAGE_BYTES)]


class WaitingBuckets:
    """A rank's all-reduces that are ready, and what is called once the gate says to send them.

    Parameters
    ----------
    say
        Tells the gate something.
    """

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self._waiting: dict[tuple[int, int], tuple[Callable[[int, int], None], Callable[[TestbedError], None]]] = {}
        self._lock = threading.Lock()

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
            self._waiting[task, iteration] = send, fail
        self._say({"say": "ready", "task": task, "iteration": iteration, "message_bytes": message_bytes})

    def send(self, order: dict[str, Any]) -> None:
        """Begin to send a chunk, as the gate says."""
        with self._lock:
            send, _ = self._waiting[order["task"], order["iteration"]]
        send(order["chunk"], order["chunks"])

    def sent(self, task: int, iteration: int, chunk: int, *, last: bool) -> None:
        """Say that a chunk has been sent; after the last one nothing is left to be told of the all-reduce."""
        if last:
            with self._lock:
                self._waiting.pop((task, iteration), None)
        self._say({"say": "sent", "task": task, "iteration": iteration, "chunk": chunk})

    def iterated(self, iteration: int) -> None:
        """Say that an iteration has ended."""
        self._say({"say": "iterated", "iteration": iteration})


class GateClient(WaitingBuckets):
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
        super().__init__(channel.try_to_send)
        self._channel, self._member = channel, member
        self._failed: TestbedError | None = None
        self._began = threading.Event()
        channel.send(msgspec.to_builtins(member, enc_hook=float))  # NumPy's numbers, too
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

    def ready(self, *bucket: Any) -> None:
        """Say that this rank is ready for an all-reduce, which fails at once if the gate is gone."""
        super().ready(*bucket)
        if self._failed is not None:
            self._fail(self._failed)

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
            self.send(message)

    def _fail(self, error: TestbedError) -> None:
        with self._lock:
            self._failed = self._failed or error
            waiting, self._waiting = list(self._waiting.values()), {}
        self._began.set()
        for _, fail in waiting:
            fail(error)
