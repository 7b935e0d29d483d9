"""Two binary trees over the servers, each for half of the message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from algorithms.collective import Flow, by_server, gates_of
from algorithms.collective.in_network import InNetwork
from ddlsched.network.collectives import Message, Phase, Rank
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class DoubleBinaryTree(Checked, who="double-binary-tree"):
    """Halves of the message go up two trees and down again; inside servers all goes along a chain of its ranks.

    A server that has two others below it in one tree has none in the other, so that each sends and gets at most twice
    the message; the way is as long as the trees are high, where a ring's has n - 1 steps. There are as many pairs of
    trees as each server has network cards among its ranks, a part of the message in each.

    Parameters
    ----------
    port_share
        Where switches inside servers add up in place of chains (NVLSTree): that of `in-network`; 0: they do not.

    References
    ----------
    Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35
    (2009). NVIDIA, "Massively scale your deep learning training with NCCL 2.4" (2019): trees between servers, chains
    inside.
    """

    port_share: float = ranged(0.0, 0.0, 1.0)
    by_order: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("all-reduce",)

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return what goes inside servers, and the trees between them."""
        servers = by_server(ranks)
        gates = gates_of(servers)
        trees = list[Flow]()
        for lane in gates:
            for parents in (_parents(len(lane)), _other_parents(len(lane))):
                edges = [(lane[below], lane[above]) for below, above in parents.items()]
                trees += _both_ways(edges, message.bytes / 2 / len(gates))
        height = (len(servers) - 1).bit_length()  # as each is below one with more zeros at its end
        between = Phase(trees, 2 * height)
        if self.port_share:
            switched = InNetwork(port_share=self.port_share).phases(kind, ranks, message)
            return [*(phase for phase in switched if any(a.server == b.server for a, b, _ in phase.flows)), between]
        chains = [flow for own in servers.values() for flow in _both_ways(pairwise(own), message.bytes)]
        return [Phase(chains, 2 * (max(map(len, servers.values())) - 1)), between]


def _both_ways(edges: Sequence[tuple[Rank, Rank]] | pairwise[tuple[Rank, Rank]], sent_bytes: float) -> list[Flow]:
    return [(source, target, sent_bytes) for edge in edges for source, target in (edge, edge[::-1])]


def _parents(count: int) -> dict[int, int]:
    """Return what is above each of so many but 0, the root: 4 above 2 and 6, 2 above 1 and 3, as far as there are."""
    above = {}
    for number in range(1, count):
        bit = number & -number
        higher = (number ^ bit) | (bit << 1)
        above[number] = higher if higher < count else number ^ bit
    return above


def _other_parents(count: int) -> dict[int, int]:
    """Return the same with the leaves in the places of the others: mirrored, or moved on by one of an odd number."""
    place = [(n + 1) % count if count % 2 else count - 1 - n for n in range(count)]
    return {place[below]: place[above] for below, above in _parents(count).items()}
