"""GPU figures as published; clusters from the simulator's topologies."""

from __future__ import annotations

import networkx as nx
import pytest

from ddlsched.errors import InputError
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.hardware import tiers_of_topology
from ddlsched.training.estimate.presets import GPUS

FIGURES = {
    "v100": (125, 900, 32, 150),
    "a100-80": (312, 2039, 80, 300),
    "a100-40": (312, 1555, 40, 300),
    "h100": (989, 3350, 80, 450),
    "a6000": (154.8, 768, 48, 56.25),
    "h200": (989, 4800, 141, 450),
    "b200": (2250, 8000, 180, 900),  # an eighth of a DGX B200: 64 TB/s, 1440 GB, 14.4 TB/s both ways
    "tpu-v4": (275, 1228, 32, 6 * 50),
}


@pytest.mark.parametrize("name", FIGURES)
def test_vendor_figures(name) -> None:
    gpu = GPUS[name]
    found = (gpu.peak("half") / 1e12, gpu.memory_bytes_per_s / 1e9, gpu.memory_bytes / 1e9, gpu.link_bytes_per_s / 1e9)
    assert found == pytest.approx(FIGURES[name])


def test_every_promised_gpu_is_there_with_power_and_price() -> None:
    assert {"v100", "a100-40", "a100-80", "h100", "h200", "b200", "tpu-v4"} <= set(GPUS)
    assert all(gpu.power_w > 0 and gpu.price_per_hour > 0 for gpu in GPUS.values())


def tiers(topology: str, servers: int = 16) -> list[tuple[float, float]]:
    found = tiers_of_topology(topology, num_servers=servers, gpus_per_server=8, gpu=GPUS["a100-80"])
    return [(float(tier.size), tier.bytes_per_s / 1e9) for tier in found]


def test_a_star_has_a_tier_of_servers() -> None:
    assert tiers("star:nic_gbps=800") == [(8, 300), (16, pytest.approx(12.5))]


def test_a_leaf_spine_has_a_tier_of_leaves_with_what_oversubscription_leaves() -> None:
    found = tiers("leaf-spine:servers_per_leaf=4,spines=2,nic_gbps=800,oversubscription=4")
    assert found == [(8, 300), (4, pytest.approx(12.5)), (4, pytest.approx(3.125))]


def test_a_fat_tree_has_full_bandwidth_upwards() -> None:
    assert tiers("fat-tree:k=4,nic_gbps=800") == [(8, 300), (2, pytest.approx(12.5)), (8, pytest.approx(12.5))]


@pytest.mark.parametrize(
    ("topology", "servers", "found"),
    [
        ("star:nic_gbps=800,nvlink_gbps=1600", 16, [(8, 200), (16, 12.5)]),
        ("rail-only", 16, [(8, 300), (16, 50)]),  # an A100's links, slower than an H100's ports
        ("rail-clos:nvlink_gbps=800,oversubscription=4", 64, [(8, 100), (32, 50), (2, 12.5)]),
        ("rail-optimised:rails=16,planes=2,nvlink_gbps=2400", 16, [(8, 300), (16, 50)]),  # a GPU uses one of two cards
        ("rail-clos:units_per_pod=2,pod_oversubscription=4", 128, [(8, 300), (32, 50), (2, 50), (2, 12.5)]),
        ("clos:rack_oversubscription=2,pod_oversubscription=2", 32, [(8, 300), (4, 50), (4, 25), (2, 12.5)]),
        ("clos", 24, [(8, 300), (4, 50), (6, 50)]),
        ("clos:rack_oversubscription=4", 64, [(8, 300), (4, 50), (16, 12.5)]),  # and no more between pods than in one
        ("clos:racks_per_pod=1,pod_oversubscription=2", 12, [(8, 300), (4, 50), (3, 25)]),
        ("nvl72", 9, [(72, 300), (1, 50)]),
        ("nvl72", 16, [(64, 300), (2, 50)]),  # 32 trays of 4 GPUs, 16 in each of two racks
        ("nvl72:racks_per_block=2,oversubscription=2", 64, [(64, 300), (2, 50), (4, 28.125)]),  # 32 of 36 trays share
    ],
)
def test_insides_and_pods(topology, servers, found) -> None:
    assert tiers(topology, servers) == [(size, pytest.approx(speed)) for size, speed in found]


class Ring:
    """Three switches of two servers each, joined in a ring."""

    def graph(self, num_servers: int) -> nx.Graph:
        cables = [*((server, f"switch {server // 2}") for server in range(num_servers))]
        cables += [(f"switch {one}", f"switch {(one + 1) % 3}") for one in range(3)]
        return nx.Graph((*ends, {"bandwidth_bytes_per_s": 8e9, "latency_s": 0.0}) for ends in cables)

    def route(self, graph: nx.Graph, source: int, target: int) -> list:
        return nx.shortest_path(graph, source, target)


def test_switches_joined_directly_are_no_pods() -> None:
    found = tiers_of_topology(Ring(), num_servers=6, gpus_per_server=4, gpu=GPUS["h100"])
    assert [(tier.size, tier.bytes_per_s / 1e9) for tier in found] == [(4, 450), (2, 2), (3, 2)]


def test_latency_is_that_of_the_cables() -> None:
    found = tiers_of_topology(
        "leaf-spine:servers_per_leaf=2,latency_s=1e-6", num_servers=4, gpus_per_server=8, gpu=GPUS["v100"]
    )
    assert [tier.latency_s for tier in found] == pytest.approx([0, 2e-6, 4e-6])


def test_uneven_leaves_are_refused() -> None:
    with pytest.raises(InputError, match="6 servers do not fill its 2 switches evenly"):
        tiers("leaf-spine:servers_per_leaf=4", servers=6)
    said = "topology nvl72: 152 GPUs do not fill NVLink domains of 18 servers of 4 evenly; .* such as 3 times 72"
    with pytest.raises(InputError, match=said):
        tiers("nvl72", servers=19)
    with pytest.raises(InputError, match="24 servers do not fill its 2 pods evenly"):
        tiers("clos:pod_oversubscription=2", servers=24)


def test_oversubscription_slows_what_crosses_leaves() -> None:
    from ddlsched.training.estimate.parallel_layout import Parallelism
    from ddlsched.training.estimate.presets import MODELS
    from ddlsched.training.estimate.step_estimate import estimate

    plan = Parallelism(tensor=8, data=8, global_batch=8)
    times = [
        estimate(MODELS["gpt3-6.7b"], plan, parse_cluster("a100-80", topology=topology).machine(64)).data_s
        for topology in ("star:nic_gbps=800", "leaf-spine:servers_per_leaf=2,nic_gbps=800,oversubscription=8")
    ]
    assert times[1] > 1.5 * times[0]


@pytest.mark.long
def test_a_slower_network_is_never_estimated_as_faster() -> None:
    from ddlsched.training.estimate.parallel_layout import Parallelism
    from ddlsched.training.estimate.presets import MODELS
    from ddlsched.training.estimate.step_estimate import estimate

    plan = Parallelism(tensor=8, data=64, global_batch=512)
    times = [
        float(estimate(MODELS["gpt3-6.7b"], plan, parse_cluster("h100", topology=topology).machine(512)).data_s)
        for topology in (f"clos:rack_oversubscription=4,pod_oversubscription={over}" for over in (1, 1.2, 3, 4, 6))
    ]
    assert times[:4] == pytest.approx([times[0]] * 4, rel=3e-3)  # the racks' cables are as busy
    assert times[4] > 1.1 * times[3]


def test_a_cluster_line() -> None:
    machine = parse_cluster("h100:nodes=4,nic_gbps=800,memory_gb=96,price_per_hour=2", efficiency="ideal").machine(32)
    assert [float(tier.size) for tier in machine.tiers] == [8, 4]
    assert [tier.bytes_per_s / 1e9 for tier in machine.tiers] == pytest.approx([450, 12.5])
    assert (machine.gpu.memory_bytes, machine.gpu.price_per_hour) == (96e9, 2)


def test_as_many_nodes_as_needed() -> None:
    assert [float(tier.size) for tier in parse_cluster("h100").machine(32).tiers] == [8, 4]
    assert [float(tier.size) for tier in parse_cluster("h100").machine(2).tiers] == [2, 1]
