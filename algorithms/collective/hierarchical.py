"""Inside each server, and between servers over the ranks that have the same place in theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from algorithms.collective import Flow, between, by_server, gates_of, round_inside
from algorithms.collective.ring import Ring
from ddlsched.network.collectives import KINDS, ROUNDS, Message, Phase, Rank


@dataclass(frozen=True, kw_only=True)
class Hierarchical:
    """Rings inside servers, and between them in as many rings as the smallest server has ranks, a part in each.

    In an all-to-all what is for another rail goes to the GPU whose network card is on it first. Broadcasts are those of
    rings.
    """

    by_order: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = tuple(kind for kind in KINDS if kind != "send")

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return what goes inside servers, and what goes between them."""
        if kind == "all-to-all":
            return _by_rail(ranks, message.bytes)
        if kind not in ROUNDS:
            return Ring().phases(kind, ranks, message)
        servers, rounds = by_server(ranks), ROUNDS[kind]
        inside = [
            flow for own in servers.values() for flow in round_inside(own, rounds / 2 * message.ring_bytes(len(own)))
        ]
        sent_bytes = rounds / 2 * message.ring_bytes(len(servers))
        outside = list(between(gates_of(servers, a_rank=True), sent_bytes, closed=True))
        most = max(map(len, servers.values()))
        return [Phase(inside, rounds * (most - 1)), Phase(outside, rounds * (len(servers) - 1))]

    def round_on(self, kind: str, size: Any) -> tuple[Any, Any]:
        """Return (n - 1) / n in n - 1 steps, of an all-to-all in one."""
        return (size - 1) / size, np.minimum(size - 1, 1) if kind == "all-to-all" else size - 1


def _by_rail(ranks: Sequence[Rank], message_bytes: float) -> Sequence[Phase]:
    part = message_bytes / len(ranks)
    holders = {(rank.server, rank.card): rank for rank in sorted(ranks, reverse=True)}
    inside, outside = list[Flow](), list[Flow]()
    for source in ranks:
        for target in ranks:
            if source.server == target.server:
                inside += [(source, target, part)] * (source != target)
                continue
            relay = source if source.card == target.card else holders.get((source.server, target.card), source)
            inside += [(source, relay, part)] * (relay != source)
            outside.append((relay, target, part))
    return [Phase(inside, 1), Phase(outside, int(bool(outside)))]
