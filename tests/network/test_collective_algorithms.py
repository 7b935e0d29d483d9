"""Collective algorithms by hand: what trees, switches, halves and straight ways put on cards, ports and cables."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jobs_by_hand import Fixed

from algorithms.collective.double_binary_tree import DoubleBinaryTree
from algorithms.collective.in_network import InNetwork
from algorithms.collective.nccl import Nccl
from algorithms.collective.ring import Ring
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, PluginError
from ddlsched.network.collectives import Message, Rank
from ddlsched.network.contention import moved_by_ring
from ddlsched.network.topology import Network
from ddlsched.network.traffic import TaskMessage, phases_of, traffic_of
from ddlsched.plugins.names import resolve
from ddlsched.simulation import simulate
from ddlsched.workload.dag import CollectiveTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import read_workload, write_workload

STAR = "star:nic_gbps=8,nvlink_gbps=32"
"""A byte a nanosecond on a card, four on a port."""
RAILS = "rail-optimised:rails=4,rail_gbps=8,nvlink_gbps=32,hosts_per_unit=8"


def took_ms(algorithm: str, servers: int, gpus: int, topology: str, kind: str = "all-reduce") -> float:
    """Return how long a collective of 8 MB takes over so many servers of 4 GPUs, of which it has some on each."""
    task = CollectiveTask(name="c", kind=kind, algorithm=algorithm, message_bytes=8e6)
    job = Job(
        job_id="a",
        arrival_s=0.0,
        num_gpus=servers * gpus,
        iterations=1,
        iteration=IterationDag((task,)),
        gpu_memory_mb=1.0,
    )
    cluster = Cluster(num_servers=servers, gpus_per_server=4, topology=topology)
    places = [4 * server + gpu for server in range(servers) for gpu in range(gpus)]
    given = {"placement": Fixed(gpus={"a": places}), "contention": "max-min"}
    return 1000 * simulate(Workload.of([job]), cluster, **given).jobs["jct_s"].item()


@pytest.mark.parametrize(
    ("algorithm", "servers", "gpus", "topology", "expected_ms"),
    [
        # A server below 2 others in one tree, and a leaf in the other: 2 x 4 + 4 + 4 = 16 MB into its card.
        ("double-binary-tree", 5, 1, STAR, 16.0),
        # Two servers, each the root of one tree: 4 MB up and 4 MB down in either direction.
        ("double-binary-tree", 2, 1, STAR, 8.0),
        # In one server a chain of 4: the middle passes on 8 MB up and 8 MB down, at 4 MB a millisecond.
        ("double-binary-tree", 1, 4, STAR, 4.0),
        # Four rails, a quarter of the 8 MB in each: 2 MB a card; ports as above.
        ("double-binary-tree", 2, 4, RAILS, 4.0),
        # Each card sends 8 MB up once and gets 8 MB once, however many there are.
        ("in-network", 2, 1, STAR, 8.0),
        ("in-network", 5, 1, STAR, 8.0),
        ("in-network", 5, 4, STAR, 8.0),
        # In one server each port moves it once, and the rank's own quarter as well: 8 + 2 MB; more if it reaches less.
        ("in-network:port_share=1", 1, 4, STAR, 2.5),
        ("in-network:port_share=0.5", 1, 4, STAR, 5.0),
        ("in-network", 1, 4, STAR, 2.5 / 0.686),
        # The same where the quickest is chosen: 2 steps of 0 s, so the switches.
        ("nccl:switches=inside,switch_s=0,port_share=0.5", 1, 4, STAR, 5.0),
        # Over two servers half on each of two cards, 8 + 4 MB on ports; a quarter on four cards, 8 + 2 MB on ports.
        ("in-network:port_share=1", 2, 2, RAILS, 4.0),
        ("in-network:port_share=0.5", 2, 4, RAILS, 5.0),
        # The same inside where trees join the servers, or a card's 2 MB.
        ("double-binary-tree:port_share=0.5", 2, 4, RAILS, 5.0),
        ("double-binary-tree:port_share=0.5", 1, 4, RAILS, 5.0),
        ("double-binary-tree:port_share=1", 2, 4, RAILS.replace("32", "64"), 2.0),
        # 4 ranks: halves and quarters, 4 + 2 MB, and back. Of 5, the fifth's partner gets 8 MB more and gives 8 back.
        ("halving-doubling", 4, 1, STAR, 12.0),
        ("halving-doubling", 5, 1, STAR, 20.0),
        # Each sends a fifth to each of 4 others, twice.
        ("direct", 5, 1, STAR, 12.8),
        # 8 ranks, 1 MB each: 4 ranks send to 4 others over the card, twice: 32 MB; a quarter on each of four rails.
        ("direct", 2, 4, STAR, 32.0),
        ("direct", 2, 4, RAILS, 8.0),
    ],
)
def test_all_reduces_by_hand(algorithm: str, servers: int, gpus: int, topology: str, expected_ms: float) -> None:
    assert took_ms(algorithm, servers, gpus, topology) == pytest.approx(expected_ms, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "servers", "message_mb", "expected"),
    [
        # 8 servers of 4: a ring has 62 steps of 14 us, trees 6, and 6 of 6.42 us. Each of 4 cards moves 1.94 / 4
        # of the message in a ring, 2 / 4 in trees: 0.3125 us of a MB at 50 GB/s less. 746 us more of steps: equal at
        # 2,386 MB.
        ({}, 8, 2300.0, DoubleBinaryTree),
        ({}, 8, 2500.0, Ring),
        ({"outside_s": 0.0, "inside_s": 0.0}, 8, 1.0, Ring),
        ({"switches": "inside"}, 8, 1.0, DoubleBinaryTree),
        ({"switches": "all"}, 8, 1.0, InNetwork),
        # 1 server of 4: a ring has 6 steps, and moves 1.5 of the message; a switch 2 of 25 us, and moves 1.25 of it, at
        # 0.686 of 3,600 Gbit/s: equal at 4.56 MB.
        ({"switches": "inside"}, 1, 4.5, Ring),
        ({"switches": "inside"}, 1, 4.6, InNetwork),
        # At 0.5 the switch is at 180 GB/s of the message: equal at 11.4 MB.
        ({"switches": "inside", "port_share": 0.5}, 1, 11.3, Ring),
        ({}, 1, 4.6, Ring),
        # 2 servers of 4: both trees have 2 steps outside, and 50 us in switches or 38.5 in chains. Of a MB a card moves
        # a quarter, 5 us; chains move 2 MB at 228 GB/s, 8.8 us: equal at 3.06 MB.
        ({"switches": "inside"}, 2, 3.0, DoubleBinaryTree),
        ({"switches": "inside"}, 2, 3.1, partial(DoubleBinaryTree, port_share=InNetwork.port_share)),
    ],
)
def test_by_size_the_quickest_is_chosen(given: Any, servers: int, message_mb: float, expected: Any) -> None:
    ranks = [Rank(server, place, place) for server in range(servers) for place in range(4)]
    message = Message(message_mb * 1e6, lambda count: 2 * (count - 1) / count * message_mb * 1e6)
    assert Nccl(**given).phases("all-reduce", ranks, message) == expected().phases("all-reduce", ranks, message)
    assert Nccl(**given).phases("all-gather", ranks, message) == Ring().phases("all-gather", ranks, message)


@pytest.mark.parametrize(
    ("algorithm", "kind", "servers", "expected_ms"),
    [
        ("in-network", "broadcast", 5, 8.0),
        ("direct", "broadcast", 5, 32.0),  # the root sends 8 MB to each of 4
        ("direct", "all-gather", 5, 6.4),
        ("halving-doubling", "all-gather", 4, 6.0),
        # The fifth gives its 1.6 MB and gets 8 MB. Its partner sends 3.2 MB (of two), 4.8 MB and 8 MB.
        ("halving-doubling", "all-gather", 5, 16.0),
        # Of 4, in each of 2 steps 2 parts of 2 MB; of 5, 2 + 2 + 1 parts of 1.6 MB.
        ("halving-doubling", "all-to-all", 4, 8.0),
        ("halving-doubling", "all-to-all", 5, 8.0),
    ],
)
def test_other_kinds_by_hand(algorithm: str, kind: str, servers: int, expected_ms: float) -> None:
    assert took_ms(algorithm, servers, 1, STAR, kind) == pytest.approx(expected_ms, rel=1e-6)


def test_a_broadcast_through_the_switch_of_a_server_sends_the_message_once() -> None:
    assert took_ms("in-network:port_share=0.5", 1, 4, STAR, "broadcast") == pytest.approx(4.0)


@pytest.mark.parametrize("share", [0.0, 1.01, "half"])
def test_a_share_of_a_port_is_one(share: Any) -> None:
    for algorithm in (InNetwork, Nccl):
        with pytest.raises(InputError, match=f"port_share is {share!r}; expected a number > 0 to 1"):
            algorithm(port_share=share)


def test_switches_send_what_they_have_added_up_once() -> None:
    """Two leaves of three servers and one spine: 8 MB go up each leaf's cable and 8 MB come down, not three times 8."""
    network = Network(resolve("topology", "leaf-spine:servers_per_leaf=3,spines=1"), 6)
    ranks = [Rank(server, 0, 0) for server in range(6)]
    found = traffic_of(network, TaskMessage("all-reduce", "in-network", 8e6), ranks, moved_by_ring, network.own_way)
    on = {network.links[link].name: found.wire_bytes * s for link, s in zip(found.links, found.shares, strict=True)}
    cables = ["leaf 0 to spine 0", "spine 0 to leaf 0", "leaf 1 to spine 0", "spine 0 to leaf 1"]
    assert on == dict.fromkeys([*(f"server {n}" for n in range(6)), *cables], 8e6)


@pytest.mark.parametrize(("algorithm", "steps"), [("ring", 30), ("double-binary-tree", 8), ("halving-doubling", 8)])
def test_trees_and_halves_take_fewer_steps(algorithm: str, steps: int) -> None:
    """Over 16 servers whose hops take 20 us: a ring has 2 x 15; 0 is above 8, 8 above 4, 4 above 2, 2 above 1."""
    network = Network(resolve("topology", "star:latency_s=1e-5"), 16)
    ranks = [Rank(server, 0, 0) for server in range(16)]
    found = traffic_of(network, TaskMessage("all-reduce", algorithm, 8e6), ranks, moved_by_ring, network.own_way)
    assert found.latency_s == pytest.approx(steps * 2e-5)


@pytest.mark.parametrize("count", range(2, 40))
def test_no_rank_has_two_below_it_in_both_trees(count: int) -> None:
    ranks = [Rank(server, 0, 0) for server in range(count)]
    message = Message(1.0, lambda members: moved_by_ring(1.0, members))
    _, trees = DoubleBinaryTree().phases("all-reduce", ranks, message)
    sent = Counter[int]()
    for source, target, amount in trees.flows:
        assert (target, source, amount) in trees.flows
        sent[source.server] += round(2 * amount)
    assert len(trees.flows) == 4 * (count - 1)  # both ways between each and the one above it, in either tree
    assert max(sent.values()) <= 4


def test_a_job_names_the_algorithm_of_its_all_reduces(tmp_path: Path) -> None:
    step = DataParallelIteration(forward_s=0.0, backward_s=0.0, message_bytes=8e6, algorithm="in-network")
    job = Job(job_id="a", arrival_s=0.0, num_gpus=4, iterations=10, iteration=step, gpu_memory_mb=1.0)
    cluster = Cluster(num_servers=4, gpus_per_server=1, topology="star:nic_gbps=8")
    assert simulate(Workload.of([job]), cluster, contention="max-min").jobs["jct_s"].item() == pytest.approx(0.08)
    for suffix in ("csv", "parquet", "json"):
        path = tmp_path / f"jobs.{suffix}"
        write_workload(Workload.of([job]), path)
        assert read_workload(path) == Workload.of([job])
    text = (tmp_path / "jobs.csv").read_text().replace("in-network", "broadcast-tree")
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(InputError, match=r"bad.csv, row 1 \(line 2\): no collective is named 'broadcast-tree'"):
        read_workload(tmp_path / "bad.csv")


OWN = """
from dataclasses import dataclass
from ddlsched.network.collectives import Phase

@dataclass(frozen=True, kw_only=True)
class Mine:
    sent: float = 1.0
    kinds = ("all-reduce",)

    def phases(self, kind, ranks, message):
        first, *others = ranks
        return [
            Phase([(rank, first, self.sent * message.bytes) for rank in others], 1),
            Phase([(first, rank, self.sent * message.bytes) for rank in others], 1),
        ]
"""


def test_a_class_in_a_file_of_ones_own(tmp_path: Path) -> None:
    """A parameter server: 4 x 8 MB go into the first card and out of it."""
    (tmp_path / "mine.py").write_text(OWN)
    assert took_ms(f"{tmp_path}/mine.py:Mine", 5, 1, STAR) == pytest.approx(32.0)
    assert took_ms(f"{tmp_path}/mine.py:Mine:sent=0.5", 5, 1, STAR) == pytest.approx(16.0)
    with pytest.raises(PluginError, match=r"Mine:sent=-1: phases of all-reduce over 5 ranks answered -8000000.0 bytes"):
        took_ms(f"{tmp_path}/mine.py:Mine:sent=-1", 5, 1, STAR)


@pytest.mark.parametrize("answered", ["[]", "[Phase([], 3)]"])
def test_a_collective_that_sends_nothing_is_not_taken_for_a_free_one(tmp_path: Path, answered: str) -> None:
    begins, _ = OWN.split("        return")
    (tmp_path / "mine.py").write_text(f"{begins}        return {answered}\n")
    with pytest.raises(PluginError, match=r"phases of all-reduce over 5 ranks answered no flows; expected one that"):
        took_ms(f"{tmp_path}/mine.py:Mine", 5, 1, STAR)


@pytest.mark.parametrize(
    ("flow", "fault"),
    [("(first, others[0])", "ValueError: not enough values"), ("(first, others[0], '8')", "TypeError: '<=' not supp")],
)
def test_flows_that_are_none_are_the_collectives_fault(tmp_path: Path, flow: str, fault: str) -> None:
    begins, _ = OWN.split("        return")
    (tmp_path / "mine.py").write_text(f"{begins}        return [Phase([{flow}], 1)]\n")
    with pytest.raises(PluginError, match=f"Mine: phases of all-reduce over 5 ranks raised {fault}"):
        took_ms(f"{tmp_path}/mine.py:Mine", 5, 1, STAR)


def test_ranks_whose_exchange_is_free_count_as_one() -> None:
    ranks = [Rank(0, 0, 0), Rank(0, 1, 0), Rank(1, 0, 0)]
    message = Message(8.0, lambda members: moved_by_ring(8.0, members))
    (phase,) = phases_of("all-reduce", "ring", ranks, message, has_inside=False)
    assert [(a.server, b.server, sent) for a, b, sent in phase.flows] == [(0, 1, 8.0), (1, 0, 8.0)]
    assert phases_of("all-reduce", "ring", ranks[:2], message, has_inside=False) == []
