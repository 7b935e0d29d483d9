"""Levels by name, NVLink domains over servers, planes and rails apart: worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlsched.errors import InputError, PluginError, UnknownNameError
from ddlsched.network.topology import Network
from ddlsched.network.traffic import TaskMessage, Traffic, traffic_of
from ddlsched.plugins.names import resolve
from topologies.clos import Clos
from topologies.rail_optimised import RailOptimised, nvl72, rail_clos, rail_only

MESSAGE = 8e9


def on_links(network: Network, kind: str, algorithm: str, *workers: tuple[int, int]) -> dict[str, float]:
    """Return the bytes on each link, by its name, of a collective between GPUs of servers."""
    found = traffic(network, kind, algorithm, *workers)
    return {
        network.links[link].name: found.wire_bytes * share
        for link, share in zip(found.links, found.shares, strict=True)
    }


def traffic(network: Network, kind: str, algorithm: str, *workers: tuple[int, int]) -> Traffic:
    ranks = [network.rank(*worker) for worker in workers]
    sent = TaskMessage(kind, algorithm, MESSAGE)
    return traffic_of(network, sent, ranks, lambda size, n: 2 * (n - 1) / n * size, network.own_way)


@pytest.mark.parametrize(
    ("name", "servers", "levels"),
    [
        ("clos:servers_per_rack=2,racks_per_pod=2", 5, {"rack": (0, 0, 1, 1, 2), "pod": (0, 0, 0, 0, 1)}),
        ("leaf-spine:servers_per_leaf=2", 3, {"rack": (0, 0, 1)}),
        ("monkeytree:servers_per_rack=2", 3, {"rack": (0, 0, 1)}),
        ("fat-tree:k=4", 5, {"rack": (0, 0, 1, 1, 2), "pod": (0, 0, 0, 0, 1)}),
        ("double-sided:pairs=2", 4, {"block": (0, 0, 1, 1)}),
        ("rail-optimised:hosts_per_unit=2", 3, {"block": (0, 0, 1)}),
        ("rail-clos:units_per_pod=2", 65, {"block": (0,) * 32 + (1,) * 32 + (2,), "pod": (0,) * 64 + (1,)}),
        ("nvl72", 19, {"tray": tuple(range(19)), "rack": (0,) * 18 + (1,), "block": (0,) * 19}),
        ("star", 2, {}),
    ],
)
def test_levels_of_topologies(name: str, servers: int, levels: dict[str, tuple[int, ...]]):
    assert Network(resolve("topology", name), servers).levels == {"server": tuple(range(servers)), **levels}


def test_lingjuns_levels_are_its_racks_and_groups():
    network = Network(resolve("topology", "lingjun"), 847)
    assert (len(set(network.units("rack"))), len(set(network.units("pod")))) == (29 + 48 + 42, 3)


def test_a_level_that_is_not_there_or_does_not_nest_is_refused():
    with pytest.raises(UnknownNameError, match=r"no level 'racks'; expected one of server, rack, pod$"):
        Network(Clos(), 4).units("racks")

    class Torn(Clos):
        def levels(self, num_servers: int) -> dict[str, list[int]]:
            return {"rack": [0, 0, 1, 1], "pod": [0, 1, 1, 1]}

    with pytest.raises(PluginError, match="'pod', of which no unit is made of whole units of 'rack'"):
        Network(Torn(), 4)

    class Nonsense(Clos):
        def levels(self, num_servers: int) -> Any:
            return num_servers

    with pytest.raises(PluginError, match="levels raised AttributeError: 'int' object has no attribute 'items'"):
        Network(Nonsense(), 4)


def test_inside_a_rack_everything_goes_over_nvlink():
    network = Network(nvl72(), 19, gpus_of_servers=[4] * 19)
    ring = on_links(network, "all-reduce", "ring", (0, 3), (7, 0), (17, 1), (17, 3))
    assert ring == {
        f"server {server}, GPU {place}": 1.5 * MESSAGE for server, place in ((0, 3), (7, 0), (17, 1), (17, 3))
    }


def test_between_racks_each_gpu_has_its_card():
    network = Network(nvl72(), 36, gpus_of_servers=[4] * 36)
    sent = on_links(network, "send", "ring", (17, 3), (18, 3))
    assert sent == {"server 17, card 3": MESSAGE, "server 18, card 3": MESSAGE}, "one leaf has both"
    workers = [(server, place) for server in (0, 1, 18, 19) for place in range(4)]
    ring = on_links(network, "all-reduce", "hierarchical", *workers)
    assert ring["server 1, card 2"] == pytest.approx(MESSAGE / 8), "2 racks, 8 lanes: 2 (2 - 1) / 2 of an eighth"
    assert ring["server 19, GPU 0"] == pytest.approx(2 * 7 / 8 * MESSAGE)


def test_planes_share_what_a_card_sends():
    one, two = (
        Network(RailOptimised(nvlink_gbps=3600.0, hosts_per_unit=1, planes=planes), 2, gpus_of_servers=[8, 8])
        for planes in (1, 2)
    )
    assert one.nic_bytes_per_s == 2 * two.nic_bytes_per_s
    whole, halves = on_links(one, "send", "ring", (0, 5), (1, 5)), on_links(two, "send", "ring", (0, 5), (1, 5))
    assert set(whole.values()) == {MESSAGE}
    assert halves == {
        "server 0, card 10": MESSAGE / 2,
        "server 0, card 11": MESSAGE / 2,
        "server 1, card 10": MESSAGE / 2,
        "server 1, card 11": MESSAGE / 2,
        "leaf 0.5.0 to spine 0.1": MESSAGE / 2,
        "spine 0.1 to leaf 1.5.0": MESSAGE / 2,
        "leaf 0.5.1 to spine 1.1": MESSAGE / 2,
        "spine 1.1 to leaf 1.5.1": MESSAGE / 2,
    }


def test_rails_apart_change_over_inside_the_host():
    network = Network(rail_only(hosts_per_unit=1, spines=2), 2, gpus_of_servers=[8, 8])
    assert on_links(network, "send", "ring", (0, 2), (1, 5)) == {
        "server 0, GPU 2": MESSAGE,
        "server 0, GPU 5": MESSAGE,
        "server 0, card 5": MESSAGE,
        "leaf 0.5 to spine 5.1": MESSAGE,
        "spine 5.1 to leaf 1.5": MESSAGE,
        "server 1, card 5": MESSAGE,
    }
    workers = [(server, place) for server in (0, 1) for place in (0, 1)]
    found = on_links(network, "all-to-all", "direct", *workers)
    assert found["server 0, card 0"] == 2 * MESSAGE / 4, "what both GPUs have for the other host's GPU on this rail"
    assert found["server 0, GPU 0"] == (1 + 1) * MESSAGE / 4, "what stays inside, and what changes the rail"


def test_networks_that_cannot_be():
    for wrong, why in (
        ({"planes": 2}, "nvlink_gbps is not given"),
        ({"hosts_per_domain": 3, "nvlink_gbps": 1.0}, "expected whole domains of hosts_per_domain=3"),
        ({"planes": 0, "nvlink_gbps": 1.0}, "planes is 0"),
        ({"units_per_pod": 0}, "units_per_pod is 0"),
        ({"pod_oversubscription": 0.0}, "pod_oversubscription is 0"),
    ):
        with pytest.raises(InputError, match=why):
            RailOptimised(**wrong)


@pytest.mark.parametrize(
    "given",
    [{}, {"planes": 2}, {"rails_apart": True}, {"hosts_per_domain": 2, "latency_s": 1e-6}, {"units_per_pod": 3}],
)
def test_routes_answered_at_once_are_those_answered_one_by_one(given: dict[str, Any]) -> None:
    network = Network(RailOptimised(hosts_per_unit=2, rails=2, spines=3, nvlink_gbps=3600.0, **given), 8)
    count = 8 * network.cards
    sources, targets = np.divmod(np.arange(count**2), count)
    if {"rails_apart", "planes"} & {*given}:  # which nothing joins
        with pytest.raises(InputError, match="expected a cable of the graph"):
            network.own_ways(np.array([0]), np.array([1]))
        ports = sources % network.cards == targets % network.cards
        sources, targets = sources[ports], targets[ports]
    sources, targets = sources[sources != targets], targets[sources != targets]
    found = network.own_ways(sources, targets)
    assert found is not None
    for source, target, links, latency_s in zip(*(each.tolist() for each in (sources, targets, *found)), strict=True):
        path = network.own_way(divmod(source, network.cards), divmod(target, network.cards))
        assert (tuple(link for link in links if link >= 0), latency_s) == (path.links, path.latency_s)


@pytest.mark.parametrize("planes", [1, 2])
def test_item_27_where_rails_are_apart_the_gpu_of_the_targets_rail_sends(planes: int) -> None:
    """Domains of two trays of eight GPUs on four cards: by hand, the GPU of the sender's own tray whose card it is."""
    topology = RailOptimised(
        hosts_per_unit=4, rails=4, nvlink_gbps=100.0, hosts_per_domain=2, rails_apart=True, planes=planes
    )
    network = Network(topology, 8, None, [8] * 8)
    for server, place, target, other, sender in (
        (0, 0, 2, 6, (0, 6)),  # GPUs 6 and 7 have card 3
        (1, 0, 6, 4, (1, 4)),  # of the second tray
        (1, 5, 4, 0, (1, 0)),
        (5, 1, 0, 7, (5, 6)),  # of the third domain
        (7, 3, 0, 2, (7, 3)),  # GPUs 2 and 3 share card 1
    ):
        assert network.relay(network.rank(server, place), network.rank(target, other)) == network.rank(*sender)


def test_item_27_racks_are_the_servers_at_one_switch() -> None:
    assert Network(resolve("topology", "leaf-spine:servers_per_leaf=2"), 5).racks == [[0, 1], [2, 3], [4]]


def test_a_rail_clos_has_the_defaults_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/networks.md").read_text(encoding="utf-8")
    assert f"| {rail_clos().units_per_pod} units a pod, {rail_clos().cores} cores a spine |" in page
    assert rail_clos().spines == 4
