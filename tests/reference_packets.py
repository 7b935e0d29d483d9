"""Packets of rings one by one, as ``ddlsched/network/packet_simulation.py`` and ``packet_queues.py`` say it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ddlsched.network import packet_queues
from ddlsched.network.packet_queues import READY_BYTES, SHRINK, SMALLEST_PACKET_BYTES, Rings

_push, _pop = (getattr(each, "py_func", each) for each in (packet_queues.push, packet_queues.pop))
_MOST_EVENTS = 200_000


@dataclass
class _Link:
    per_byte_s: float
    queue: deque[_Packet] = field(default_factory=deque)
    free_s: float = 0.0
    is_busy: bool = False
    queued_bytes: float = 0.0


@dataclass
class _Flow:
    forth: list[_Link]
    back: list[_Link]
    window_bytes: float
    target: int
    segments: deque[_Segment] = field(default_factory=deque)
    num_packets: int = 0
    under_way_bytes: float = 0.0
    shrunk_until_s: float = 0.0


@dataclass
class _Rank:
    ready: int = 0
    told: int = 0
    sent: int = 0
    received_bytes: float = 0.0
    is_done: bool = False


@dataclass
class _Message:
    flows: list[_Flow]
    num_segments: int
    segment_bytes: float
    ranks: list[_Rank]
    times_s: list[float] = field(default_factory=list)
    """When it has been reduced."""

    def received(self, rank: int) -> int:
        """Return how many segments a rank has."""
        return int(self.ranks[rank].received_bytes / self.segment_bytes + 1e-6)


@dataclass
class _Segment:
    message: _Message
    left_bytes: float


@dataclass(eq=False)
class _Packet:
    flow: _Flow
    message: _Message
    bytes: float
    hop: int = 0


class Packets:
    """A run; a random number says how long each rank takes to act."""

    def __init__(
        self, rings: Rings, *, queue_bytes: float, packet_bytes: float, react_s: float, recover_s: float
    ) -> None:
        self.queue_bytes, self.packet_bytes, self.react_s, self.recover_s = (
            queue_bytes,
            packet_bytes,
            react_s,
            recover_s,
        )
        links = [_Link(float(per_byte_s)) for per_byte_s in rings.per_byte_s]
        ways = [[[links[link] for link in way if link >= 0] for way in table] for table in (rings.forth, rings.back)]
        of_ring, first = [], 0
        for count in rings.num_ranks:
            places = range(first, first + count)
            of_ring.append([_Flow(ways[0][n], ways[1][n], queue_bytes, target=(n - first + 1) % count) for n in places])
            first += count
        self.messages = [
            _Message(flows, int(segments), float(size), [_Rank() for _ in flows])
            for flows, segments, size in zip(
                map(of_ring.__getitem__, rings.ring_of), rings.num_segments, rings.segment_bytes, strict=True
            )
        ]
        self._events, self._actions = packet_queues.event_heap(_MOST_EVENTS), list[Callable[[], None]]()
        self._random = np.random.RandomState(1)
        self.now_s = 0.0

    def durations_s(self, warm_rounds: int, rounds: int) -> list[float]:
        """Return how long an all-reduce of each takes on average of so many at least, after the first ones."""
        for message in self.messages:
            self._at(0.0, self._begin, message)
        warm: list[int] = []
        while not warm or any(len(m.times_s) - n < rounds for m, n in zip(self.messages, warm, strict=True)):
            if len(self._actions) > _MOST_EVENTS:
                raise RuntimeError("packets are lost for ever")
            self.now_s, code = _pop(self._events)
            self._actions[code]()
            if not warm and all(len(message.times_s) >= warm_rounds for message in self.messages):
                warm = [len(message.times_s) for message in self.messages]
        return [
            (m.times_s[-1] - m.times_s[n - 1]) / (len(m.times_s) - n) for m, n in zip(self.messages, warm, strict=True)
        ]

    def _at(self, time_s: float, action: Callable[..., None], *what: object) -> None:
        _push(self._events, time_s, len(self._actions))
        self._actions.append(partial(action, *what))

    def _begin(self, message: _Message) -> None:
        for rank in range(len(message.ranks)):
            self._go_on(message, rank)

    def _told(self, message: _Message, rank: int) -> None:
        message.ranks[rank].told += 1
        self._go_on(message, rank)

    def _go_on(self, message: _Message, rank: int) -> None:
        own, count, received = message.ranks[rank], len(message.ranks), message.received(rank)
        half = message.num_segments * (count - 1)

        def may(number: int) -> bool:
            sums_are_whole = number not in (half, half + 1) or received >= half
            return number < 2 or (received >= number - 1 and sums_are_whole)

        before = (rank - 1) % count
        while own.ready < 2 * half and may(own.ready):
            own.ready += 1
            waits_s = self._way_back_s(message.flows[before], READY_BYTES)
            told_s = self.now_s + waits_s + self.react_s * (0.5 + self._random.random_sample())
            self._at(told_s, self._told, message, before)
        flow = message.flows[rank]
        while own.sent < min(own.told, 2 * half) and may(own.sent):
            own.sent += 1
            flow.segments.append(_Segment(message, message.segment_bytes))
        self._send(flow)
        if not own.is_done and received >= 2 * half and own.sent == 2 * half:
            own.is_done = True
            if all(each.is_done for each in message.ranks):
                message.ranks[:] = [_Rank() for _ in message.ranks]
                message.times_s.append(self.now_s)
                self._at(self.now_s, self._begin, message)

    def _way_back_s(self, flow: _Flow, more_bytes: float) -> float:
        waits_s = 0.0
        for link in flow.back:
            waits_s += (link.queued_bytes + more_bytes) * link.per_byte_s
            waits_s += link.free_s - self.now_s if link.is_busy else 0.0
        return waits_s

    def _send(self, flow: _Flow) -> None:
        most = int(2 * self.queue_bytes / SMALLEST_PACKET_BYTES + 8)
        while flow.segments and flow.under_way_bytes < flow.window_bytes and flow.num_packets < most:
            segment = flow.segments[0]
            room_bytes = max(flow.window_bytes - flow.under_way_bytes, SMALLEST_PACKET_BYTES)
            packet = _Packet(flow, segment.message, min(self.packet_bytes, room_bytes, segment.left_bytes))
            segment.left_bytes -= packet.bytes
            if segment.left_bytes < 1e-6:
                flow.segments.popleft()
            flow.num_packets += 1
            flow.under_way_bytes += packet.bytes
            self._forward(packet)

    def _forward(self, packet: _Packet) -> None:
        while packet.hop < len(packet.flow.forth):
            link = packet.flow.forth[packet.hop]
            if link.queue and link.queued_bytes + packet.bytes > self.queue_bytes:
                self._lose(packet)
                return
            if link.is_busy:
                link.queue.append(packet)
                link.queued_bytes += packet.bytes
                return
            self._occupy(link, packet)
        self._arrive(packet)

    def _occupy(self, link: _Link, packet: _Packet) -> None:
        link.is_busy, link.free_s = True, self.now_s + packet.bytes * link.per_byte_s
        self._at(link.free_s, self._next, link)
        packet.hop += 1

    def _next(self, link: _Link) -> None:
        link.is_busy = False
        if link.queue:
            packet = link.queue.popleft()
            link.queued_bytes -= packet.bytes
            self._occupy(link, packet)
            self._forward(packet)

    def _lose(self, packet: _Packet) -> None:
        flow = packet.flow
        if self.now_s >= flow.shrunk_until_s:
            flow.window_bytes = max(SHRINK * flow.window_bytes, 2 * self.packet_bytes)
            flow.shrunk_until_s = self.now_s + self.recover_s
        self._at(self.now_s + self.recover_s, self._send_again, packet)

    def _send_again(self, packet: _Packet) -> None:
        packet.hop = 0
        self._forward(packet)

    def _arrive(self, packet: _Packet) -> None:
        message, rank = packet.message, packet.flow.target
        before = message.received(rank)
        message.ranks[rank].received_bytes += packet.bytes
        if message.received(rank) > before:
            self._at(self.now_s, self._go_on, message, rank)
        self._at(self.now_s + self._way_back_s(packet.flow, 0.0), self._acknowledged, packet)

    def _acknowledged(self, packet: _Packet) -> None:
        flow = packet.flow
        if flow.under_way_bytes >= flow.window_bytes - SMALLEST_PACKET_BYTES:
            grown_bytes = flow.window_bytes + packet.bytes * SMALLEST_PACKET_BYTES / flow.window_bytes
            flow.window_bytes = min(grown_bytes, self.queue_bytes)
        flow.num_packets -= 1
        flow.under_way_bytes -= packet.bytes
        self._send(flow)
