"""Every topology against its switches and cables counted by hand; nothing here comes from the product but the graph."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from ddlsched.network.topology import Inside, Network, Topology
from topologies.clos import Clos
from topologies.double_sided import DoubleSided
from topologies.fat_tree import FatTree
from topologies.leaf_spine import LeafSpine
from topologies.lingjun import Lingjun
from topologies.monkeytree import MonkeyTree
from topologies.rail_optimised import RailOptimised
from topologies.star import Star

Cables = dict[frozenset[Any], float]
GBPS = 1e9 / 8
LATENCY_S = 3e-6


def found(topology: Topology, servers: int) -> Cables:
    """Return the Gbit/s of each cable; all have the latency that was given."""
    graph = topology.graph(servers)
    assert {data["latency_s"] for _, _, data in graph.edges(data=True)} == {LATENCY_S}
    cables = {frozenset(ends): graph.edges[ends]["bandwidth_bytes_per_s"] / GBPS for ends in graph.edges}
    assert set(graph) == {end for ends in cables for end in ends}
    return cables


def cables(text: str) -> Cables:
    """Return the cables of lines such as ``leaf 0: 0 1 | spine 0, spine 1 @ 10 20``: servers below, switches above."""
    listed: Cables = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        switch, _, rest = line.partition(": ")
        ends, _, rates = rest.partition(" @ ")
        below, _, above = ends.partition(" | ")
        for group, rate in zip((below.split(), above.split(", ")), rates.split(), strict=False):
            for end in filter(None, group):
                listed[frozenset((switch, node(end)))] = float(rate)
    return listed


def node(text: str) -> Any:
    """Return a server, a card (server.card) or a switch."""
    if text.replace(".", "").isdigit():
        return tuple(map(int, text.split("."))) if "." in text else int(text)
    return text.strip()


FAT_TREE = """
edge 0.0: 0 1 | aggregation 0.0, aggregation 0.1 @ 10 5
edge 0.1: 2 3 | aggregation 0.0, aggregation 0.1 @ 10 5
edge 1.0: 4 5 | aggregation 1.0, aggregation 1.1 @ 10 5
edge 1.1: 6 7 | aggregation 1.0, aggregation 1.1 @ 10 5
edge 2.0: 8 9 | aggregation 2.0, aggregation 2.1 @ 10 5
edge 2.1: 10 11 | aggregation 2.0, aggregation 2.1 @ 10 5
edge 3.0: 12 13 | aggregation 3.0, aggregation 3.1 @ 10 5
edge 3.1: 14 15 | aggregation 3.0, aggregation 3.1 @ 10 5
aggregation 0.0:  | core 0.0, core 0.1 @ 0 5
aggregation 0.1:  | core 1.0, core 1.1 @ 0 5
aggregation 1.0:  | core 0.0, core 0.1 @ 0 5
aggregation 1.1:  | core 1.0, core 1.1 @ 0 5
aggregation 2.0:  | core 0.0, core 0.1 @ 0 5
aggregation 2.1:  | core 1.0, core 1.1 @ 0 5
aggregation 3.0:  | core 0.0, core 0.1 @ 0 5
aggregation 3.1:  | core 1.0, core 1.1 @ 0 5
"""
CLOS = """
rack 0.0: 0 1 | aggregation 0.0, aggregation 0.1 @ 100 50
rack 0.1: 2 3 | aggregation 0.0, aggregation 0.1 @ 100 50
rack 1.0: 4 5 | aggregation 1.0, aggregation 1.1 @ 100 50
rack 1.1: 6 | aggregation 1.0, aggregation 1.1 @ 100 50
aggregation 0.0:  | core 0.0, core 0.1, core 0.2 @ 0 8.333333333333334
aggregation 0.1:  | core 1.0, core 1.1, core 1.2 @ 0 8.333333333333334
aggregation 1.0:  | core 0.0, core 0.1, core 0.2 @ 0 8.333333333333334
aggregation 1.1:  | core 1.0, core 1.1, core 1.2 @ 0 8.333333333333334
"""
RAILS = """
leaf 0.0: 0.0 1.0 | spine 0, spine 1 @ 10 5
leaf 0.1: 0.1 1.1 | spine 0, spine 1 @ 10 5
leaf 1.0: 2.0 | spine 0, spine 1 @ 10 5
leaf 1.1: 2.1 | spine 0, spine 1 @ 10 5
"""
PODS = """
leaf 0.0: 0.0 | spine 0.0, spine 0.1 @ 10 2.5
leaf 0.1: 0.1 | spine 0.0, spine 0.1 @ 10 2.5
leaf 1.0: 1.0 | spine 0.0, spine 0.1 @ 10 2.5
leaf 1.1: 1.1 | spine 0.0, spine 0.1 @ 10 2.5
leaf 2.0: 2.0 | spine 1.0, spine 1.1 @ 10 2.5
leaf 2.1: 2.1 | spine 1.0, spine 1.1 @ 10 2.5
spine 0.0:  | core 0.0, core 0.1, core 0.2 @ 0 1.25
spine 0.1:  | core 1.0, core 1.1, core 1.2 @ 0 1.25
spine 1.0:  | core 0.0, core 0.1, core 0.2 @ 0 1.25
spine 1.1:  | core 1.0, core 1.1, core 1.2 @ 0 1.25
"""
RAIL_CLOS = {"hosts_per_unit": 1, "rails": 2, "spines": 2, "units_per_pod": 2, "cores": 3, "nvlink_gbps": 80.0}
SIDES = """
pair 0.0: 0.0 0.2 1.0 1.2 | aggregation 0.0, aggregation 0.1 @ 10 10
pair 0.1: 0.1 1.1 | aggregation 0.0, aggregation 0.1 @ 10 5
pair 1.0: 2.0 2.2 3.0 3.2 | aggregation 1.0, aggregation 1.1 @ 10 10
pair 1.1: 2.1 3.1 | aggregation 1.0, aggregation 1.1 @ 10 5
aggregation 0.0:  | core 0, core 1 @ 0 7.5
aggregation 0.1:  | core 0, core 1 @ 0 7.5
aggregation 1.0:  | core 0, core 1 @ 0 7.5
aggregation 1.1:  | core 0, core 1 @ 0 7.5
"""
SMALL = {"pairs": 2, "aggregations_per_pair": 2, "cores": 2, "links_per_host": 3, "link_gbps": 10.0}

NETWORKS: list[tuple[Topology, int, str]] = [
    (Star(nic_gbps=25.0, latency_s=LATENCY_S), 3, "switch: 0 1 2 @ 25"),
    (Star(nic_gbps=25.0, latency_s=LATENCY_S, nvlink_gbps=80.0), 2, "switch: 0.0 1.0 @ 25"),
    # 3 servers of 10 down, 2 : 1, over 2 spines: 7.5 a cable; the last leaf has one server and cables as thick.
    (
        LeafSpine(servers_per_leaf=3, spines=2, oversubscription=2.0, latency_s=LATENCY_S),
        7,
        """leaf 0: 0 1 2 | spine 0, spine 1 @ 10 7.5
        leaf 1: 3 4 5 | spine 0, spine 1 @ 10 7.5
        leaf 2: 6 | spine 0, spine 1 @ 10 7.5""",
    ),
    # 2 servers of 10 under an edge switch, 2 : 1, over 2 cables: 5; the tiers above add none.
    (FatTree(k=4, oversubscription=2.0, latency_s=LATENCY_S), 16, FAT_TREE),
    # 2 x 100 down, 2 : 1, over 2 aggregation switches: 50. Of these 2 racks, 4 : 1, over 3 cores: 100 / 12.
    (
        Clos(
            servers_per_rack=2,
            racks_per_pod=2,
            aggregations=2,
            cores=3,
            nic_gbps=100.0,
            rack_oversubscription=2.0,
            pod_oversubscription=4.0,
            latency_s=LATENCY_S,
        ),
        7,
        CLOS,
    ),
    # Without an inside 2 rails count together: 20 a host; a unit's 2 hosts, 2 : 1, over 2 spines: 10.
    (
        RailOptimised(hosts_per_unit=2, rails=2, spines=2, rail_gbps=10.0, oversubscription=2.0, latency_s=LATENCY_S),
        3,
        "rails 0: 0 1 | spine 0, spine 1 @ 20 10\nrails 1: 2 | spine 0, spine 1 @ 20 10",
    ),
    (
        RailOptimised(
            hosts_per_unit=2,
            rails=2,
            spines=2,
            rail_gbps=10.0,
            oversubscription=2.0,
            latency_s=LATENCY_S,
            nvlink_gbps=80.0,
        ),
        3,
        RAILS,
    ),
    # A card of 10 down, 2 : 1, over 2 spines: 2.5. Of a pod's 4 leaves 10 at each spine, 8 / 3 : 1, over 3 cores: 1.25.
    (
        RailOptimised(
            **RAIL_CLOS, rail_gbps=10.0, oversubscription=2.0, pod_oversubscription=8 / 3, latency_s=LATENCY_S
        ),
        3,
        PODS,
    ),
    # 4 hosts in 2 pairs. 3 links of 10 a host; 2 hosts, 2 : 1, over 2 aggregation switches: 15; over 2 cores 7.5.
    (
        DoubleSided(**SMALL, oversubscription=2.0, latency_s=LATENCY_S),
        4,
        """pair 0: 0 1 | aggregation 0.0, aggregation 0.1 @ 30 15
        pair 1: 2 3 | aggregation 1.0, aggregation 1.1 @ 30 15
        aggregation 0.0:  | core 0, core 1 @ 0 7.5
        aggregation 0.1:  | core 0, core 1 @ 0 7.5
        aggregation 1.0:  | core 0, core 1 @ 0 7.5
        aggregation 1.1:  | core 0, core 1 @ 0 7.5""",
    ),
    # Even cards on one switch of the pair, 2 of a host's 3: 40 down and 10 on each of 2 cables up; on the other half.
    (DoubleSided(**SMALL, oversubscription=2.0, latency_s=LATENCY_S, nvlink_gbps=80.0), 4, SIDES),
    (
        MonkeyTree(racks=2, servers_per_rack=2, spines=3, nic_gbps=40.0, latency_s=LATENCY_S),
        3,
        """rack 0: 0 1 | spine 0, spine 1, spine 2 @ 40 40
        rack 1: 2 | spine 0, spine 1, spine 2 @ 40 40""",
    ),
    # 179 hosts in 29 racks: rack r begins at host 179 r / 29, rounded down. 8 x 100, 2 : 1, up; 29 racks, 4 : 1.
    (
        Lingjun(nic_gbps=100.0, rack_oversubscription=2.0, group_oversubscription=4.0, latency_s=LATENCY_S),
        14,
        """ASW P8.1: 0 1 2 3 4 5 | PSW P8 @ 100 400
        ASW P8.2: 6 7 8 9 10 11 | PSW P8 @ 100 400
        ASW P8.3: 12 13 | PSW P8 @ 100 400
        PSW P8:  | DSW @ 0 2900""",
    ),
]


@pytest.mark.parametrize(
    ("topology", "servers", "text"), NETWORKS, ids=[f"{type(row[0]).__name__} {n}" for n, row in enumerate(NETWORKS)]
)
def test_switches_and_cables(topology: Topology, servers: int, text: str) -> None:
    listed = cables(text)
    assert found(topology, servers) == {ends: pytest.approx(rate, rel=1e-12) for ends, rate in listed.items()}


@pytest.mark.parametrize(
    ("topology", "cards"),
    [
        (Star(nvlink_gbps=80.0, nvlink_latency_s=1e-6), 1),
        (RailOptimised(rails=2, nvlink_gbps=80.0, nvlink_latency_s=1e-6), 2),
        (DoubleSided(**SMALL, nvlink_gbps=80.0, nvlink_latency_s=1e-6), 3),
    ],
)
def test_the_inside_of_servers(topology: Topology, cards: int) -> None:
    assert topology.inside == Inside(gpu_gbps=80.0, cards=cards, latency_s=1e-6)
    network = Network(topology, 2, None, [6, 3])
    own = [f"server {server}, card {card}" for server in range(2) for card in range(cards)]
    ports = [*(f"server 0, GPU {place}" for place in range(6)), *(f"server 1, GPU {place}" for place in range(3))]
    assert [link.name for link in network.links[: len(own) + 9]] == own + ports
    assert {link.bandwidth_bytes_per_s for link in network.links[network.ports]} == {80 * GBPS}
    # Of 6 GPUs as many to each card, in order.
    assert [network.rank(0, place).card for place in range(6)] == [place // (6 // cards) for place in range(6)]


@pytest.mark.parametrize("make", [Star, RailOptimised, DoubleSided])
def test_without_nvlink_nothing_is_known_of_the_inside(make: Any) -> None:
    assert make().inside is None
    assert Network(make(), 2).cards == 1


# ---- routes: what each switch on the way is, by the place of source and target alone


def fat_tree_route(source: int, target: int) -> list[Any]:
    """Pods of 4 servers, edge switches of 2; up by the target's place, over the core of its edge switch's number."""
    first, last = f"edge {source // 4}.{source // 2 % 2}", f"edge {target // 4}.{target // 2 % 2}"
    up, down = f"aggregation {source // 4}.{target % 2}", f"aggregation {target // 4}.{target % 2}"
    if source // 2 == target // 2:
        return [source, first, target]
    if source // 4 == target // 4:
        return [source, first, up, last, target]
    return [source, first, up, f"core {target % 2}.{target // 2 % 2}", down, last, target]


def sides_route(source: tuple[int, int], target: tuple[int, int]) -> list[Any]:
    """Pairs of 2 hosts; the aggregation switch and the core of the target's server's number."""
    first, last = f"pair {source[0] // 2}.{source[1] % 2}", f"pair {target[0] // 2}.{target[1] % 2}"
    up, down = f"aggregation {source[0] // 2}.{target[0] % 2}", f"aggregation {target[0] // 2}.{target[0] % 2}"
    if first == last:
        return [source, first, target]
    if source[0] // 2 == target[0] // 2:
        return [source, first, up, last, target]
    return [source, first, up, f"core {target[0] % 2}", down, last, target]


def rails_route(source: tuple[int, int], target: tuple[int, int]) -> list[Any]:
    """Units of 2 hosts; the spine of the target's server's number."""
    first, last = f"leaf {source[0] // 2}.{source[1]}", f"leaf {target[0] // 2}.{target[1]}"
    return [source, first, target] if first == last else [source, first, f"spine {target[0] % 2}", last, target]


def pods_route(source: tuple[int, int], target: tuple[int, int]) -> list[Any]:
    """Pods of 2 hosts, each a unit; the spine of the target's number, its core of half of that."""
    first, last = f"leaf {source[0]}.{source[1]}", f"leaf {target[0]}.{target[1]}"
    number, core = target[0] % 2, target[0] // 2 % 3
    up, down = f"spine {source[0] // 2}.{number}", f"spine {target[0] // 2}.{number}"
    between = [up] if up == down else [up, f"core {number}.{core}", down]
    return [source, first, target] if first == last else [source, first, *between, last, target]


@pytest.mark.parametrize(
    ("topology", "servers", "cards", "by_hand"),
    [
        (FatTree(k=4), 16, 0, fat_tree_route),
        (DoubleSided(**SMALL, nvlink_gbps=80.0), 4, 3, sides_route),
        (RailOptimised(hosts_per_unit=2, rails=2, spines=2, nvlink_gbps=80.0), 4, 2, rails_route),
        (RailOptimised(**RAIL_CLOS), 7, 2, pods_route),
    ],
)
def test_every_route(topology: Any, servers: int, cards: int, by_hand: Any) -> None:
    graph = topology.graph(servers)
    ends = [(server, card) for server in range(servers) for card in range(cards)] if cards else range(servers)
    for source, target in permutations(ends, 2):
        assert list(topology.route(graph, source, target)) == by_hand(source, target)


@pytest.mark.parametrize(
    ("topology", "servers", "source", "target", "ways"),
    [
        (FatTree(k=4), 16, 0, 1, ["edge 0.0"]),
        (FatTree(k=4), 16, 0, 2, ["edge 0.0 > aggregation 0.0 > edge 0.1", "edge 0.0 > aggregation 0.1 > edge 0.1"]),
        (
            FatTree(k=4),
            16,
            0,
            15,
            [
                f"edge 0.0 > aggregation 0.{a} > core {a}.{c} > aggregation 3.{a} > edge 3.1"
                for a in range(2)
                for c in range(2)
            ],
        ),
        (LeafSpine(servers_per_leaf=2, spines=2), 4, 0, 3, ["leaf 0 > spine 0 > leaf 1", "leaf 0 > spine 1 > leaf 1"]),
        (MonkeyTree(racks=2, servers_per_rack=1, spines=1), 2, 0, 1, ["rack 0 > spine 0 > rack 1"]),
        (
            Clos(servers_per_rack=1, racks_per_pod=2, aggregations=1, cores=2),
            4,
            0,
            2,
            [f"rack 0.0 > aggregation 0.0 > core 0.{c} > aggregation 1.0 > rack 1.0" for c in range(2)],
        ),
        (
            DoubleSided(**SMALL, nvlink_gbps=80.0),
            4,
            (0, 0),
            (1, 1),
            [f"pair 0.0 > aggregation 0.{a} > pair 0.1" for a in range(2)],
        ),
        (
            DoubleSided(**SMALL, nvlink_gbps=80.0),
            4,
            (0, 0),
            (3, 1),
            [
                f"pair 0.0 > aggregation 0.{up} > core {core} > aggregation 1.{down} > pair 1.1"
                for up in range(2)
                for core in range(2)
                for down in range(2)
            ],
        ),
        (
            RailOptimised(hosts_per_unit=2, rails=2, spines=2, nvlink_gbps=80.0),
            4,
            (0, 0),
            (1, 1),
            ["leaf 0.0 > spine 0 > leaf 0.1", "leaf 0.0 > spine 1 > leaf 0.1"],
        ),
        (RailOptimised(hosts_per_unit=2, rails=2, spines=2, nvlink_gbps=80.0), 4, (0, 0), (1, 0), ["leaf 0.0"]),
        (RailOptimised(**RAIL_CLOS), 4, (0, 0), (1, 0), [f"leaf 0.0 > spine 0.{n} > leaf 1.0" for n in range(2)]),
        (
            RailOptimised(**RAIL_CLOS),
            4,
            (0, 0),
            (3, 1),
            [f"leaf 0.0 > spine 0.{n} > core {n}.{c} > spine 1.{n} > leaf 3.1" for n in range(2) for c in range(3)],
        ),
    ],
)
def test_all_paths(topology: Any, servers: int, source: Any, target: Any, ways: list[str]) -> None:
    paths = topology.paths(topology.graph(servers), source, target)
    assert sorted(map(list, paths), key=str) == sorted(([source, *way.split(" > "), target] for way in ways), key=str)
