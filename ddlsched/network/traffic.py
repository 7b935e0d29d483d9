"""What a collective puts on each link of a network."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from operator import add
from typing import Any, TypeAlias

from ddlsched.errors import InputError, PluginError, guarded
from ddlsched.network.collectives import ROUNDS, AllPairs, Card, Collective, Message, Phase, Rank
from ddlsched.network.topology import Network, Path, flows_of_ring, ring_along
from ddlsched.plugins.names import resolve

__all__ = ["Traffic", "Way", "collective_for", "phases_of", "traffic_of"]

Way: TypeAlias = Callable[[Card, Card], Path]
"""Says which path goes from one card to another."""

_OWN_PARTS = ("all-to-all", "send")
"""Kinds in which each rank has bytes of its own for others; in the rest, ranks whose exchange is free count as one."""

_AtLink: TypeAlias = tuple[int, float]
_Crossing: TypeAlias = Counter[tuple[Rank, int, float]]


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


def collective_for(kind: str, algorithm: Any) -> Any:
    """Return the algorithm that a text names, or the one given, for a kind of collective.

    Raises
    ------
    UnknownNameError
        No such name or parameter.
    InputError
        The algorithm has no such kind.
    """
    found = _named(algorithm)
    if kind not in found.kinds:
        known = ", ".join(found.kinds)
        raise InputError(f"collective {algorithm}: has no {kind}; expected a task of one of its kinds ({known})")
    return found


@lru_cache
def _named(algorithm: Any) -> Any:
    return resolve("collective", algorithm)


def phases_of(
    kind: str, algorithm: str | Collective, ranks: Sequence[Rank], message: Message, has_inside: bool
) -> list[Phase]:
    """Return what a collective sends, checked; nothing for a rank alone.

    Without an inside the exchange between ranks of a server is free: they count as one, but where each has its own.
    """
    members = list(ranks) if has_inside or kind in _OWN_PARTS else list({rank.server: rank for rank in ranks}.values())
    if len(members) < 2:
        return []
    found = collective_for(kind, algorithm)
    name = f"collective {algorithm}: phases of {kind} over {len(members)} ranks"
    answered = guarded(name, lambda: [Phase(*phase) for phase in found.phases(kind, members, message)])
    phases = [p if isinstance(p.flows, AllPairs | list) else p._replace(flows=list(p.flows)) for p in answered]
    known = set(members)
    for phase in phases:
        if not isinstance(phase.steps, int) or phase.steps < 0:
            raise PluginError(f"{name} answered {phase.steps!r} steps; expected a whole number")
        flows = phase.flows
        if isinstance(flows, AllPairs):  # once round them all
            flows = [(source, target, flows.bytes) for source, target in pairwise(flows.ranks)]
        for source, target, sent_bytes in flows:
            if source == target or not known.issuperset((source, target)) or not 0 <= sent_bytes < float("inf"):
                flow = f"{sent_bytes!r} bytes from {source} to {target}"
                raise PluginError(f"{name} answered {flow}; expected finite bytes from one of the ranks to another")
    return phases


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

    def phases(counted: float) -> list[Phase]:
        message = Message(counted, lambda members: all_reduce_bytes(counted, members))
        return phases_of(kind, algorithm, ranks, message, network.inside is not None)

    found = [phase for phase in phases(message_bytes) if phase.flows or phase.steps]
    if network.inside is None and kind in ROUNDS and _is_ring(found):
        return _of_ring(found[0], way)
    out, into = defaultdict[int, float](float), defaultdict[int, float](float)
    latency_s = 0.0
    for phase in found if message_bytes else phases(1.0):  # of nothing the shares are those of a byte
        latency_s += _add(phase, network, way, out, into)
    bytes_on = {link: max(out[link], into[link]) for link in sorted({*out, *into})}
    return _shared(network, bytes_on, bool(message_bytes), latency_s)


def _shared(network: Network, bytes_on: dict[int, float], has_bytes: bool, latency_s: float) -> Traffic:
    ports = network.ports
    wire_bytes = 0.0
    for link, link_bytes in bytes_on.items():
        if network.is_card(link):
            wire_bytes = max(wire_bytes, link_bytes)
        elif ports.start <= link < ports.stop:
            wire_bytes = max(wire_bytes, link_bytes / network.links[link].relative_bandwidth)
    shares = tuple(link_bytes / wire_bytes for link_bytes in bytes_on.values())
    return Traffic(tuple(bytes_on), wire_bytes if has_bytes else 0.0, shares, latency_s)


def _is_ring(phases: Sequence[Phase]) -> bool:
    """Return whether all is one ring over servers in ascending order, each of which sends as much."""
    if len(phases) != 1 or not phases[0].flows or isinstance(phases[0].flows, AllPairs):
        return False
    servers = [source.server for source, _, _ in phases[0].flows]
    order = [(source.server, target.server) for source, target, _ in phases[0].flows]
    return order == flows_of_ring(sorted(set(servers))) and len({sent for *_, sent in phases[0].flows}) == 1


def _of_ring(phase: Phase, way: Way) -> Traffic:
    """Return the traffic of a ring as all-reduces over whole jobs have it: an entry a crossing, all alike."""
    paths = [way((source.server, source.card), (target.server, target.card)) for source, target, _ in phase.flows]
    links = ring_along([source.server for source, _, _ in phase.flows], paths, len(paths)).links
    latency_s = phase.steps * max(path.latency_s for path in paths)
    return Traffic(links, next(iter(phase.flows))[2], (1.0,) * len(links), latency_s)


def _add(phase: Phase, network: Network, way: Way, out: dict[int, float], into: dict[int, float]) -> float:
    """Add the bytes of a phase, out of each link and into each card and port; return the latency of its steps, seconds.

    Of what a card or a port sends and what it gets, the more counts on it.
    """
    both = max if phase.merged else add
    crossing, from_ports, to_ports = _counted(phase, network)
    hops = defaultdict[tuple[int, int], float](float)
    sent, received = defaultdict[int, float](float), defaultdict[int, float](float)
    for (source, end, amount), count in crossing.items():
        start = network.card_of(source)
        hops[start, end] = both(hops[start, end], amount if phase.merged else count * amount)
    for ports, totals in ((from_ports, sent), (to_ports, received)):
        for (port, amount), count in ports.items():
            totals[port] = both(totals[port], amount if phase.merged else count * amount)
    slowest_s = 0.0 if hops or network.inside is None else network.inside.latency_s
    planes, cards = 1 if network.inside is None else network.inside.planes, network.cards
    for ((first, last), all_bytes), plane in product(hops.items(), range(planes)):
        start, end, hop_bytes = first + plane, last + plane, all_bytes / planes
        path = way(divmod(start, cards), divmod(end, cards))
        slowest_s = max(slowest_s, path.latency_s)
        for link in (start, *path.links):
            sent[link] = both(sent[link], hop_bytes)
        received[end] = both(received[end], hop_bytes)
    for whole, own in ((out, sent), (into, received)):
        for link, link_bytes in own.items():
            whole[link] += link_bytes
    return phase.steps * slowest_s


def _counted(phase: Phase, network: Network) -> tuple[_Crossing, Counter[_AtLink], Counter[_AtLink]]:
    """Return how often a rank sends so much to a card, and so much goes out of a port and into one.

    They are counted first, as a multiple of what many get alike is rounded once.
    """
    crossing, from_ports, to_ports = Counter[tuple[Rank, int, float]](), Counter[_AtLink](), Counter[_AtLink]()
    port, has_inside = network.port_of, network.inside is not None
    if isinstance(phase.flows, AllPairs) and not (network.inside is not None and network.inside.by_rail):
        ranks, amount = phase.flows.ranks, phase.flows.bytes
        at_card = Counter((rank.server, network.card_of(rank)) for rank in ranks)
        at_server = Counter(rank.server for rank in ranks)
        for rank in ranks:
            crossing.update({(rank, end, amount): n for (at, end), n in at_card.items() if at != rank.server})
            if has_inside and at_server[rank.server] > 1:
                from_ports[port(rank), amount] = at_server[rank.server] - 1
        return crossing, from_ports, from_ports
    for source, target, amount in phase.flows:
        leaves = source if source.server == target.server else network.relay(source, target)
        if source.server != target.server:
            crossing[leaves, network.card_of(target), amount] += 1
        arrives = target if source.server == target.server else leaves
        if has_inside and arrives != source:
            from_ports[port(source), amount] += 1
            to_ports[port(arrives), amount] += 1
    return crossing, from_ports, to_ports
