"""Straight from each rank to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddlsched.network.collectives import KINDS, ROUNDS, AllPairs, Message, Phase, Rank


def straight(kind: str, ranks: Sequence[Rank], message_bytes: float) -> Phase:
    """Return what goes straight from rank to rank in one step: of all but broadcasts and sends, a part of 1 / n."""
    if kind == "broadcast":
        return Phase([(ranks[0], target, message_bytes) for target in ranks[1:]], 1)
    if kind == "send":
        return Phase([(ranks[0], ranks[1], message_bytes)], 1)
    part = message_bytes / len(ranks)
    return Phase(AllPairs(ranks, part), 1)


@dataclass(frozen=True, kw_only=True)
class Direct:
    """Every rank sends to every other at once: in one step, of an all-reduce in two.

    In an all-reduce each rank adds up a part of 1 / n of the message and sends it to all.
    """

    by_order: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = KINDS

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return a phase a round."""
        return [straight(kind, ranks, message.bytes)] * ROUNDS.get(kind, 1)
