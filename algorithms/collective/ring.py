"""From neighbour to neighbour, in rings over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from algorithms.collective import between, by_server, gates_of, round_inside
from algorithms.collective.direct import straight
from ddlsched.network.collectives import KINDS, ROUNDS, Message, Phase, Rank


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Rings over all ranks, server by server, as many at once as each server has network cards among its ranks.

    A ring enters and leaves a server by the same card, so that inside it goes once round. A broadcast goes along a
    chain that begins with the first rank's server. All-to-alls and sends have no ring and go straight.

    References
    ----------
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", International Journal
    of High Performance Computing Applications 19 (2005): bytes and steps. NVIDIA, nccl-tests, ``doc/PERFORMANCE.md``:
    the same bytes as "bus bandwidth".
    """

    by_order: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = KINDS

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return one phase, in which every rank passes on what it gets."""
        if kind in ("all-to-all", "send"):
            return [straight(kind, ranks, message.bytes)]
        closed, rounds = kind in ROUNDS, ROUNDS.get(kind, 1)
        servers = by_server(ranks, None if closed else ranks[0].server)
        sent_bytes = rounds / 2 * message.ring_bytes(len(ranks)) if closed else message.bytes
        inside = [flow for own in servers.values() for flow in round_inside(own, sent_bytes)]
        return [Phase([*inside, *between(gates_of(servers), sent_bytes, closed=closed)], rounds * (len(ranks) - 1))]
