"""Packets of rings in first-in-first-out queues: how long all-reduces take that go on and on beside each other.

What is simulated is what gloo does over TCP. Each rank has a connection to the next, over which all messages of its job
go, and cuts its n-th of a message into segments, at least two. A segment is sent once the one before the last has come,
and once the next rank has said that it is ready for it: a few bytes that wait in the same queues as what others send.
Of a connection so much is under way as its window lets; the window shrinks when a full queue loses a packet, and grows
by a packet a window that came through. A link sends one packet after the other and holds the others in a queue.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numba
import numpy as np

from ddlsched.network import packet_queues

WARM_ROUNDS = 2
"""After so many all-reduces of each message it begins to count."""
ROUNDS = 10
"""So many all-reduces of each message are counted at least."""
MOST_EVENTS = 3_000_000
"""After which what has been counted must do, and of a message that none has been counted of what it has come to."""
_SEED = 1


def mean_durations_s(
    rings: packet_queues.Rings, *, queue_bytes: float, packet_bytes: float, react_s: float, recover_s: float
) -> np.ndarray:
    """Return how long an all-reduce of each message takes on average, seconds, if each begins anew when it has ended.

    Parameters
    ----------
    rings
        What is sent, and where.
    queue_bytes
        That wait at a link at most; what comes then is lost.
    packet_bytes
        The most that a link sends in one go.
    react_s
        How long a rank takes on average to act on the word that the next one is ready.
    recover_s
        After which a loss is made good.
    """
    state = packet_queues.state_of(rings, queue_bytes, packet_bytes, react_s, recover_s)
    now_s = _run(state)
    counts, num_ranks = state.counts, rings.num_ranks[rings.ring_of]
    is_counted, segments = counts["counted"] > 0, 2 * rings.num_segments * num_ranks * (num_ranks - 1)
    received = state.ranks["received_bytes"].sum(axis=1) / (segments * rings.segment_bytes)
    begun = np.maximum(counts["rounds"] + received, 1 / segments)
    durations_s: np.ndarray = np.where(
        is_counted, (counts["end_s"] - counts["begin_s"]) / np.maximum(counts["counted"], 1), now_s / begun
    )
    return durations_s


@packet_queues.compiled
def _count(s, message, warm, now_s):
    """Count a message that has been reduced; return whether all have been often enough."""
    own = s.counts[message]
    own.end_s = now_s
    if warm:
        own.counted += 1
    else:
        own.rounds += 1
    for other in range(len(s.counts)):
        each = s.counts[other]
        if (warm and each.counted < ROUNDS) or (not warm and each.rounds < WARM_ROUNDS):
            return False
    if not warm:
        for other in range(len(s.counts)):
            s.counts[other].begin_s = s.counts[other].end_s
    return True


@packet_queues.compiled
def _all_done(s, message):
    """Return whether all ranks have reduced a message, and let them forget it if so."""
    ranks = s.rings.num_ranks[s.rings.ring_of[message]]
    for rank in range(ranks):
        if s.ranks[message, rank].done == 0:
            return False
    for rank in range(ranks):
        own = s.ranks[message, rank]
        own.sent, own.ready, own.told, own.done, own.received_bytes = 0, 0, 0, 0, 0.0
    return True


@packet_queues.compiled
def _may(number, half, received):
    """Return whether a rank may do with a segment what it may once the one before the last has come.

    The first two of the second half wait for all of the first: sums are passed on once they are complete.
    """
    if number < half + 2:
        return number < 2 or (received >= number - 1 and (number < half or received >= half))
    return received >= number - 1


@packet_queues.compiled
def _go_on(s, message, rank, now_s):
    """Let a rank say that it is ready and send what it may; return whether it has just ended with the message."""
    ring = s.rings.ring_of[message]
    ranks, first = s.rings.num_ranks[ring], s.first_flow[ring]
    half = s.rings.num_segments[message] * (ranks - 1)
    own = s.ranks[message, rank]
    received = int(own.received_bytes / s.rings.segment_bytes[message] + 1e-6)
    before = (rank - 1) % ranks
    while own.ready < 2 * half and _may(own.ready, half, received):
        own.ready += 1
        told_s = (
            now_s
            + packet_queues.way_back_s(s, first + before, packet_queues.READY_BYTES, now_s)
            + s.react_s * (0.5 + np.random.random())
        )
        packet_queues.push(
            s.events, told_s, packet_queues.event_code(packet_queues.TOLD, message * s.ranks.shape[1] + before)
        )
    flow = s.flows[first + rank]
    while own.sent < min(own.told, 2 * half) and _may(own.sent, half, received):
        place = (flow.first_segment + flow.num_segments) % s.segments.shape[1]
        s.segments[first + rank, place] = message
        s.left_bytes[first + rank, place] = s.rings.segment_bytes[message]
        flow.num_segments += 1
        own.sent += 1
    packet_queues.send(s, first + rank, now_s)
    if own.done == 0 and received >= 2 * half and own.sent == 2 * half:
        own.done = 1
        return True
    return False


def _stamp() -> int:
    """Return a number of all sources of this folder."""
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return int.from_bytes(hashlib.sha256(b"\0".join(sources)).digest()[:7])


def _runner(stamp: int) -> Any:
    """Return the compiled run, which numba keeps on disk.

    By itself numba compiles anew if this very file has changed; the stamp, which it takes for a part of the function,
    does that for the others of the folder.
    """
    njit: Any = numba.njit

    @njit(cache=True, **packet_queues.OPTIONS)
    def run(s):
        """Let all messages be reduced again and again until each has been often enough; return when."""
        np.random.seed(_SEED + 0 * stamp)
        warm = False
        for message in range(len(s.counts)):
            packet_queues.push(s.events, 0.0, packet_queues.event_code(packet_queues.BEGINS, message))
        for _ in range(MOST_EVENTS):
            now_s, code = packet_queues.pop(s.events)
            kind, number = code % packet_queues.KINDS, code // packet_queues.KINDS
            if kind == packet_queues.LINK_FREE:
                packet_queues.next_packet(s, number, now_s)
            elif kind == packet_queues.ACKNOWLEDGED:
                packet_queues.acknowledged(s, number, now_s)
            elif kind == packet_queues.LOST:
                packet_queues.send_again(s, number, now_s)
            elif kind == packet_queues.BEGINS:
                for rank in range(s.rings.num_ranks[s.rings.ring_of[number]]):
                    _go_on(s, number, rank, now_s)
            else:
                message, rank = number // s.ranks.shape[1], number % s.ranks.shape[1]
                if kind == packet_queues.TOLD:
                    s.ranks[message, rank].told += 1
                if _go_on(s, message, rank, now_s) and _all_done(s, message):
                    packet_queues.push(s.events, now_s, packet_queues.event_code(packet_queues.BEGINS, message))
                    if _count(s, message, warm, now_s):
                        if warm:
                            return now_s
                        warm = True
        return now_s

    return run


_run = _runner(_stamp())
