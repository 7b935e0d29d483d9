"""What a collective puts on each link of a network."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, starmap
from operator import add
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ddlsched.errors import InputError, PluginError, guarded
from ddlsched.network.collectives import ROUNDS, AllPairs, Card, Collective, Message, Phase, Rank
from ddlsched.network.topology import Network, Path, flows_of_ring, ring_along
from ddlsched.plugins.names import resolve

Way: TypeAlias = Callable[[Card, Card], Path]
"""Says which path goes from one card to another."""

RingBytes: TypeAlias = Callable[[float, int], float]
"""Says what an all-reduce of so many bytes over so many ranks sends from each to the next in a ring, bytes."""
_OWN_PARTS = ("all-to-all", "send")
"""Kinds in which each rank has bytes of its own for others; in the rest, ranks whose exchange is free count as one."""

_Port: TypeAlias = tuple[int, int]
"""A server's number, and the place of one of its GPUs."""

_AtPort: TypeAlias = tuple[_Port, float]
_Crossing: TypeAlias = Counter[tuple[Rank, Card, float]]


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


class TaskMessage(NamedTuple):
    """What a task sends: the kind of its collective, the name of an algorithm, and the message, bytes."""

    kind: str
    algorithm: Any
    message_bytes: float


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
    return guarded(name, lambda: _checked(found.phases(kind, members, message), set(members), name))


def _checked(answered: Iterable[Any], known: set[Rank], name: str) -> list[Phase]:
    told = starmap(Phase, answered)
    phases = [p if isinstance(p.flows, AllPairs | list) else p._replace(flows=list(p.flows)) for p in told]
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
    if not any(phase.flows for phase in phases):
        raise PluginError(f"{name} answered no flows; expected one that sends something")
    return phases


def traffic_of(
    network: Network, sent: TaskMessage, ranks: Sequence[Rank], all_reduce_bytes: RingBytes, way: Way
) -> Traffic:
    """Return what a collective over ranks puts on each link.

    Parameters
    ----------
    network
        Has the links.
    sent
        What the task sends.
    ranks
        In the order of the tuple; where the network does not know the inside of servers all cards are 0.
    all_reduce_bytes
        How the run's contention model counts an all-reduce.
    way
        Which path goes from one card to another: ``network.own_way`` is the topology's own route.
    """
    ring = ring_of(network, sent, ranks, all_reduce_bytes)
    if ring is not None:
        return _of_ring(ring, way)
    domains: Sequence[int] = range(max(rank.server for rank in ranks) + 1)
    # of nothing the shares are those of a byte
    moved = _phases(network, sent._replace(message_bytes=sent.message_bytes or 1.0), ranks, all_reduce_bytes)
    crossed = [_crossed(_moved(phase, network), domains, network, way) for phase in moved]
    return _totals(crossed, network, bool(sent.message_bytes))


def ring_of(network: Network, sent: TaskMessage, ranks: Sequence[Rank], all_reduce_bytes: RingBytes) -> Phase | None:
    """Return the only phase of a collective, if that is one ring over servers in ascending order; as traffic_of."""
    if network.inside is not None or sent.kind not in ROUNDS:
        return None
    found = [each for each in _phases(network, sent, ranks, all_reduce_bytes) if each.flows or each.steps]
    return found[0] if _is_ring(found) else None


def _phases(network: Network, sent: TaskMessage, ranks: Sequence[Rank], all_reduce_bytes: RingBytes) -> list[Phase]:
    message = Message(sent.message_bytes, partial(all_reduce_bytes, sent.message_bytes))
    return phases_of(sent.kind, sent.algorithm, ranks, message, network.inside is not None)


class _Crossed(NamedTuple):
    """A phase on the network: its ports by their numbers, and of each hop its cards, bytes and path."""

    steps: int
    merged: bool
    hops: list[tuple[int, int, float, Path]]
    sent: dict[int, float]
    received: dict[int, float]


def _crossed(moved: _Moved, domains: Sequence[int], network: Network, way: Way) -> _Crossed:
    inside, cards, hops = network.inside, network.cards, list[tuple[int, int, float, Path]]()
    planes, width = (1, 1) if inside is None else (inside.planes, inside.servers)
    for ((source, card), (target, other)), all_bytes in moved.hops.items():
        start, end = domains[source] * width * cards + card, domains[target] * width * cards + other
        for plane in range(planes):
            path = way(divmod(start + plane, cards), divmod(end + plane, cards))
            hops.append((start + plane, end + plane, all_bytes / planes, path))
    sent, received = (
        {network.port(domains[server] * width, place): total for (server, place), total in ports.items()}
        for ports in (moved.sent, moved.received)
    )
    return _Crossed(moved.steps, moved.merged, hops, sent, received)


class Pattern(NamedTuple):
    """What ranks that lie alike move, and the traffic of the first of them for each form of the paths between them.

    ``ends`` has a row a hop: from which domain, by its place, and from which card of it, and to which. The links of a
    traffic in ``found`` are the cards and the ports that are given by rows of a domain's place and a number there, then
    all between switches, ascending.
    """

    moved: list[_Moved]
    ends: np.ndarray
    found: dict[bytes, tuple[Traffic, np.ndarray, np.ndarray]]

    def learn(self, form: bytes, domains: Sequence[int], network: Network, paths: Sequence[Path]) -> None:
        """Find the traffic for a form of paths, which is that between these domains, along ``paths``, one a hop."""
        hops = iter(paths)
        crossed = [_crossed(each, domains, network, lambda *_: next(hops)) for each in self.moved]
        traffic = _totals(crossed, network, has_bytes=True)
        assert network.inside is not None
        servers = network.inside.servers
        first = [domain * servers * network.cards for domain in domains]
        own = {first[a] + card: (a, card) for a, card in (*self.ends[:, :2].tolist(), *self.ends[:, 2:].tolist())}
        named = {port for each in self.moved for port in (*each.sent, *each.received)}
        ports = {network.port(domains[place] * servers, number): (place, number) for place, number in named}
        at_cards, at_ports = (
            np.array([at[link] for link in traffic.links if link in at], np.int64).reshape(-1, 2) for at in (own, ports)
        )
        self.found[form] = traffic, at_cards, at_ports


def pattern_of(
    network: Network, sent: TaskMessage, alike: tuple[Rank, ...], all_reduce_bytes: RingBytes, known: dict[Any, Pattern]
) -> Pattern:
    """Return what a collective moves over ranks whose domains are 0, 1 and so on, looked up in what is known."""
    key = sent, alike
    if key not in known:
        moved = [_moved(phase, network) for phase in _phases(network, sent, alike, all_reduce_bytes)]
        planes = range(1 if network.inside is None else network.inside.planes)
        hops = [hop for each in moved for hop in each.hops]
        ends = [(a, card + n, b, other + n) for (a, card), (b, other) in hops for n in planes]
        known[key] = Pattern(moved, np.array(ends, np.int64).reshape(-1, 4), {})
    return known[key]


def _totals(phases: Sequence[_Crossed], network: Network, has_bytes: bool) -> Traffic:
    """Return the traffic of some phases: out of each link, and into each card and port; the more of both counts."""
    out, into = defaultdict[int, float](float), defaultdict[int, float](float)
    latency_s = 0.0
    for phase in phases:
        both = max if phase.merged else add
        sent, received = defaultdict(float, phase.sent), defaultdict(float, phase.received)
        slowest_s = 0.0 if phase.hops or network.inside is None else network.inside.latency_s
        for start, end, hop_bytes, path in phase.hops:
            slowest_s = max(slowest_s, path.latency_s)
            for link in (start, *path.links):
                sent[link] = both(sent[link], hop_bytes)
            received[end] = both(received[end], hop_bytes)
        for whole, own in ((out, sent), (into, received)):
            for link, link_bytes in own.items():
                whole[link] += link_bytes
        latency_s += phase.steps * slowest_s
    bytes_on = {link: max(out[link], into[link]) for link in sorted({*out, *into})}
    return _shared(network, bytes_on, has_bytes, latency_s)


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


class _Moved(NamedTuple):
    """What a phase moves from card to card, and out of ports and into them, bytes; servers by their place."""

    steps: int
    merged: bool
    hops: dict[tuple[Card, Card], float]
    sent: dict[_Port, float]
    received: dict[_Port, float]


def _moved(phase: Phase, network: Network) -> _Moved:
    both = max if phase.merged else add
    crossing, from_ports, to_ports = _counted(phase, network)
    hops = defaultdict[tuple[Card, Card], float](float)
    sent, received = defaultdict[_Port, float](float), defaultdict[_Port, float](float)
    for (source, end, amount), count in crossing.items():
        start = source.server, source.card
        hops[start, end] = both(hops[start, end], amount if phase.merged else count * amount)
    for ports, totals in ((from_ports, sent), (to_ports, received)):
        for (port, amount), count in ports.items():
            totals[port] = both(totals[port], amount if phase.merged else count * amount)
    return _Moved(phase.steps, phase.merged, hops, sent, received)


def _counted(phase: Phase, network: Network) -> tuple[_Crossing, Counter[_AtPort], Counter[_AtPort]]:
    """Return how often a rank sends so much to a card, and so much goes out of a port and into one.

    They are counted first, as a multiple of what many get alike is rounded once.
    """
    crossing, from_ports, to_ports = Counter[tuple[Rank, Card, float]](), Counter[_AtPort](), Counter[_AtPort]()
    has_inside, by_rail = network.inside is not None, network.inside is not None and network.inside.by_rail
    if isinstance(phase.flows, AllPairs) and not by_rail:
        ranks, amount = phase.flows.ranks, phase.flows.bytes
        at_card, at_server = Counter((rank.server, rank.card) for rank in ranks), Counter(rank.server for rank in ranks)
        for rank in ranks:
            crossing.update({(rank, end, amount): n for end, n in at_card.items() if end[0] != rank.server})
            if has_inside and at_server[rank.server] > 1:
                from_ports[(rank.server, rank.place), amount] = at_server[rank.server] - 1
        return crossing, from_ports, from_ports
    for source, target, amount in phase.flows:
        leaves = source if source.server == target.server else network.relay(source, target)
        if source.server != target.server:
            crossing[leaves, (target.server, target.card), amount] += 1
        arrives = target if source.server == target.server else leaves
        if has_inside and arrives != source:
            from_ports[(source.server, source.place), amount] += 1
            to_ports[(arrives.server, arrives.place), amount] += 1
    return crossing, from_ports, to_ports
