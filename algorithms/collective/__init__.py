"""Collectives, one file each, and their parts: ranks by server, rings and chains between servers, rounds inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ddlsched.network.collectives import Rank

Flow = tuple[Rank, Rank, float]
"""Source, target, bytes."""


def by_server(ranks: Sequence[Rank], first: int | None = None) -> dict[int, list[Rank]]:
    """Return the ranks of each server in the order of its GPUs; servers ascend, behind the first if one is given."""
    servers: dict[int, list[Rank]] = {}
    for rank in sorted(ranks, key=lambda rank: (rank.server != first, rank)):
        servers.setdefault(rank.server, []).append(rank)
    return servers


def gates_of(servers: Mapping[int, Sequence[Rank]], *, a_rank: bool = False) -> list[list[Rank]]:
    """Return lane by lane the rank of each server through which bytes enter and leave it.

    There are as many lanes as each server has cards among its ranks, or ranks.
    """
    own = [list(ranks) if a_rank else _first_at_each_card(ranks) for ranks in servers.values()]
    lanes = min(map(len, own))
    return [[ranks[lane * len(ranks) // lanes] for ranks in own] for lane in range(lanes)]


def _first_at_each_card(ranks: Sequence[Rank]) -> list[Rank]:
    first = {rank.card: rank for rank in reversed(ranks)}
    return [first[card] for card in sorted(first)]


def between(gates: Sequence[Sequence[Rank]], sent_bytes: float, *, closed: bool) -> Iterable[Flow]:
    """Yield what goes from server to server, back to the first if closed, in equal parts by lane."""
    for lane in gates:
        if len(lane) > 1:
            for source, target in [*pairwise(lane), *([(lane[-1], lane[0])] if closed else [])]:
                yield source, target, sent_bytes / len(gates)


def round_inside(ranks: Sequence[Rank], sent_bytes: float) -> Iterable[Flow]:
    """Yield what goes once round the ranks of a server."""
    if len(ranks) > 1:
        for source, target in pairwise([*ranks, ranks[0]]):
            yield source, target, sent_bytes
