"""What a topology becomes: bridges, cables, rates and forwarding, without making any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import pytest

from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.errors import InputError
from ddlsched.plugins.names import names, resolve
from ddlsched.real.testbed.cabling import Cabling, cabling, scaled

WITH_AN_INSIDE = {"nvl72", "rail-clos", "rail-only"}


def made(topology: Any, num_servers: int = 8, factor: float = 0.01) -> Cabling:
    return cabling(scaled(Cluster(num_servers=num_servers, topology=topology), factor))


def walk(plan: Cabling, source: int, target: int) -> list[int]:
    """Follow a packet's way from bridge to bridge; return the cables that it takes."""
    ends = {}
    for number, cable in enumerate(plan.cables):
        for end, switch in zip(cable.ends, reversed(cable.switches), strict=True):
            ends[end] = (number, None if cable.server is not None else switch)
    forwarding = {(switch, server): end for switch, server, end in plan.forwarding}
    taken, switch = [source], plan.cables[source].switches[0]
    while switch is not None:
        number, after = ends[forwarding[switch, target]]
        taken.append(number)
        switch = after
    return taken


@pytest.mark.parametrize("topology", sorted(names("topology")))
def test_a_packet_takes_the_topologys_route_in_every_built_in_topology(topology: str) -> None:
    instance = resolve("topology", topology)
    if topology in WITH_AN_INSIDE:
        with pytest.raises(InputError, match="a server of the testbed is one network card"):
            made(topology, factor=1e-4)
        return
    plan = made(topology, factor=1e-4)
    graph = instance.graph(8)
    assert plan.num_switches == len(graph) - 8
    assert len(plan.cables) == graph.number_of_edges()
    for source in range(8):
        for target in set(range(8)) - {source}:
            taken = walk(plan, source, target)
            assert len(taken) == len(instance.route(graph, source, target)) - 1
            assert taken[-1] == target


def test_rates_are_the_topologys_times_the_factor() -> None:
    plan = made("leaf-spine:servers_per_leaf=2,spines=2,oversubscription=2,nic_gbps=10", 4)
    assert {cable.bits_per_s for cable in plan.cables if cable.server is not None} == {100_000_000}
    assert {cable.bits_per_s for cable in plan.cables if cable.server is None} == {50_000_000}


def test_a_servers_own_card_is_scaled_too() -> None:
    cluster = scaled(Cluster(servers=(Server(nic_gbps=1.0), Server())), 0.1)
    assert [cable.bits_per_s for cable in cabling(cluster).cables] == [100_000_000, 1_000_000_000]


@dataclass(frozen=True)
class BySource:
    """Two switches between two leaves; which of them depends on where a packet comes from."""

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        graph: nx.Graph[Any] = nx.Graph()
        for server in range(num_servers):
            graph.add_edge(server, f"leaf {server // 2}", bandwidth_bytes_per_s=1e9, latency_s=0.0)
        for leaf in range(num_servers // 2):
            for spine in range(2):
                graph.add_edge(f"leaf {leaf}", f"spine {spine}", bandwidth_bytes_per_s=1e9, latency_s=0.0)
        return graph

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Any]:
        first, last = f"leaf {source // 2}", f"leaf {target // 2}"
        return (source, first, target) if first == last else (source, first, f"spine {source % 2}", last, target)


def test_routes_that_depend_on_the_source_are_refused() -> None:
    with pytest.raises(InputError, match=r"BySource\(\) x 0\.01: to server 2 .* depend on the target alone"):
        made(BySource(), 4)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), 1e4])
def test_a_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match=r"--scale is .*; expected a number above 0"):
        made("star", factor=factor)


def test_a_rate_that_cannot_be_shaped_is_refused() -> None:
    with pytest.raises(InputError, match=r"cable 0-switch would be shaped to 0\.01 Mbit/s; expected 0\.1 to"):
        made("star", factor=1e-6)


@pytest.mark.parametrize("num_servers", [1, 201])
def test_too_few_or_too_many_servers_are_refused(num_servers: int) -> None:
    with pytest.raises(InputError, match=rf"a testbed of {num_servers} servers; expected 2 to 200"):
        made("star", num_servers)
