"""Networks of today's clusters: routes and link loads worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import networkx as nx
import pytest
from jobs_by_hand import Fixed, data_parallel_job

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, PluginError
from ddlsched.network.topology import Network, Topology
from ddlsched.simulation import simulate
from ddlsched.workload.job import Workload
from topologies.clos import Clos
from topologies.double_sided import DoubleSided
from topologies.lingjun import Lingjun
from topologies.monkeytree import MonkeyTree
from topologies.rail_optimised import RailOptimised

GBPS = 1e9 / 8


def route(topology: Topology, servers: int, source: int, target: int) -> list[Any]:
    return list(topology.route(topology.graph(servers), source, target))


def gbps(topology: Topology, servers: int) -> dict[str, float]:
    """Return each link's bandwidth by its name."""
    return {link.name: link.bandwidth_bytes_per_s / GBPS for link in Network(topology, servers).links}


def crossings(topology: Topology, servers: int, *rings: tuple[int, ...]) -> Counter[str]:
    """Return how often some rings cross each link between switches."""
    network = Network(topology, servers)
    names = [network.links[link].name for ring in rings for link in network.ring(ring).links]
    return Counter(name for name in names if not name.startswith("server"))


# ---- Clos: 2 servers a rack, 2 racks a pod, 2 aggregation switches a pod on 2 core switches each

CLOS = Clos(servers_per_rack=2, racks_per_pod=2, aggregations=2, cores=2, nic_gbps=100.0)


@pytest.mark.parametrize(
    ("source", "target", "between"),
    [
        (0, 1, ["rack 0.0"]),
        (0, 3, ["rack 0.0", "aggregation 0.1", "rack 0.1"]),  # 3 mod 2 = 1
        (0, 6, ["rack 0.0", "aggregation 0.0", "core 0.1", "aggregation 1.0", "rack 1.1"]),  # 6 / 2 mod 2 = 1
        (6, 1, ["rack 1.1", "aggregation 1.1", "core 1.0", "aggregation 0.1", "rack 0.0"]),
    ],
)
def test_clos_routes_go_as_high_as_they_must(source: int, target: int, between: list[str]) -> None:
    assert route(CLOS, 8, source, target) == [source, *between, target]


def test_clos_without_oversubscription_has_the_same_bandwidth_on_each_tier() -> None:
    found = gbps(CLOS, 8)
    # 2 servers of 100 over 2 aggregation switches; 2 racks of 100 over 2 core switches.
    assert (found["rack 0.0 to aggregation 0.1"], found["aggregation 1.0 to core 0.1"]) == (100.0, 100.0)
    assert len(found) == 8 + 2 * (4 * 2 + 4 * 2)


def test_oversubscription_of_clos_multiplies_up_the_tiers() -> None:
    ratios = {"rack_oversubscription": 2.0, "pod_oversubscription": 4.0}
    found = gbps(Clos(servers_per_rack=2, racks_per_pod=2, aggregations=2, cores=2, nic_gbps=100.0, **ratios), 8)
    assert (found["rack 0.0 to aggregation 0.1"], found["aggregation 1.0 to core 0.1"]) == (50.0, 12.5)


def test_loads_of_two_rings_between_pods_of_clos() -> None:
    # All targets are even, so that all go by aggregation switches 0.0 and 1.0.
    found = crossings(CLOS, 8, (0, 4), (2, 6))
    assert {name: found[name] for name in found if name.startswith("rack")} == {
        "rack 0.0 to aggregation 0.0": 1,
        "rack 0.1 to aggregation 0.0": 1,
        "rack 1.0 to aggregation 1.0": 1,
        "rack 1.1 to aggregation 1.0": 1,
    }
    # To 4 and 0 by core 0.0 (4 / 2 and 0 / 2 are even), to 6 and 2 by core 0.1.
    assert {name: found[name] for name in found if name.startswith("core")} == {
        "core 0.0 to aggregation 1.0": 1,
        "core 0.0 to aggregation 0.0": 1,
        "core 0.1 to aggregation 1.0": 1,
        "core 0.1 to aggregation 0.0": 1,
    }


# ---- Rails


def test_a_host_of_the_rail_network_has_eight_cards_and_a_unit_is_non_blocking() -> None:
    found = gbps(RailOptimised(), 64)
    assert found["server 0"] == 8 * 400.0
    up = [value for name, value in found.items() if name.startswith("rails 0 to")]
    assert (len(up), sum(up)) == (4, 32 * 8 * 400.0)
    thin = gbps(RailOptimised(oversubscription=2.0), 64)
    assert thin["rails 0 to spine 3"] == found["rails 0 to spine 3"] / 2


def test_rail_routes_leave_a_unit_only_for_another() -> None:
    assert route(RailOptimised(), 64, 0, 31) == [0, "rails 0", 31]
    assert route(RailOptimised(), 64, 31, 33) == [31, "rails 0", "spine 1", "rails 1", 33]


# ---- Double-sided


def test_double_sided_hosts_are_dealt_to_three_pairs() -> None:
    graph = DoubleSided().graph(12)
    assert [next(iter(graph.adj[server])) for server in range(12)] == [
        *["pair 0"] * 4,
        *["pair 1"] * 4,
        *["pair 2"] * 4,
    ]
    switches = Counter(str(node).split()[0] for node in graph if not isinstance(node, int))
    assert switches == {"pair": 3, "aggregation": 12, "core": 32}


def test_double_sided_routes_and_bandwidth() -> None:
    assert route(DoubleSided(), 12, 0, 3) == [0, "pair 0", 3]
    # 10 mod 4 = 2, 10 mod 32 = 10
    path = [1, "pair 0", "aggregation 0.2", "core 10", "aggregation 2.2", "pair 2", 10]
    assert route(DoubleSided(), 12, 1, 10) == path
    found = gbps(DoubleSided(), 12)
    assert found["server 5"] == 8 * 200.0
    assert found["pair 0 to aggregation 0.2"] == 4 * 1600.0 / 4
    assert found["aggregation 0.2 to core 10"] == 4 * 1600.0 / 4 / 32


# ---- MonkeyTree


def test_monkeytree_has_sixteen_racks_of_eight_servers_under_sixteen_spines() -> None:
    topology = MonkeyTree()
    graph = topology.graph(128)
    racks = Counter(next(iter(graph.adj[server])) for server in range(128))
    assert (len(racks), set(racks.values())) == (16, {8})
    assert all(graph.degree(rack) == 8 + 16 for rack in racks)
    assert set(gbps(topology, 128).values()) == {400.0}
    assert route(topology, 128, 7, 8) == [7, "rack 0", "spine 8", "rack 1", 8]
    with pytest.raises(InputError, match="16 racks hold 128 servers, not 129"):
        topology.graph(129)


def test_rings_of_monkeytree_meet_on_a_spine_where_their_targets_do() -> None:
    # To 16 and 0 by spine 0, to 32 by spine 0 as well: two rings from rack 0 meet on its cable to spine 0.
    found = crossings(MonkeyTree(), 128, (0, 16), (1, 32))
    assert found["rack 0 to spine 0"] == 2
    assert found["spine 0 to rack 0"] == 1  # to 0; to 1 by spine 1
    assert found["spine 1 to rack 0"] == 1


# ---- Lingjun


def test_lingjun_has_the_labels_of_the_dataset() -> None:
    graph = Lingjun().graph(847)
    racks = Counter(next(iter(graph.adj[server])) for server in range(847))
    by_group = Counter(dict.fromkeys(("P8", "P10", "P12"), 0))
    for rack, hosts in racks.items():
        by_group[str(rack).removeprefix("ASW ").split(".")[0]] += hosts
    assert by_group == {"P8": 179, "P10": 362, "P12": 306}
    assert len(racks) == 29 + 48 + 42
    assert 6 <= min(racks.values()) <= max(racks.values()) <= 8
    with pytest.raises(InputError, match="has 847 hosts, not 848"):
        Lingjun().graph(848)


def test_lingjun_routes_go_up_to_the_lowest_common_label() -> None:
    # 179 hosts in 29 racks: racks begin at 0, 6, 12, 18, ...; P10 begins at 179.
    assert route(Lingjun(), 847, 0, 5) == [0, "ASW P8.1", 5]
    assert route(Lingjun(), 847, 0, 6) == [0, "ASW P8.1", "PSW P8", "ASW P8.2", 6]
    way = ["ASW P8.1", "PSW P8", "DSW", "PSW P10", "ASW P10.1"]
    assert route(Lingjun(), 847, 0, 179) == [0, *way, 179]
    found = gbps(Lingjun(group_oversubscription=2.0), 847)
    assert (found["server 0"], found["ASW P8.1 to PSW P8"]) == (800.0, 6400.0)
    assert found["PSW P8 to DSW"] == 29 * 6400.0 / 2


# ---- A run, and what is refused


def test_an_all_reduce_over_an_oversubscribed_core_takes_as_long_as_its_thinnest_link() -> None:
    # Servers of 100 Gbit/s in two pods; a core cable has 12.5; a ring of two moves 2 (2 - 1) / 2 of the message.
    topology = Clos(
        servers_per_rack=2,
        racks_per_pod=2,
        aggregations=2,
        cores=2,
        nic_gbps=100.0,
        rack_oversubscription=2.0,
        pod_oversubscription=4.0,
    )
    job = data_parallel_job(gpus=2, message_bytes=125e6)
    cluster = Cluster(num_servers=8, gpus_per_server=1, topology=topology)
    result = simulate(Workload.of([job]), cluster, placement=Fixed(gpus={"a": [0, 4]}), contention="max-min")
    assert result.jobs["communication_s"].item() == pytest.approx(125e6 * 8 / 12.5e9, rel=1e-9)
    links = result.links.set_index("link")["bytes"]
    assert links["core 0.0 to aggregation 1.0"] == links["rack 1.0 to aggregation 1.0"] == 125e6
    assert links["core 0.1 to aggregation 1.0"] == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clos(cores=0), "clos: cores is 0; expected a whole number from 1 to 1024"),
        (lambda: Clos(nic_gbps=0.0), "clos: nic_gbps is 0.0; expected Gbit/s > 0"),
        (lambda: Clos(rack_oversubscription=-1.0), "clos: rack_oversubscription is -1.0"),
        (lambda: Clos(rack_oversubscription=0.0), "clos: rack_oversubscription is 0.0"),
        (lambda: RailOptimised(rails=0), "rail-optimised: rails is 0"),
        (lambda: RailOptimised(rail_gbps=float("nan")), "rail-optimised: rail_gbps is nan"),
        (lambda: DoubleSided(link_gbps=0.0), "double-sided: link_gbps is 0.0"),
        (lambda: DoubleSided(nvlink_gbps=0.0), "double-sided: nvlink_gbps is 0.0"),
        (lambda: DoubleSided(pairs=2000), "double-sided: pairs is 2000"),
        (lambda: MonkeyTree(latency_s=-1.0), "monkeytree: latency_s is -1.0"),
        (lambda: Lingjun(nic_gbps=float("inf")), "lingjun: nic_gbps is inf"),
        (lambda: Lingjun(group_oversubscription=0.0), "lingjun: group_oversubscription is 0.0"),
    ],
)
def test_what_no_network_has_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        make()
    assert message in str(refused.value)


class Islands:
    """Servers 0 and 1 on one switch, 2 and 3 on another, and no cable between them."""

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        graph: nx.Graph[Any] = nx.Graph()
        for server in range(num_servers):
            graph.add_edge(server, f"switch {server // 2}", bandwidth_bytes_per_s=1e9, latency_s=0.0)
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> list[Any]:
        return [source, f"switch {source // 2}", f"switch {target // 2}", target]


class ByNetworkx(Islands):
    """Lets networkx find the way."""

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> list[Any]:
        return list(nx.shortest_path(graph, source, target))


class OneWay(Islands):
    """Forgets the target."""

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> list[Any]:
        return [source, f"switch {source // 2}"]


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (Islands(), "Islands: the route from server 1 to 2 goes from 'switch 0' to 'switch 1'; expected a cable"),
        (OneWay(), "OneWay: the route from server 1 to 2 is [1, 'switch 0']; expected the nodes from one to the other"),
        (ByNetworkx(), "No path between 1 and 2"),
    ],
)
def test_servers_that_no_route_connects_are_named(topology: Topology, message: str) -> None:
    with pytest.raises((InputError, PluginError)) as refused:
        Network(topology, 4).ring((1, 2))
    assert message in str(refused.value)
