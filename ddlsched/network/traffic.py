"""What a collective puts on each link of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddlsched.network.collectives import Card, Rank, ring_share, sent_by
from ddlsched.network.topology import Network, Path, flows_of_ring, ring_along

__all__ = ["Traffic", "Way", "traffic_of"]

Way: TypeAlias = Callable[[Card, Card], Path]
"""Says which path goes from one card to another."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a collective puts on the network.

    Parameters
    ----------
    links
        Numbers of the links that it crosses.
    wire_bytes
        The most bytes on any of its network cards; or, if that is more, what a card would move in the time in which the
        port of a GPU moves what it has to: so the time without contention is b x this, as for a ring over cards.
    shares
        Bytes on each of the links / ``wire_bytes``.
    latency_s
        Of its steps, seconds.
    """

    links: tuple[int, ...]
    wire_bytes: float
    shares: tuple[float, ...]
    latency_s: float


def traffic_of(
    network: Network,
    kind: str,
    algorithm: str,
    ranks: Sequence[Rank],
    message_bytes: float,
    all_reduce_bytes: Callable[[float, int], float],
    way: Way,
) -> Traffic:
    """Return what a collective over ranks puts on each link.

    Parameters
    ----------
    network
        Has the links.
    kind, algorithm, message_bytes
        Those of the task.
    ranks
        In the order of the tuple; where the network does not know the inside of servers all cards are 0.
    all_reduce_bytes
        What an all-reduce of a message over so many ranks sends from each to the next in a ring, bytes.
    way
        Which path goes from one card to another: ``network.own_way`` is the topology's own route.
    """
    share = ring_share(kind)
    if network.inside is None and share is not None:
        servers = sorted({rank.server for rank in ranks})
        if len(servers) < 2:
            return Traffic((), all_reduce_bytes(message_bytes, 1), (), 0.0)
        paths = [way((source, 0), (target, 0)) for source, target in flows_of_ring(servers)]
        ring = ring_along(servers, paths, len(servers))
        sent_bytes = share * all_reduce_bytes(message_bytes, len(servers))
        return Traffic(ring.links, sent_bytes, (1.0,) * len(ring.links), ring.latency_s * share)
    # Of nothing the shares are those of a byte.
    counted = message_bytes or 1.0
    sent = sent_by(
        kind,
        algorithm,
        ranks,
        counted,
        lambda members: all_reduce_bytes(counted, members),
        has_inside=network.inside is not None,
    )
    on_link, slowest_hop_s = network.carry(sent.hops, way)
    cards = [on_link[link] for link in on_link if network.is_card(link)]
    ports = {network.port(server, place): sent_bytes for (server, place), sent_bytes in sent.ports.items()}
    scaled = [sent_bytes / network.links[link].relative_bandwidth for link, sent_bytes in ports.items()]
    wire_bytes = max([*cards, *scaled], default=0.0)
    bytes_on = dict(sorted((on_link | ports).items()))
    inner_s = 0.0 if network.inside is None else network.inside.latency_s
    return Traffic(
        tuple(bytes_on),
        wire_bytes if message_bytes else 0.0,
        tuple(link_bytes / wire_bytes for link_bytes in bytes_on.values()),
        sent.outer_steps * slowest_hop_s + sent.inner_steps * inner_s,
    )
