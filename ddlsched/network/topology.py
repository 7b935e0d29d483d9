"""Networks: what a topology must offer, and the links that a ring all-reduce crosses in it.

A topology is a networkx graph of servers (nodes ``0 .. num_servers - 1``) and switches (any other node).
Each edge is a full-duplex cable with attributes ``bandwidth_bytes_per_s`` (in each direction) and
``latency_s``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload, runtime_checkable

from ddlsched.deferred import np, nx
from ddlsched.errors import InputError, PluginError, UnknownNameError, guarded
from ddlsched.network.collectives import Card, Rank
from ddlsched.ranges import REQUIRED, Checked, ranged

if TYPE_CHECKING:
    from ddlsched.network.cables import Wires


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside(Checked, who="inside of a server"):
    """What a topology's attribute ``inside`` states; without it the inside of a server costs nothing.

    Parameters
    ----------
    gpu_gbps
        Bandwidth of a GPU's port towards the other GPUs of its server, in one direction: NVLink to a switch, or PCIe.
        What leaves the server goes straight from the GPU to its network card and does not count on the port.
    cards
        Network cards of a server. GPU i of n uses card floor(i cards / n).
    latency_s
        Of a step from one GPU to another, seconds.
    servers
        How many neighbours are one such inside, an NVLink domain: servers s to s + n - 1 for s a multiple of n.
    planes
        Networks apart that each card is on, by a port each; what it sends goes in equal parts over all of them.
    by_rail
        Whether what is for a card of another number goes to the GPU of that card of its own server first.
    """

    gpu_gbps: float = ranged(REQUIRED, 0.0, above=True)
    cards: int = ranged(1, 1, 1024)
    latency_s: float = ranged(0.0, 0.0, 1e6)
    servers: int = ranged(1, 1, 1024)
    planes: int = ranged(1, 1, 1024)
    by_rail: bool = False

    def card_of(self, place: int, num_gpus: int) -> int:
        """Return the card of the GPU at a place of a server with so many."""
        return place * self.cards // num_gpus


def refuse_bad_port(name: str, nvlink_gbps: float | None, nvlink_latency_s: float) -> None:
    """Raise InputError for a topology that states the latency of a GPU's port, but not its bandwidth."""
    if nvlink_gbps is None and nvlink_latency_s:
        raise InputError(f"{name}: nvlink_latency_s is {nvlink_latency_s}; expected nvlink_gbps beside it")


Node: TypeAlias = Hashable


def bytes_per_s_from_gbps(gbps: float) -> float:
    """Return bytes per second of a bandwidth in Gbit/s (1e9 bits)."""
    return gbps * 1e9 / 8


def gbps_from_bytes_per_s(bytes_per_s: float) -> float:
    """Return Gbit/s (1e9 bits) of a bandwidth in bytes per second."""
    return bytes_per_s * 8 / 1e9


@runtime_checkable
class Topology(Protocol):
    """What a class in ``topologies/`` offers; its fields are its parameters.

    One with several paths between two servers also has ``paths(graph, source, target)``: all of them, each as ``route``
    answers one, among which a path policy chooses (:class:`ddlsched.policies.doors.PathPolicy`).

    One that states the inside of its servers has an attribute ``inside``, an :class:`~ddlsched.network.topology.Inside`
    or None. Then the nodes of its graph, and the ends of its routes, are not servers but their network cards: the pairs
    (server, card).

    One that has ``cables(num_servers)``, the :class:`~ddlsched.network.cables.Cables` of its graph, is given these in
    place of the graph. It may also answer all routes at once in ``switches(sources, targets)``, where both ends are
    pairs of arrays, of servers and of cards (0 without an inside): a row a route, its switches by number, the first
    switch being 0, and behind them -1.

    One with levels of servers also has ``levels(num_servers)``: by the name of each, the narrowest first, the unit that
    each server is in (:meth:`Network.units`).
    """

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; every edge has ``bandwidth_bytes_per_s`` and ``latency_s``.

        Raises
        ------
        InputError
            The topology cannot hold this many servers.
        """

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the nodes from one server to another, both ends included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Something that transfers share: a network card, a GPU's port, or one direction of a cable between switches.

    A ring enters and leaves each of its servers once, so both directions of a server's cable always carry
    the same transfers and count as one link. So do those of a GPU's port towards the others of its server.

    Parameters
    ----------
    name
        For tables and timelines.
    bandwidth_bytes_per_s
        In one direction.
    relative_bandwidth
        Bandwidth over that of the topology's fastest network card; above 1 on a server whose own is faster, and on most
        GPUs' ports.
    """

    name: str
    bandwidth_bytes_per_s: float
    relative_bandwidth: float


class Links(Sequence[Link]):
    """The links of a network, each made when it is asked for first: a large network has hundreds of thousands.

    Attributes
    ----------
    bytes_per_s, relative
        Bandwidths of all, and over that of the fastest network card.
    """

    def __init__(self, bytes_per_s: np.ndarray, nic_bytes_per_s: float, name_of: Callable[[int], str]) -> None:
        self.bytes_per_s = bytes_per_s
        self.relative = self.bytes_per_s / nic_bytes_per_s if nic_bytes_per_s else self.bytes_per_s
        self._name_of, self._made = name_of, dict[int, Link]()

    def __len__(self) -> int:
        return len(self.bytes_per_s)

    @overload
    def __getitem__(self, number: int) -> Link: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[Link, ...]: ...

    def __getitem__(self, number: int | slice) -> Link | tuple[Link, ...]:
        if isinstance(number, slice):
            return tuple(self[each] for each in range(*number.indices(len(self))))
        if number not in self._made:
            number = range(len(self))[number]
            bandwidth, relative = self.bytes_per_s.item(number), self.relative.item(number)
            name = self._name_of(number)
            self._made[number] = Link(name=name, bandwidth_bytes_per_s=bandwidth, relative_bandwidth=relative)
        return self._made[number]


@dataclass(frozen=True, slots=True)
class Path:
    """A way from one server to another: numbers of the links between switches, in order, and its cables' latency."""

    links: tuple[int, ...]
    latency_s: float


@dataclass(frozen=True, slots=True)
class RingLinks:
    """The ring over some servers: numbers of the links crossed, one entry a crossing, and its latency.

    ``latency_s`` is that of the 2 (n - 1) steps of a ring all-reduce over n servers, each as long as the
    slowest hop.
    """

    links: tuple[int, ...]
    latency_s: float


class Network:
    """The links of a topology with a given number of servers; rings over them are computed once."""

    def __init__(
        self,
        topology: Topology,
        num_servers: int,
        nic_bytes_per_s: Mapping[int, float] | None = None,
        gpus_of_servers: Sequence[int] | None = None,
        levels: Mapping[str, Sequence[int]] | None = None,
        name: str = "",
    ) -> None:
        """Enumerate the links; ``nic_bytes_per_s`` replaces the bandwidth of some servers' network cards.

        What a relative bandwidth relates to stays the topology's card: the constants of a contention model are
        measured with that. ``gpus_of_servers`` matters where the topology states the inside of servers; by default a
        server has a GPU a card. ``levels`` are in place of the topology's; ``name`` is that of messages, by default the
        class's.
        """
        self._topology = topology
        self._name = name or type(topology).__name__
        self.inside: Inside | None = getattr(topology, "inside", None)
        """What is known of the inside of servers."""
        graph = getattr(topology, "cables", topology.graph)
        self._graph = guarded(f"topology {self._name}: graph", lambda: graph(num_servers))
        self._rings: dict[tuple[int, ...], RingLinks] = {}
        self._paths: dict[tuple[Node, Node], tuple[Path, ...]] = {}
        self._known_paths: dict[tuple[Node, ...], Path] = {}
        self._places_of_routes: dict[tuple[Node, Node], int] = {}
        self.cards = 1 if self.inside is None else self.inside.cards * self.inside.planes
        """Network cards of a server; one on several planes counts for each."""
        self._num_cards = num_servers * self.cards
        self._wires = self._checked()
        nics = self._wires.cards_bytes_per_s
        self.nic_bytes_per_s = float(nics.max(initial=0.0))
        """Bandwidth of the topology's fastest network card."""
        if nic_bytes_per_s:
            self._replace_cards(nics, nic_bytes_per_s)
        self._gpus = tuple(gpus_of_servers or (self.cards,) * num_servers)
        self._first_ports = tuple(accumulate(self._gpus, initial=self._num_cards))
        self.first_ports = np.array(self._first_ports)
        """Where the ports of each server's GPUs begin among the links, if ``inside`` is known; the first: the cards."""
        self.levels: dict[str, tuple[int, ...]] = self._levels(levels)
        """Of each level, the narrowest first, the unit that each server is in; the first is ``server``."""
        if self.inside is not None and self.inside.by_rail and len({*self._gpus}) > 1:
            raise InputError(f"topology {self._name}: rails are apart, but servers differ in their GPUs")
        gpu_gbps = 0.0 if self.inside is None else self.inside.gpu_gbps
        ports = np.full(self.ports.stop - self.ports.start, bytes_per_s_from_gbps(gpu_gbps))
        bytes_per_s = np.concatenate([nics, ports, self._wires.links_bytes_per_s])
        self.links: Links = Links(bytes_per_s, self.nic_bytes_per_s, self._name_of)
        """All links: the network cards, server by server, then the ports of GPUs if they are known, then the cables."""

    def node(self, card: Card) -> Node:
        """Return the node of the graph that a network card is, or its server if that has one only."""
        return card[0] if self.inside is None else card

    def _checked(self) -> Wires:
        """Return the cables, by number."""
        from ddlsched.network.cables import Cables, Wires

        name, graph, cables = self._name, self._graph, self._graph
        if not isinstance(cables, Cables):
            if not hasattr(graph, "edges"):
                raise PluginError(f"topology {name}: graph answered {graph!r}; expected a networkx graph")
            cables = Cables.of(graph, [self.node(divmod(n, self.cards)) for n in range(self._num_cards)])
        if (number := cables.not_by_one(self._num_cards)) is not None:
            node = self.node(divmod(number, self.cards))
            what = f"server {node}" if self.inside is None else f"{node}, a server and its card,"
            raise InputError(f"topology {name}: {what} must be a node with exactly one cable")
        if (number := cables.not_sound) is not None:
            a, b, data = next(islice(cables.edges(), number, None))
            raise InputError(
                f"topology {name}: edge {a}-{b} has {data}; "
                "expected a finite bandwidth_bytes_per_s > 0 and latency_s >= 0"
            )
        return Wires(cables, self._num_cards)

    def _replace_cards(self, nics: np.ndarray, nic_bytes_per_s: Mapping[int, float]) -> None:
        """Replace the bandwidth of some servers' cards; a graph's, too, as routes may look at it."""
        if hasattr(self._graph, "adj"):
            self._graph = self._graph.copy()
        for server, bytes_per_s in nic_bytes_per_s.items():
            for number in range(server * self.cards, (server + 1) * self.cards):
                nics[number] = bytes_per_s
                if hasattr(self._graph, "adj"):
                    (data,) = self._graph.adj[self.node((server, number % self.cards))].values()
                    data["bandwidth_bytes_per_s"] = bytes_per_s

    @property
    def racks(self) -> list[list[int]]:
        """The servers at each switch, by their first network cards, in the order of their lowest servers."""
        racks: dict[int, list[int]] = {}
        for server, switch in enumerate(self._wires.switch_of[:: self.cards].tolist()):
            racks.setdefault(switch, []).append(server)
        return list(racks.values())

    def _levels(self, given: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
        servers = range(len(self._gpus))
        levels = {"server": tuple(servers)}
        of = getattr(self._topology, "levels", None)
        if given:
            levels |= {name: tuple(units) for name, units in given.items()}
        elif of is not None:
            told = lambda: {name: tuple(units) for name, units in of(len(servers)).items()}  # noqa: E731
            levels |= guarded(f"topology {self._name}: levels", told)
        for (below, inner), (name, outer) in pairwise(levels.items()):
            if len(outer) != len(inner) or len({*zip(inner, outer, strict=False)}) != len({*inner}):
                raise PluginError(
                    f"topology {self._name}: levels has {name!r}, of which no unit is made of whole units of "
                    f"{below!r}; expected a unit a server, and levels from the narrowest to the widest"
                )
        return levels

    def units(self, level: str) -> tuple[int, ...]:
        """Return the unit of a level that each server is in.

        Raises
        ------
        UnknownNameError
            The topology has no such level.
        """
        if level not in self.levels:
            known = ", ".join(self.levels)
            raise UnknownNameError(f"topology {self._name}: has no level {level!r}; expected one of {known}")
        return self.levels[level]

    def _name_of(self, link: int) -> str:
        server, card = divmod(link, self.cards)
        if link >= self.ports.stop:
            source, target = self._wires.ends_of(link - self.ports.stop)
            return f"{source} to {target}"
        if link >= self.ports.start:
            server = bisect_right(self._first_ports, link) - 1
            return f"server {server}, GPU {link - self._first_ports[server]}"
        return f"server {server}" + f", card {card}" * (self.inside is not None)

    def is_card(self, link: int) -> bool:
        """Return whether a link is a network card."""
        return link < self._first_ports[0]

    @property
    def ports(self) -> slice:
        """The numbers of the links that are ports of GPUs; none unless ``inside`` is known."""
        return slice(self._first_ports[0], self._first_ports[0] if self.inside is None else self._first_ports[-1])

    def port(self, server: int, place: int) -> int:
        """Return the number of the link that is the port of a server's GPU, if ``inside`` is known."""
        return self._first_ports[server] + place

    def rank(self, server: int, place: int) -> Rank:
        """Return where a worker on a server's GPU is, and which card it uses.

        Servers of one NVLink domain count as one: the place and the card are those among all of the domain's.
        """
        inside = self.inside
        if inside is None:
            return Rank(server, place, 0)
        domain, tray = divmod(server, inside.servers)
        first = self._first_ports[server] - self._first_ports[domain * inside.servers]
        card = inside.card_of(place, self._gpus[server]) * inside.planes
        return Rank(domain, first + place, tray * self.cards + card)

    def ranks(self, servers: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the :meth:`rank` of each worker, a row each."""
        inside = self.inside
        if inside is None:
            return np.stack([servers, places, np.zeros_like(places)], axis=1)
        domains, trays = np.divmod(servers, inside.servers)
        first = self.first_ports[servers] - self.first_ports[domains * inside.servers]
        cards = places * inside.cards // np.diff(self.first_ports)[servers] * inside.planes
        return np.stack([domains, first + places, trays * self.cards + cards], axis=1)

    def relay(self, source: Rank, target: Rank) -> Rank:
        """Return the GPU from which what one sends leaves for another's card: its own, unless rails are apart."""
        inside, card = self.inside, target.card % self.cards
        if inside is None or not inside.by_rail or source.card % self.cards == card:
            return source
        server = source.server * inside.servers + source.card // self.cards
        return self.rank(server, -(-card // inside.planes * self._gpus[server] // inside.cards))

    def _path(self, nodes: Sequence[Node], source: Node, target: Node) -> Path:
        """Return the path along some nodes."""
        route, wires = list(nodes), self._wires
        where = f"topology {self._name}: the route from server {source} to {target}"
        if len(route) < 3 or (route[0], route[-1]) != (source, target):
            raise InputError(f"{where} is {route}; expected the nodes from one to the other, both included")
        numbers = [wires.numbers.get(node, -1) for node in route]
        latencies_s = []
        for (a, b), ends in zip(pairwise(route), pairwise(numbers), strict=True):
            if (latency_s := wires.latency_s(*ends)) is None:
                raise InputError(f"{where} goes from {a!r} to {b!r}; expected a cable of the graph")
            latencies_s.append(latency_s)
        links = tuple(self.ports.stop + wires.link(*ends) for ends in pairwise(numbers[1:-1]))
        return Path(links, sum(latencies_s))

    def _known_path(self, nodes: Sequence[Node], source: Node, target: Node) -> Path:
        """Return the path along some nodes; between the same switches, by cables alike, there is one."""
        ends = [self._wires.numbers.get(node, -1) for node in (*nodes[:1], *nodes[-1:])]
        if len(nodes) < 3 or min(ends) < 0 or max(ends) >= self._num_cards:
            return self._path(nodes, source, target)  # which says what is wrong
        key = (*map(self._wires.card_latency_s, ends), *nodes[1:-1])
        if key not in self._known_paths or nodes[0] != source or nodes[-1] != target:
            self._known_paths[key] = self._path(nodes, source, target)
        return self._known_paths[key]

    def route(self, source: Node, target: Node) -> Path:
        """Return the topology's own route from one server, or network card, to another."""
        nodes = self._topology.route(self._graph, source, target)  # type: ignore[arg-type]
        return self._known_path(nodes, source, target)

    def paths(self, source: Node, target: Node) -> tuple[Path, ...]:
        """Return all paths from one server, or network card, to another that the topology offers: at least one.

        Raises
        ------
        InputError
            The topology offers none, one twice, or one that is no way along its cables.
        PluginError
            The topology raised.
        """
        if (source, target) not in self._paths:
            what = f"topology {self._name}: paths"
            self._paths[source, target] = guarded(what, lambda: self._all_paths(source, target))
        return self._paths[source, target]

    def place_of_route(self, source: Node, target: Node) -> int:
        """Return which of the paths from one server to another is the topology's own route.

        Raises
        ------
        InputError
            None is.
        """
        if (source, target) not in self._places_of_routes:
            links = self.route(source, target).links
            places = [place for place, path in enumerate(self.paths(source, target)) if path.links == links]
            if not places:
                where = f"topology {self._name}: the route from server {source} to {target}"
                raise InputError(f"{where} is none of the paths that it offers")
            self._places_of_routes[source, target] = places[0]
        return self._places_of_routes[source, target]

    def _all_paths(self, source: Node, target: Node) -> tuple[Path, ...]:
        if not hasattr(self._topology, "paths"):
            return (self.route(source, target),)
        paths = [self._known_path(nodes, source, target) for nodes in self._topology.paths(self._graph, source, target)]
        if not paths or len({path.links for path in paths}) < len(paths):
            raise InputError(
                f"topology {self._name}: paths from server {source} to {target} answered {len(paths)} paths, "
                f"{len({path.links for path in paths})} of them different; expected at least one, each once"
            )
        return tuple(paths)

    def ring(self, servers: Sequence[int]) -> RingLinks:
        """Return the ring over ``servers`` in ascending order; on one server it crosses nothing."""
        key = tuple(sorted(servers))
        if key not in self._rings:
            self._rings[key] = guarded(f"topology {self._name}: route", lambda: self._compute_ring(key))
        return self._rings[key]

    def _compute_ring(self, servers: tuple[int, ...]) -> RingLinks:
        if len(servers) < 2:
            return RingLinks((), 0.0)
        links = [server * self.cards + card for server in servers for card in range(self.cards)]
        flows = flows_of_ring(servers)
        paths = [self.route(self.node((a, card)), self.node((b, card))) for a, b in flows for card in range(self.cards)]
        return ring_along(links, paths, len(servers))

    def own_way(self, source: Card, target: Card) -> Path:
        """Return the topology's own route from one card to another."""
        ends = self.node(source), self.node(target)
        return guarded(lambda: f"topology {self._name}: route", lambda: self.route(*ends))

    def own_ways(self, sources: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the links between switches on the own routes between cards, a row each and -1 behind, and latencies.

        Cards are given by number. It is None where the topology answers routes one by one.
        """
        answer = getattr(self._topology, "switches", None)
        if answer is None:
            return None
        ends = [(cards // self.cards, cards % self.cards) for cards in (sources, targets)]
        switches = guarded(f"topology {self._name}: switches", lambda: answer(*ends))
        links, latency_s, wrong = self._wires.along(switches, sources, targets)
        for row in wrong[:1].tolist():
            route = self._wires.route(switches[row], sources[row], targets[row])
            self._path(route, route[0], route[-1])  # says what is wrong
        links[links >= 0] += self.ports.stop
        return links, latency_s


def neighbours(num_servers: int, size: int) -> list[int]:
    """Return the unit of each server where so many neighbours are one."""
    return [server // size for server in range(num_servers)]


def flows_of_ring(servers: Sequence[int]) -> list[tuple[int, int]]:
    """Return source and target of each flow of a ring over at least two servers: from each to the next."""
    return list(zip(servers, [*servers[1:], servers[0]], strict=True))


def ring_along(cards: Sequence[int], paths: Sequence[Path], num_servers: int) -> RingLinks:
    """Return the ring over servers, by these cards, whose flows take these paths."""
    links = [*cards, *(link for path in paths for link in path.links)]
    return RingLinks(tuple(links), 2 * (num_servers - 1) * max(path.latency_s for path in paths))
