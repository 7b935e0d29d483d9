"""What a collective sends from where to where: bytes and steps of each kind and algorithm.

Pure functions of where the ranks are. What each kind means by ``message_bytes`` says :mod:`ddlsched.workload.tasks`.

References
----------
Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", International Journal of
High Performance Computing Applications 19 (2005): bytes and steps of the rings. NVIDIA, nccl-tests,
``doc/PERFORMANCE.md``: the same bytes as "bus bandwidth".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

__all__ = ["Card", "Rank", "Sent", "ring_share", "sent_by"]

Card: TypeAlias = tuple[int, int]
"""A server's number and that of one of its network cards."""


class Rank(NamedTuple):
    """Where a rank is: its server, its GPU's place there, and the network card of that GPU."""

    server: int
    place: int
    card: int


@dataclass
class Sent:
    """What a collective sends.

    Attributes
    ----------
    hops
        Bytes from one card to another.
    ports
        Bytes through the port of a GPU, by its server and place; of the two directions the one with more.
    outer_steps, inner_steps
        Messages one behind the other of which each goes between servers, or inside one.
    """

    hops: dict[tuple[Card, Card], float] = field(default_factory=lambda: defaultdict(float))
    ports: dict[tuple[int, int], float] = field(default_factory=dict)
    outer_steps: int = 0
    inner_steps: int = 0


def ring_share(kind: str) -> float | None:
    """Return what a kind sends round a ring, over what an all-reduce of the same message does; None if it does not."""
    return {"all-reduce": 1.0, "all-gather": 0.5, "reduce-scatter": 0.5}.get(kind)


def sent_by(
    kind: str,
    algorithm: str,
    ranks: Sequence[Rank],
    message_bytes: float,
    all_reduce_bytes: Callable[[int], float],
    *,
    has_inside: bool,
) -> Sent:
    """Return what a collective sends.

    Parameters
    ----------
    kind, algorithm, message_bytes
        Those of the task.
    ranks
        In the order of the tuple.
    all_reduce_bytes
        What an all-reduce of the message over so many ranks sends from each to the next in a ring, bytes:
        2 (n - 1) / n of it, unless a contention model counts otherwise.
    has_inside
        Whether GPUs have ports and cards of their own; otherwise a server's ranks count as one.
    """
    if kind == "send":
        return _send(ranks[0], ranks[1], message_bytes, has_inside)
    if kind == "all-to-all":
        return _all_to_all(ranks, message_bytes, algorithm == "hierarchical", has_inside)
    servers = _by_server(ranks)
    share = ring_share(kind)
    if share is None:  # a broadcast, which goes along a chain that begins with the first rank's server
        first = ranks[0].server
        chain = dict(sorted(servers.items(), key=lambda item: (item[0] != first, item[0])))
        return _round(chain, message_bytes, message_bytes, has_inside, closed=False, rounds=1)
    rounds = 2 if kind == "all-reduce" else 1
    if algorithm == "hierarchical" and has_inside and len(servers) > 1:
        return _hierarchical(servers, lambda members: share * all_reduce_bytes(members), rounds)
    members = len(ranks) if has_inside else len(servers)
    sent = share * all_reduce_bytes(members)
    return _round(servers, sent, sent, has_inside, closed=True, rounds=rounds)


def _by_server(ranks: Sequence[Rank]) -> dict[int, list[Rank]]:
    servers: dict[int, list[Rank]] = {}
    for rank in sorted(ranks):
        servers.setdefault(rank.server, []).append(rank)
    return servers


def _round(
    servers: dict[int, list[Rank]],
    between_bytes: float,
    inside_bytes: float,
    has_inside: bool,
    *,
    closed: bool,
    rounds: int,
) -> Sent:
    """Send from rank to rank, server by server, in as many rings at once as each server has cards in it.

    A ring enters and leaves a server by the same card, so that inside it goes once round.
    """
    cards = {server: sorted({rank.card for rank in ranks}) for server, ranks in servers.items()}
    lanes = min(map(len, cards.values()))
    own = {server: [mine[lane * len(mine) // lanes] for lane in range(lanes)] for server, mine in cards.items()}
    sent = _between(own, between_bytes, closed)
    members = sum(map(len, servers.values())) if has_inside else len(servers)
    if len(servers) > 1:
        sent.outer_steps = rounds * (members - 1)
    elif has_inside:
        sent.inner_steps = rounds * (members - 1)
    if has_inside:
        _go_round_inside(sent, servers, lambda _: inside_bytes)
    return sent


def _between(cards: dict[int, list[int]], sent_bytes: float, closed: bool) -> Sent:
    """Send along the servers, back to the first if closed, in equal parts by the cards that stand at one place."""
    sent = Sent()
    order = list(cards)
    if len(order) > 1:
        for source, target in [*pairwise(order), *([(order[-1], order[0])] if closed else [])]:
            for lane, card in enumerate(cards[source]):
                sent.hops[(source, card), (target, cards[target][lane])] += sent_bytes / len(cards[source])
    return sent


def _go_round_inside(sent: Sent, servers: dict[int, list[Rank]], bytes_of: Callable[[int], float]) -> None:
    for server, ranks in servers.items():
        if len(ranks) > 1:
            sent.ports |= {(server, rank.place): bytes_of(len(ranks)) for rank in ranks}


def _hierarchical(servers: dict[int, list[Rank]], ring_bytes: Callable[[int], float], rounds: int) -> Sent:
    """Send round each server, and between servers in as many rings as the smallest server has ranks, a part in each."""
    lanes = min(map(len, servers.values()))
    cards = {
        server: [ranks[lane * len(ranks) // lanes].card for lane in range(lanes)] for server, ranks in servers.items()
    }
    sent = _between(cards, ring_bytes(len(servers)), closed=True)
    _go_round_inside(sent, servers, ring_bytes)
    sent.outer_steps = rounds * (len(servers) - 1)
    sent.inner_steps = rounds * (max(map(len, servers.values())) - 1)
    return sent


def _all_to_all(ranks: Sequence[Rank], message_bytes: float, by_rail: bool, has_inside: bool) -> Sent:
    """Send each rank's part to every other at once; by rail it changes the GPU before it leaves the server."""
    sent, part = Sent(), message_bytes / len(ranks)
    out, into = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    at_card = Counter((rank.server, rank.card) for rank in ranks)
    holder = {(rank.server, rank.card): rank for rank in sorted(ranks, reverse=True)}
    for rank in ranks:
        for (server, card), count in at_card.items():
            if server == rank.server:
                continue
            relay = holder.get((rank.server, card), rank) if by_rail and rank.card != card else rank
            if relay is not rank:
                out[rank.server, rank.place] += count
                into[relay.server, relay.place] += count
            sent.hops[(rank.server, relay.card), (server, card)] += count * part
    for server, own in Counter(rank.server for rank in ranks).items():
        for rank in ranks:
            if rank.server == server and own > 1:
                out[server, rank.place] += own - 1
                into[server, rank.place] += own - 1
    sent.outer_steps, sent.inner_steps = (
        int(bool(sent.hops)),
        int(has_inside and (by_rail or not sent.hops) and len(ranks) > 1),
    )
    if has_inside:
        sent.ports = {port: max(out[port], into[port]) * part for port in out | into}
    return sent


def _send(source: Rank, target: Rank, message_bytes: float, has_inside: bool) -> Sent:
    sent = Sent()
    if source.server != target.server:
        sent.hops[(source.server, source.card), (target.server, target.card)] = message_bytes
        sent.outer_steps = 1
    elif has_inside:
        sent.ports = {(rank.server, rank.place): message_bytes for rank in (source, target)}
        sent.inner_steps = 1
    return sent
