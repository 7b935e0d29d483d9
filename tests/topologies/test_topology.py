"""Networks: links, rings, routes."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from topologies.fat_tree import FatTree
from topologies.leaf_spine import LeafSpine
from topologies.star import Star


def names(network, servers):
    return [network.links[link].name for link in network.ring(servers).links]


def test_a_star_has_one_link_a_server():
    network = Network(Star(), 5)
    assert [link.name for link in network.links] == [f"server {n}" for n in range(5)]
    assert {link.bandwidth_bytes_per_s for link in network.links} == {1.25e9}
    assert network.ring((3, 1)).links == (1, 3)
    assert network.ring((2,)).links == ()


def test_ring_latency_is_that_of_all_its_steps():
    # 2 (n - 1) steps of a ring over n = 3 servers, each over two cables.
    assert Network(Star(latency_s=1e-6), 4).ring((0, 1, 2)).latency_s == pytest.approx(2 * 2 * 2e-6)


def test_leaf_spine_rings_stay_in_their_leaf_if_they_can():
    network = Network(LeafSpine(servers_per_leaf=2, spines=2), 6)
    assert names(network, (0, 1)) == ["server 0", "server 1"]
    # 1 -> 2 by spine 0, 2 -> 1 by spine 1: each leaf's cables once up and once down.
    assert names(network, (1, 2)) == [
        "server 1",
        "server 2",
        "leaf 0 to spine 0",
        "spine 0 to leaf 1",
        "leaf 1 to spine 1",
        "spine 1 to leaf 0",
    ]


def test_leaf_spine_oversubscription_is_the_ratio_of_bandwidths():
    network = Network(LeafSpine(servers_per_leaf=8, spines=2, oversubscription=4.0), 16)
    up = [link for link in network.links if link.name.startswith("leaf 0 to")]
    assert 8 * 1.25e9 / sum(link.bandwidth_bytes_per_s for link in up) == pytest.approx(4.0)
    assert up[0].relative_bandwidth == pytest.approx(1.0)


@pytest.mark.parametrize("num_servers", [1, 2, 15, 16])
def test_fat_tree_is_the_smallest_that_fits(num_servers):
    graph = FatTree().graph(num_servers)
    half = graph.graph["shape"].cores
    assert 2 * half**3 >= num_servers
    assert half == 1 or 2 * (half - 1) ** 3 < num_servers
    assert nx.is_connected(graph)


def test_fat_tree_routes_are_as_short_as_they_can_be():
    topology = FatTree(k=4)
    graph = topology.graph(16)
    for source in range(16):
        for target in set(range(16)) - {source}:
            route = topology.route(graph, source, target)
            assert len(route) == nx.shortest_path_length(graph, source, target) + 1


def test_a_fat_tree_spreads_its_uplinks():
    # Full bisection: the four rings from pod 0 to pod 1, server i to server i + 4, share no cable.
    network = Network(FatTree(k=4), 16)
    crossed = [link for i in range(4) for link in network.ring((i, i + 4)).links]
    assert len(crossed) == len(set(crossed))


def test_bad_topologies_are_refused():
    with pytest.raises(InputError, match="holds 16 servers, not 17"):
        FatTree(k=4).graph(17)
    with pytest.raises(InputError, match="even"):
        FatTree(k=3)
    with pytest.raises(InputError):
        Star(nic_gbps=0.0)
    with pytest.raises(InputError):
        LeafSpine(spines=0)


class TwoCables:
    """Server 0 hangs on two switches."""

    def graph(self, num_servers):
        graph = nx.Graph()
        for server in range(num_servers):
            for switch in "ab":
                graph.add_edge(server, switch, bandwidth_bytes_per_s=1.0, latency_s=0.0)
        return graph

    def route(self, graph, source, target):
        return source, "a", target


def test_a_server_with_two_cables_is_refused():
    with pytest.raises(InputError, match="exactly one cable"):
        Network(TwoCables(), 2)


class Wheel:
    """Servers on one switch, all cables alike."""

    def __init__(self, **cable: float) -> None:
        self.cable = cable

    def graph(self, num_servers):
        return nx.Graph([(server, "switch", self.cable) for server in range(num_servers)])

    def route(self, graph, source, target):
        return source, "switch", target


@pytest.mark.parametrize(
    "cable",
    [
        {},
        {"latency_s": 0.0},
        {"bandwidth_bytes_per_s": 1.0},
        *({"bandwidth_bytes_per_s": wrong, "latency_s": 0.0} for wrong in (0.0, -1.0, float("inf"), float("nan"))),
        *({"bandwidth_bytes_per_s": 1.0, "latency_s": wrong} for wrong in (-1e-9, float("inf"), float("nan"))),
    ],
    ids=str,
)
def test_a_cable_of_no_finite_bandwidth_and_latency_is_refused(cable: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected a finite bandwidth_bytes_per_s > 0 and latency_s >= 0"):
        Network(Wheel(**cable), 3)


@pytest.mark.parametrize("wrong", [(0, "switch", 1), (2, "switch", 0), (2, "switch", "switch", 1)])
def test_a_route_from_or_to_elsewhere_is_refused_beside_those_that_are_known(wrong: tuple[Any, ...]) -> None:
    class Astray(Wheel):
        def route(self, graph, source, target):
            return wrong if (source, target) == (2, 1) else super().route(graph, source, target)

    network = Network(Astray(bandwidth_bytes_per_s=1.0, latency_s=0.0), 3)
    assert network.route(0, 1) == network.route(1, 0)
    with pytest.raises(InputError, match="route from server 2 to 1"):
        network.route(2, 1)


def test_a_cable_may_be_slow() -> None:
    network = Network(Wheel(bandwidth_bytes_per_s=0.5, latency_s=0.25), 3)
    assert network.route(0, 1).latency_s == 0.5


@pytest.mark.parametrize("inside", [None, 300.0])
def test_the_cables_of_a_star_are_its_graph(inside: float | None) -> None:
    star = Star(nvlink_gbps=inside)
    graph, cables = star.graph(5), star.cables(5)
    assert list(graph.edges(data=True)) == list(cables.edges())
    node_of = cables.node_of
    assert [node_of(number) for number in range(5)] == [
        server if inside is None else (server, 0) for server in range(5)
    ]


def test_routes_through_one_spine_begin_at_the_switch_of_their_own_server() -> None:
    network = Network(LeafSpine(servers_per_leaf=2, spines=1), 6)
    begin, other = network.route(0, 4).links, network.route(2, 4).links
    assert begin[1] == other[1]
    assert begin[0] != other[0]
