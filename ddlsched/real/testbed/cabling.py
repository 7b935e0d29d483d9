"""What a network of namespaces is made of: from a cluster's topology, perhaps scaled, to bridges, cables and routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.deferred import nx
from ddlsched.errors import InputError, guarded, label
from ddlsched.network.topology import Network, Node
from ddlsched.plugins.names import resolve

SWITCHES = "ddlsched-net"
"""The namespace that holds every bridge and their ends of the cables: with it all of them go."""
MOST_SERVERS = 200
LEAST_BITS_PER_S = 100_000
_MOST_BITS_PER_S = 100e9


def server_name(server: int) -> str:
    """Return the name of a server's namespace."""
    return f"ddlsched-{server}"


def address_of(server: int) -> str:
    """Return a server's address in the network of namespaces."""
    return f"10.77.0.{server + 1}"


def mac_of(server: int) -> str:
    """Return the hardware address of a server's network card."""
    return f"02:dd:00:00:00:{server + 1:02x}"


@dataclass(frozen=True)
class Cable:
    """A pair of connected interfaces, each shaped to the same rate.

    Parameters
    ----------
    server
        Whose network card the first end is; None for a cable between switches.
    switches
        Numbers of the bridges at the ends; of a server's cable only one.
    ends
        Names of the interfaces, as many as bridges.
    bits_per_s
        In each direction.
    """

    server: int | None
    switches: tuple[int, ...]
    ends: tuple[str, ...]
    bits_per_s: int


@dataclass(frozen=True)
class Cabling:
    """Everything that is to be made.

    Parameters
    ----------
    num_servers, num_switches
        Counts; servers and bridges are numbered from 0.
    cables
        Those of the servers first, in server order.
    forwarding
        (bridge, server, interface): over which interface a bridge reaches a server.
    """

    num_servers: int
    num_switches: int
    cables: tuple[Cable, ...]
    forwarding: tuple[tuple[int, int, str], ...]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Names of all namespaces."""
        return (SWITCHES, *(server_name(server) for server in range(self.num_servers)))


def cabling(cluster: Cluster) -> Cabling:
    """Return what stands for a cluster's network.

    Raises
    ------
    InputError
        Too many servers, a rate that cannot be shaped, or a topology whose switches would have to know where a packet
        comes from: a bridge looks at where it goes.
    """
    count = cluster.num_servers
    if not 2 <= count <= MOST_SERVERS:
        raise InputError(f"a testbed of {count} servers; expected 2 to {MOST_SERVERS}")
    topology: Any = resolve("topology", cluster.topology)
    refuse_inside(Network(topology, count, cluster.network_cards))  # which checks the graph
    graph = topology.graph(count)
    switches = {node: number for number, node in enumerate(n for n in graph if not _is_server(n, count))}
    cables: list[Cable] = []
    ends: dict[tuple[Node, Node], str] = {}
    for number, (a, b, data) in enumerate(_servers_first(graph, count)):
        bytes_per_s = cluster.network_cards.get(a, data["bandwidth_bytes_per_s"])
        cable = _cable(number, a, switches.get(a), switches[b], _bits_per_s(bytes_per_s, a, b))
        cables.append(cable)
        ends |= {(a, b): cable.ends[0], (b, a): cable.ends[-1]}
    hops = guarded(f"topology {label(topology)}: route", lambda: _hops(topology, graph, count))
    forwarding = tuple(
        sorted(
            (switches[node], target, ends[node, after]) for (node, target), after in hops.items() if node in switches
        )
    )
    return Cabling(count, len(switches), tuple(cables), forwarding)


def refuse_inside(network: Network) -> None:
    """Raise InputError for a network that states the inside of its servers."""
    if network.inside is not None:
        raise InputError(
            "the topology states the inside of its servers; expected one without (no nvlink_gbps): a server of the "
            "testbed is one network card"
        )


def _is_server(node: Node, count: int) -> bool:
    return isinstance(node, int) and 0 <= node < count


def _servers_first(graph: Any, count: int) -> list[tuple[Any, Any, Any]]:
    """Return the edges, those of the servers first and beginning with the server."""
    servers = [(s, *next(iter(graph.adj[s].items()))) for s in range(count)]
    between = [e for e in graph.edges(data=True) if not _is_server(e[0], count) and not _is_server(e[1], count)]
    return servers + between


def _cable(number: int, node: Any, first: int | None, last: int, bits_per_s: int) -> Cable:
    if first is None:
        return Cable(int(node), (last,), (f"s{node}",), bits_per_s)
    return Cable(None, (first, last), (f"c{number}a", f"c{number}b"), bits_per_s)


def _bits_per_s(bytes_per_s: float, a: Node, b: Node) -> int:
    bits_per_s = round(bytes_per_s * 8)
    if not LEAST_BITS_PER_S <= bits_per_s <= _MOST_BITS_PER_S:
        raise InputError(
            f"the cable {a}-{b} would be shaped to {bits_per_s / 1e6:g} Mbit/s; expected {LEAST_BITS_PER_S / 1e6:g} to "
            f"{_MOST_BITS_PER_S / 1e6:g} (--scale multiplies every rate)"
        )
    return bits_per_s


def _hops(topology: Any, graph: Any, count: int) -> dict[tuple[Node, int], Node]:
    """Return the node after each node on the way to each server."""
    hops: dict[tuple[Node, int], Node] = {}
    for source in range(count):
        for target in range(count):
            for node, after in pairwise(topology.route(graph, source, target) if source != target else ()):
                if hops.setdefault((node, target), after) != after:
                    raise InputError(
                        f"topology {label(topology)}: to server {target} the switch {node!r} sends over "
                        f"{hops[node, target]!r} or over {after!r}, as the source is; expected routes that depend on "
                        "the target alone, as a bridge forwards"
                    )
    return hops


@dataclass(frozen=True, kw_only=True, repr=False)
class Scaled:
    """A topology whose cables are ``factor`` times as fast as another's; routes are the same."""

    topology: Any
    factor: float

    def __repr__(self) -> str:
        return f"{label(self.topology)} x {self.factor:g}"

    @property
    def inside(self) -> Any:
        """The inside of servers, if the other states it."""
        return getattr(self.topology, "inside", None)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the other's graph with its rates multiplied."""
        graph: nx.Graph[Any] = self.topology.graph(num_servers).copy()
        for _, _, data in graph.edges(data=True):
            data["bandwidth_bytes_per_s"] *= self.factor
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the other's route."""
        nodes: Sequence[Node] = self.topology.route(graph, source, target)
        return nodes


def scaled(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose network is ``factor`` times as fast.

    Raises
    ------
    InputError
        The factor is not above 0, or above 1000.
    """
    if not 0 < factor <= 1e3:
        raise InputError(f"--scale is {factor}; expected a number above 0, to 1000")
    servers = tuple(
        server if server.nic_gbps is None else replace(server, nic_gbps=server.nic_gbps * factor)
        for server in cluster.servers
    )
    return replace(
        cluster, topology=Scaled(topology=resolve("topology", cluster.topology), factor=factor), servers=servers
    )
