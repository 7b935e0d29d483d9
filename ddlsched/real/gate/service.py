"""A gate that listens on TCP for the ranks of users' own jobs, which prove to know a token."""

from __future__ import annotations

import contextlib
import reprlib
import selectors
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from ddlsched.errors import InputError, TestbedError
from ddlsched.real.channel import Address, ChannelEndedError, Count
from ddlsched.real.gate.client import RankMembership
from ddlsched.real.gate.gate import GateSettings, begun_policies
from ddlsched.real.gate.live_jobs import MOST_TASKS, GateRank, LiveJob, SentRow
from ddlsched.real.gate.transfer_gate import TransferGate
from ddlsched.real.listener import Caller, TokenService
from ddlsched.units import MAX_MESSAGE_BYTES, NS_PER_S, s_from_ns
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job

MOST_JOBS = 1_000_000
HANG_S = 30.0
"""A rank of which so long nothing is heard, although it is asked, holds the links for nothing: its job is dropped."""


_Task = Annotated[int, msgspec.Meta(ge=0, lt=MOST_TASKS)]


class _Ready(msgspec.Struct, tag_field="say", tag="ready"):
    task: _Task
    iteration: Count
    message_bytes: Annotated[float, msgspec.Meta(ge=0, le=MAX_MESSAGE_BYTES)]


class _Sent(msgspec.Struct, tag_field="say", tag="sent"):
    task: _Task
    iteration: Count
    chunk: Count


class _Iterated(msgspec.Struct, tag_field="say", tag="iterated"):
    iteration: Count


class _Pong(msgspec.Struct, tag_field="say", tag="pong"):
    pass


_Said = RankMembership | _Ready | _Sent | _Iterated | _Pong


class Membership:
    """The jobs that have joined a gate; what goes wrong with one ends that one only.

    Parameters
    ----------
    settings
        Network and policies; the placement is the jobs' own.
    record
        Told of each all-reduce that has ended.
    """

    def __init__(self, settings: GateSettings, record: Callable[[SentRow], None]) -> None:
        self._settings, self._begin_ns = settings, time.monotonic_ns()
        self._policies = begun_policies(settings)
        self.transfers = TransferGate(
            self._policies, settings.costs, record, chunk_bytes=settings.chunk_bytes, window=settings.window
        )
        self.jobs: dict[str, LiveJob] = {}
        self._joined: dict[str, dict[int, GateRank]] = {}
        self._seats: dict[GateRank, tuple[str, int]] = {}
        self._heard_ns: dict[GateRank, int] = {}
        self._count = 0
        self.wake_ns: int | None = None

    def now_ns(self) -> int:
        """Return the time since the gate was opened."""
        return time.monotonic_ns() - self._begin_ns

    def hear(self, rank: GateRank, message: dict[str, Any]) -> None:
        """Take in what a rank says; if it cannot be, its job is told and dropped."""
        try:
            self._hear(rank, msgspec.convert(message, _Said))
        except (TestbedError, InputError) as error:
            self.lose(rank, str(error))
        except (msgspec.ValidationError, UnicodeError) as error:  # half a surrogate pair
            self.lose(rank, f"{reprlib.repr(message)} came: {error}; expected a message of ddlsched.real.torch")

    def _hear(self, rank: GateRank, said: _Said) -> None:
        now_ns = self.now_ns()
        self._heard_ns[rank] = now_ns
        if isinstance(said, _Pong):
            return
        if isinstance(said, RankMembership):
            self._join(rank, said, now_ns)
            return
        name, number = self._seats.get(rank, ("", 0))
        job = self.jobs.get(name)
        if job is None:
            raise TestbedError("a message of a job that has not begun came")
        if isinstance(said, _Ready):
            self.transfers.ready(job, number, said.task, said.iteration, said.message_bytes, now_ns)
        elif isinstance(said, _Sent):
            self.transfers.sent(job, said.task, said.iteration, said.chunk, now_ns)
        else:
            job.computed(job.job.compute_ns, [number])
            job.iterate(number)

    def _join(self, rank: GateRank, said: RankMembership, now_ns: int) -> None:
        """Note a rank; the job begins when all have come."""
        name, size, number = said.job_id, said.size, said.rank
        joined = self._joined.get(name, {})
        if max([number, *joined]) >= size:
            raise InputError(f"rank {max([number, *joined])} of {size} joined; expected 0 to {size - 1}")
        if not 0 <= rank.server < self._settings.cluster.num_servers:
            servers = self._settings.cluster.num_servers
            raise InputError(f"job {name!r}: server {rank.server} joined; the gate's network has {servers} (--servers)")
        if name in self.jobs or number in joined or rank in self._seats:
            raise InputError(f"job {name!r}, rank {number}, has joined already; expected a job_id of its own")
        self._joined.setdefault(name, joined)[number] = rank
        self._seats[rank] = (name, number)
        if len(joined) == size:
            self._begin(said, now_ns)

    def _begin(self, said: RankMembership, now_ns: int) -> None:
        name, size = said.job_id, said.size
        job = Job(
            job_id=name,
            arrival_s=s_from_ns(now_ns),
            num_gpus=size,
            iterations=said.iterations,
            iteration=DataParallelIteration(forward_s=0.0, backward_s=said.compute_s, message_bytes=said.message_bytes),
            gpu_memory_mb=0.0,
        )
        joined = self._joined.pop(name)
        live = LiveJob(job, self._count, in_buckets=True)
        self._count += 1
        live.ranks = [joined[number] for number in range(size)]
        live.iterated = [0] * size
        servers = tuple(dict.fromkeys(rank.server for rank in live.ranks))
        costs = self._settings.costs
        live.place(range(size), servers, costs.rings(job.dag.messages, servers), costs, now_ns)
        self.jobs[name] = live
        for rank in live.ranks:
            rank.send({"do": "begin"})

    def look_after(self) -> None:
        """Ask every rank for a sign of life, and drop the jobs of those that gave none for 30 s."""
        now_ns = self.now_ns()
        for rank in list(self._seats):
            silent_s = s_from_ns(now_ns - self._heard_ns[rank])
            if silent_s > HANG_S:
                self.lose(rank, f"hangs: nothing heard for {silent_s:.0f} s")
            else:
                with contextlib.suppress(TestbedError):  # the end of its connection will say so
                    rank.send({"do": "ping"})

    def lose(self, rank: GateRank, why: str) -> None:
        """Drop the job of a rank that is gone or broke the rules, and tell its other ranks why."""
        name, number = self._seats.pop(rank, ("", 0))
        self._heard_ns.pop(rank, None)
        job = self.jobs.pop(name, None)
        ranks = [rank] if job is None else job.ranks
        others = [*ranks, *self._joined.pop(name, {}).values()]
        if job is not None:
            self.transfers.forget(job)
        for other in dict.fromkeys(others):
            self._seats.pop(other, None)
            with contextlib.suppress(TestbedError):  # it is gone, too
                other.send({"do": "fail", "error": f"job {name!r}, rank {number}: {why}" if name else why})

    def decide(self) -> None:
        """Ask the policies, if something has changed or they asked for it."""
        now_ns = self.now_ns()
        woken = self.wake_ns is not None and self.wake_ns <= now_ns
        if not self.transfers.changed and not woken:
            return
        try:
            self.transfers.decide(now_ns)
        except TestbedError:  # a rank is gone: the end of its connection will say so
            self.transfers.changed = True
        self.wake_ns = self._policies.wake_ns("communication", now_ns)


_TURN_S = 1.0


class GateService(TokenService):
    """Serves :class:`~ddlsched.real.gate.service.Membership` on an address; ``members`` are its jobs."""

    def __init__(
        self, address: Address, token: bytes, members: Membership, *, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(address, token, tell)
        self._members = members
        self._servers: dict[str, int] = {}
        self._look_ns = 0

    def serve(self) -> None:
        """Let ranks join, and decide, until stopped; every rank is told by the end of its connection."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            try:
                while not self._closed:
                    self._turn(selector)
            finally:
                self.close()
                for key in list(selector.get_map().values()):
                    if isinstance(key.data, GateRank):
                        key.data.channel.close()

    def _turn(self, selector: selectors.BaseSelector) -> None:
        wake_ns = self._members.wake_ns
        until_s = _TURN_S if wake_ns is None else max(wake_ns - self._members.now_ns(), 0) / NS_PER_S
        for key, _ in selector.select(min(until_s, _TURN_S)):
            if key.fileobj is not self:
                self._hear(selector, key.data)
        for caller in self.callers(0.0):
            self._take_in(selector, caller)
        if self._members.now_ns() >= self._look_ns:
            self._look_ns = self._members.now_ns() + int(_TURN_S * NS_PER_S)
            self._members.look_after()
        self._members.decide()

    def _take_in(self, selector: selectors.BaseSelector, caller: Caller) -> None:
        if caller.role.get("kind") != "gate":
            self._turn_away(caller, "a connection for no rank of a job came")
            return
        given = caller.role.get("server")
        server = given if isinstance(given, int) else self._servers.setdefault(caller.peer, len(self._servers))
        selector.register(caller.channel, selectors.EVENT_READ, GateRank(caller.channel, server, caller.peer))

    def _hear(self, selector: selectors.BaseSelector, rank: GateRank) -> None:
        try:
            for message in rank.channel.receive():
                self._members.hear(rank, message)
        except ChannelEndedError as error:
            selector.unregister(rank.channel)
            rank.channel.close()
            self._members.lose(rank, f"is gone: {error}")
