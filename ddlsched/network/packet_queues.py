"""Packets in the first-in-first-out queues of links, and the windows of the connections that send them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""Reference counting is off, as nothing allocates: it would cost several times the work itself."""
_njit: Any = numba.njit
compiled = _njit(**OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles what only compiled code calls."""


def _kind_of(whole: str, real: str) -> np.dtype[Any]:
    """Return the type of records with fields of these names for whole and for real numbers."""
    fields = [*((name, np.int64) for name in whole.split()), *((name, np.float64) for name in real.split())]
    return np.dtype(fields, align=True)


_EVENT = _kind_of("code", "time_s")


def _records(shape: int | tuple[int, int], kind: np.dtype[Any]) -> np.ndarray:
    """Return zeroed records, whose fields are attributes where nothing is compiled, too."""
    return np.zeros(shape, kind).view(np.recarray)


def event_heap(most: int) -> np.ndarray:
    """Return a heap for so many events at once; its first entry's ``code`` counts them."""
    return _records(most + 1, _EVENT)


@compiled
def push(heap, time_s, code):
    """Add an event; of events at one time the order is that of what was added and taken before."""
    heap[0].code += 1
    place = heap[0].code
    while place > 1 and heap[place // 2].time_s > time_s:
        above = heap[place // 2]
        heap[place].time_s, heap[place].code = above.time_s, above.code
        place //= 2
    heap[place].time_s, heap[place].code = time_s, code


@compiled
def pop(heap):
    """Take the first event; return its time and code."""
    time_s, code = heap[1].time_s, heap[1].code
    last = heap[heap[0].code]
    last_s, last_code = last.time_s, last.code
    heap[0].code -= 1
    count, place = heap[0].code, 1
    while 2 * place <= count:
        below = 2 * place
        if below < count and heap[below + 1].time_s < heap[below].time_s:
            below += 1
        if heap[below].time_s >= last_s:
            break
        heap[place].time_s, heap[place].code = heap[below].time_s, heap[below].code
        place = below
    heap[place].time_s, heap[place].code = last_s, last_code
    return time_s, code


READY_BYTES = 150
"""Of the word that a rank is ready, with its headers."""
SMALLEST_PACKET_BYTES = 1448.0
"""By so much a window grows when it has come through once: TCP's segment on Ethernet."""
SHRINK = 0.7
"""What a loss leaves of a window, as cubic has it."""
LINK_FREE, ACKNOWLEDGED, TOLD, REACTS, LOST, BEGINS = range(6)
KINDS = 6

_FLOW = _kind_of("ring first_segment num_segments num_packets", "window_bytes under_way_bytes shrunk_until_s")
_LINK = _kind_of("first last busy", "per_byte_s queued_bytes free_s")
_PACKET = _kind_of("flow message hop next", "bytes")
_COUNT = _kind_of("rounds counted", "begin_s end_s")
_RANK = _kind_of("sent ready told done", "received_bytes")


class Rings(NamedTuple):
    """Rings, the messages that they reduce, and the way of each flow.

    Parameters
    ----------
    num_ranks
        Of each ring; its flows, from each rank to the next, follow each other, ring by ring.
    ring_of
        The ring of each message, of shape (messages,).
    num_segments
        Of each message: how many a rank sends in a step.
    segment_bytes
        Of each message: the size of one.
    forth, back
        The links that each flow crosses, and those from its target back to its source, of shape (flows, hops), filled
        up with -1.
    per_byte_s
        Of each link.
    """

    num_ranks: np.ndarray
    ring_of: np.ndarray
    num_segments: np.ndarray
    segment_bytes: np.ndarray
    forth: np.ndarray
    back: np.ndarray
    per_byte_s: np.ndarray


class QueueState(NamedTuple):
    """All that changes, and the parameters; compiled code changes it in place."""

    rings: Rings
    events: Any
    counts: Any
    """What is counted of each message."""
    flows: Any
    links: Any
    packets: Any
    free_packets: np.ndarray
    """Numbers of the packets that are not in use, and in the last place how many there are."""
    ranks: Any
    """What each rank has done of each message, of shape (messages, ranks)."""
    first_flow: np.ndarray
    most_packets: int
    """That a flow has under way: of segments that are smaller than a packet a window holds any number."""
    segments: np.ndarray
    """The messages whose segments a flow is to send, in order, and what is left of them, of shape (flows, places)."""
    left_bytes: np.ndarray
    queue_bytes: float
    packet_bytes: float
    react_s: float
    recover_s: float


def state_of(rings: Rings, queue_bytes: float, packet_bytes: float, react_s: float, recover_s: float) -> QueueState:
    """Return the state in which nothing has been sent."""
    flows, places = len(rings.forth), 2 * len(rings.ring_of) + 2
    most_packets = int(2 * queue_bytes / SMALLEST_PACKET_BYTES + 8)
    num_packets = flows * most_packets
    state = QueueState(
        rings=rings,
        events=event_heap(
            len(rings.per_byte_s) + 2 * num_packets + 8 * len(rings.ring_of) * int(rings.num_ranks.max())
        ),
        counts=_records(len(rings.ring_of), _COUNT),
        flows=_records(flows, _FLOW),
        links=_records(len(rings.per_byte_s), _LINK),
        packets=_records(num_packets, _PACKET),
        free_packets=np.append(np.arange(num_packets), num_packets),
        ranks=_records((len(rings.ring_of), int(rings.num_ranks.max())), _RANK),
        first_flow=np.cumsum(rings.num_ranks) - rings.num_ranks,
        most_packets=most_packets,
        segments=np.zeros((flows, places), np.int64),
        left_bytes=np.zeros((flows, places)),
        queue_bytes=float(queue_bytes),
        packet_bytes=float(packet_bytes),
        react_s=float(react_s),
        recover_s=float(recover_s),
    )
    state.flows["ring"] = np.repeat(np.arange(len(rings.num_ranks)), rings.num_ranks)
    state.flows["window_bytes"] = queue_bytes
    state.links["first"] = state.links["last"] = -1
    state.links["per_byte_s"] = rings.per_byte_s
    return state


@compiled
def event_code(kind, number):
    """Return an event's kind and what it is of as one number."""
    return number * KINDS + kind


@compiled
def way_back_s(s, number, more_bytes, now_s):
    """Return how long what goes back from a flow's target to its source waits, and is sent, on the way."""
    seconds = 0.0
    for link_number in s.rings.back[number]:
        if link_number >= 0:
            link = s.links[link_number]
            seconds += (link.queued_bytes + more_bytes) * link.per_byte_s
            if link.busy:
                seconds += link.free_s - now_s
    return seconds


@compiled
def send(s, number, now_s):
    """Send packets of a flow while its window lets it."""
    flow = s.flows[number]
    while flow.num_segments > 0 and flow.under_way_bytes < flow.window_bytes and flow.num_packets < s.most_packets:
        packet_number = _cut_packet(s, number)
        flow.num_packets += 1
        flow.under_way_bytes += s.packets[packet_number].bytes
        _forward(s, packet_number, now_s)


@compiled
def _cut_packet(s, number):
    """Return a new packet of the segment that a flow is to send next."""
    flow = s.flows[number]
    place = flow.first_segment
    s.free_packets[-1] -= 1
    packet_number = s.free_packets[s.free_packets[-1]]
    packet = s.packets[packet_number]
    room_bytes = max(flow.window_bytes - flow.under_way_bytes, SMALLEST_PACKET_BYTES)
    packet.flow, packet.hop, packet.message = number, 0, s.segments[number, place]
    packet.bytes = min(s.packet_bytes, room_bytes, s.left_bytes[number, place])
    s.left_bytes[number, place] -= packet.bytes
    if s.left_bytes[number, place] < 1e-6:
        flow.first_segment = (place + 1) % s.segments.shape[1]
        flow.num_segments -= 1
    return packet_number


@compiled
def _forward(s, packet_number, now_s):
    """Let a packet go on from link to link, through those that are free, until it has to wait, is lost or has come."""
    packet = s.packets[packet_number]
    way = s.rings.forth[packet.flow]
    while packet.hop < len(way) and way[packet.hop] >= 0:
        link = s.links[way[packet.hop]]
        # An empty queue takes any packet, whatever rounding has left of those that were there.
        if link.first >= 0 and link.queued_bytes + packet.bytes > s.queue_bytes:
            _lose(s, packet_number, now_s)
            return
        if link.busy:
            packet.next = -1
            if link.first < 0:
                link.first = packet_number
            else:
                s.packets[link.last].next = packet_number
            link.last = packet_number
            link.queued_bytes += packet.bytes
            return
        _occupy(s, way[packet.hop], packet.bytes, now_s)
        packet.hop += 1
    _arrive(s, packet_number, now_s)


@compiled
def _occupy(s, link_number, sent_bytes, now_s):
    """Let a link send: by its bucket of tokens what it begins has gone at once, and the next has to wait for it."""
    link = s.links[link_number]
    link.busy, link.free_s = 1, now_s + sent_bytes * link.per_byte_s
    push(s.events, link.free_s, event_code(LINK_FREE, link_number))


@compiled
def next_packet(s, link_number, now_s):
    """Let a link send the next packet of its queue."""
    link = s.links[link_number]
    link.busy = 0
    packet_number = link.first
    if packet_number < 0:
        return
    packet = s.packets[packet_number]
    link.first = packet.next
    link.queued_bytes -= packet.bytes
    _occupy(s, link_number, packet.bytes, now_s)
    packet.hop += 1
    _forward(s, packet_number, now_s)


@compiled
def _lose(s, packet_number, now_s):
    """Send a packet once more when its loss is known, and let the window shrink, once in that time."""
    flow = s.flows[s.packets[packet_number].flow]
    if now_s >= flow.shrunk_until_s:
        flow.window_bytes = max(SHRINK * flow.window_bytes, 2 * s.packet_bytes)
        flow.shrunk_until_s = now_s + s.recover_s
    push(s.events, now_s + s.recover_s, event_code(LOST, packet_number))


@compiled
def send_again(s, packet_number, now_s):
    """Send a packet that was lost; it never left its flow's window."""
    s.packets[packet_number].hop = 0
    _forward(s, packet_number, now_s)


@compiled
def _arrive(s, packet_number, now_s):
    """Let the next rank have a packet, act if a segment is whole now, and acknowledge it."""
    packet = s.packets[packet_number]
    ring = s.flows[packet.flow].ring
    rank = (packet.flow - s.first_flow[ring] + 1) % s.rings.num_ranks[ring]
    own, segment_bytes = s.ranks[packet.message, rank], s.rings.segment_bytes[packet.message]
    whole_before = int(own.received_bytes / segment_bytes + 1e-6)
    own.received_bytes += packet.bytes
    if int(own.received_bytes / segment_bytes + 1e-6) > whole_before:
        push(s.events, now_s, event_code(REACTS, packet.message * s.ranks.shape[1] + rank))
    push(s.events, now_s + way_back_s(s, packet.flow, 0.0, now_s), event_code(ACKNOWLEDGED, packet_number))


@compiled
def acknowledged(s, packet_number, now_s):
    """Let a flow know that a packet has come: its window grows if it was full, and there is room for the next."""
    packet = s.packets[packet_number]
    flow = s.flows[packet.flow]
    if flow.under_way_bytes >= flow.window_bytes - SMALLEST_PACKET_BYTES:
        grown_bytes = flow.window_bytes + packet.bytes * SMALLEST_PACKET_BYTES / flow.window_bytes
        flow.window_bytes = min(grown_bytes, s.queue_bytes)
    flow.under_way_bytes -= packet.bytes
    flow.num_packets -= 1
    s.free_packets[s.free_packets[-1]] = packet_number
    s.free_packets[-1] += 1
    send(s, packet.flow, now_s)
