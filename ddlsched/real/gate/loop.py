"""Drives a gate: reads what ranks say, tells it the time, and asks for decisions once what has come is taken in."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ddlsched.errors import TestbedError
from ddlsched.real.channel import ChannelEndedError
from ddlsched.real.gate.client import GROUP_S
from ddlsched.real.gate.gate import Gate
from ddlsched.real.gate.live_jobs import GateRank, LiveJob
from ddlsched.units import NS_PER_S, s_from_ns

PING_S = 1.0
HANG_S = 6.0
"""A rank of which so long nothing is heard hangs, unless it forms its group."""
STALL_S = 6.0
"""A server that has received nothing for so long, while a transfer crosses it, is cut off."""
_LEAST_BYTES = 1_500
_NONE: Mapping[str, Any] = {"asked_ns": -1, "computing": 0, "cards_down": ()}
"""The answer of a rank that has given none yet."""
_NS = NS_PER_S


class Watch:
    """Asks each rank every second how it is, and ends the run where one is not well."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._heard_ns: dict[GateRank, int] = {}
        self._pinged_ns = 0
        self._answers: dict[GateRank, Mapping[str, Any]] = {}
        self._received: dict[GateRank, tuple[int, int]] = {}

    def hear(self, rank: GateRank, message: dict[str, Any], now_ns: int) -> bool:
        """Note that a rank lives; return whether the message was an answer to this and nothing else."""
        self._heard_ns[rank] = now_ns
        if message.get("say") != "pong":
            return False
        self._answers[rank] = message
        received = int(message["received_bytes"])
        before, _ = self._received.get(rank, (-_LEAST_BYTES, 0))
        if received - before >= _LEAST_BYTES:
            self._received[rank] = received, now_ns
        return True

    def due_ns(self) -> int:
        """Return when to look again."""
        return self._pinged_ns + int(PING_S * _NS)

    def look(self, now_ns: int) -> None:
        """Ask all ranks how they are, if it is time, and judge what they have answered.

        Raises
        ------
        TestbedError
            One hangs, a server is cut off, or nothing will ever happen again.
        """
        if now_ns < self.due_ns():
            return
        for job in self._gate.running:
            for rank in job.ranks:
                self._refuse_hanging(job, rank, now_ns)
            for transfer in job.transfers.values():
                if transfer.in_flight:
                    self._refuse_cut_off(job, transfer.told_ns, now_ns)
        self._refuse_deadlock(now_ns)
        self._pinged_ns = now_ns
        for rank in self._gate.seats:
            rank.send({"do": "ping", "asked_ns": now_ns})

    def _refuse_hanging(self, job: LiveJob, rank: GateRank, now_ns: int) -> None:
        silent_ns = now_ns - max(self._heard_ns.get(rank, 0), job.placed_ns)
        if silent_ns > (HANG_S if job.began_ns >= 0 else HANG_S + GROUP_S) * _NS:
            raise TestbedError(
                f"the worker of job {job.job.job_id!r} on server {rank.server} hangs: nothing heard for "
                f"{s_from_ns(silent_ns):.1f} s"
            )

    def _refuse_cut_off(self, job: LiveJob, since_ns: int, now_ns: int) -> None:
        """Raise if some of a job's servers receive nothing; where one is cut off, the others soon wait for it."""
        moved_ns = {rank.server: max(self._received.get(rank, (0, 0))[1], since_ns) for rank in job.ranks}
        still = [server for server, at_ns in moved_ns.items() if now_ns - at_ns > STALL_S * _NS]
        if not still:
            return
        down = [
            f"{card} of server {rank.server}"
            for rank in job.ranks
            for card in self._answers.get(rank, _NONE)["cards_down"]
        ]
        longest_s = s_from_ns(now_ns - min(moved_ns.values()))
        raise TestbedError(
            f"server {', '.join(map(str, sorted(still)))} has received nothing for {longest_s:.1f} s while an "
            f"all-reduce of job {job.job.job_id!r} runs there; expected links that are up"
            + (f" (down: {', '.join(down)})" if down else "")
        )

    def _refuse_deadlock(self, now_ns: int) -> None:
        gate = self._gate
        ranks = [rank for job in gate.running for rank in job.ranks]
        answers = [self._answers.get(rank, _NONE) for rank in ranks]
        quiet = all(each["asked_ns"] > gate.last_event_ns and not each["computing"] for each in answers)
        sending = any(transfer.in_flight for job in gate.running for transfer in job.transfers.values())
        if not gate.nothing_is_due or not quiet or sending or gate.finished:
            return
        if gate.transfers.waiting:
            lines = gate.transfers.who_waits_for_whom(now_ns)
            policy = f"communication {gate.policies.label('communication')}"
            raise TestbedError(f"deadlock: {policy} starts no transfer, nothing else will happen: {'; '.join(lines)}")
        if gate.placements.queue and not ranks:
            names = ", ".join(repr(job.job.job_id) for job in gate.placements.queue)
            policy = f"placement {gate.policies.label('placement')}"
            raise TestbedError(f"deadlock: {policy} keeps waiting with jobs {names}, and nothing else will happen")


class Members(Protocol):
    """Whose messages are read."""

    def ranks(self) -> list[GateRank]:
        """Return all ranks; the same as last time, and new ones behind them."""


def run_gate(gate: Gate, members: Members, watch_message: Callable[[GateRank, dict[str, Any]], None]) -> None:
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


def _received(gate: Gate, rank: GateRank) -> list[dict[str, Any]]:
    try:
        return rank.channel.receive()
    except ChannelEndedError as error:
        job, _ = gate.seats.get(rank, (None, 0))
        whose = f"of job {job.job.job_id!r}" if job is not None else "that stood ready"
        raise TestbedError(f"the worker {whose} on server {rank.server} has died: {error}") from None
