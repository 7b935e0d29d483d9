"""Whichever of rings, trees and switches is the quickest for a message's size, as NCCL chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from algorithms.collective.double_binary_tree import DoubleBinaryTree
from algorithms.collective.in_network import InNetwork
from algorithms.collective.ring import Ring
from ddlsched.network.collectives import KINDS, Collective, Message, Phase, Rank, busiest
from ddlsched.network.topology import bytes_per_s_from_gbps
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class Nccl(Checked, who="nccl"):
    """The quickest of `ring`, `double-binary-tree` and, where switches add up, these or `in-network`; ties so.

    How long each takes follows from its steps and from the most bytes through a GPU's port and through a card, by
    these constants; what it then takes in a run follows from the network. Kinds but all-reduces go in rings.

    Parameters
    ----------
    inside_s, inside_gbps
        Of a step between GPUs of a server, seconds, and of a port: a fit to nccl-tests on 8 A100.
    outside_s, outside_gbps
        Of a step between servers, seconds, as NCCL's tables have it for large messages, and of a card.
    switch_s, switch_gbps
        Of a step through switches that add up, as NCCL's tables have it, and of a port by its data sheet.
    port_share
        What they reach of it, in a run as well: that of `in-network`.
    switches
        Where switches add up: "none", "inside" servers (NVLS, NVLSTree), or "all" of them (NVLS and SHARP).

    References
    ----------
    NCCL, ``src/graph/tuning.cc``: ``hwLat``, and the choice of the least time by latency and bandwidth.
    """

    inside_s: float = ranged(6.42e-6, 0.0)
    inside_gbps: float = ranged(1827.0, 0.0, above=True)
    outside_s: float = ranged(14e-6, 0.0)
    outside_gbps: float = ranged(400.0, 0.0, above=True)
    switch_s: float = ranged(25e-6, 0.0)
    switch_gbps: float = ranged(3600.0, 0.0, above=True)
    port_share: float = ranged(InNetwork.port_share, 0.0, 1.0, above=True)
    switches: Literal["none", "inside", "all"] = "none"
    by_order: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = KINDS

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return those of the quickest."""
        if kind != "all-reduce":
            return Ring().phases(kind, ranks, message)
        known: list[Collective] = [Ring(), DoubleBinaryTree()]
        if self.switches != "none":
            everywhere = self.switches == "all" or len({rank.server for rank in ranks}) == 1
            known.append((InNetwork if everywhere else DoubleBinaryTree)(port_share=self.port_share))
        return min((each.phases(kind, ranks, message) for each in known), key=self._seconds)

    def _seconds(self, phases: Sequence[Phase]) -> float:
        """Return how long phases take that overlap: all their steps, and the most bytes through a port or a card."""
        (port_bytes, card_bytes), (inside, outside) = busiest(phases)
        merged = any(phase.merged for phase in phases)
        step_s, port_gbps = (self.switch_s, self.switch_gbps) if merged else (self.inside_s, self.inside_gbps)
        port_s, card_s = (
            port_bytes / bytes_per_s_from_gbps(port_gbps),
            card_bytes / bytes_per_s_from_gbps(self.outside_gbps),
        )
        return inside * step_s + outside * self.outside_s + max(port_s, card_s)
