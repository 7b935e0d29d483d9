"""Closed forms of collectives against hand calculation, a pipeline of chunks run one by one, and the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddlsched
from ddlsched.errors import InputError
from ddlsched.training.estimate.collectives import Kind, Span, collective_s, split_group
from ddlsched.workload.dag import CollectiveTask, IterationDag

ALGORITHMS = ("ring", "halving-doubling", "direct")
TREES = ("double-binary-tree", "double-binary-tree:port_share=0.7")
NCCLS = ("double-binary-tree", "nccl:inside_s=0,outside_s=0")
"""Trees, and what `nccl` takes if steps cost nothing: rings."""
spans = st.tuples(st.sampled_from([2, 4, 8, 16]), st.floats(1e9, 1e12)).map(lambda pair: Span(*pair))
groups = st.lists(spans, min_size=1, max_size=4).map(tuple)


def test_ring_all_reduce_by_hand() -> None:
    """8 GPUs, 8 MB, 1 GB/s, 1 us a step: 2 x 7/8 x 8 MB / 1 GB/s + 14 us."""
    group = (Span(8, 1e9, 1e-6),)
    assert collective_s("all-reduce", 8e6, group) == pytest.approx(14e-3 + 14e-6)
    assert collective_s("reduce-scatter", 8e6, group) == pytest.approx(7e-3 + 7e-6)
    assert collective_s("all-gather", 1e6, group) == pytest.approx(7e-3 + 7e-6)


def test_algorithms_differ_in_steps_and_all_to_alls_are_alike() -> None:
    group = (Span(8, 1e9, 1e-6),)
    latency_us = [1e6 * collective_s("all-reduce", 0.0, group, algorithm=name) for name in ALGORITHMS]
    assert latency_us == pytest.approx([14, 6, 2])
    quick = (Span(8, 1e9),)
    exchange_ms = [1e3 * collective_s("all-to-all", 8e6, quick, algorithm=name) for name in ALGORITHMS]
    assert exchange_ms == pytest.approx([7, 7, 7])


def all_simulated_s(messages: Iterable[tuple[str, float]], algorithm: str, servers: int, gpus: int, topology: str):
    """Return how long each message takes on all GPUs, of jobs that come one after another."""
    jobs = [
        ddlsched.Job(
            job_id=f"{number}",
            arrival_s=60.0 * number,
            num_gpus=servers * gpus,
            iterations=1,
            iteration=IterationDag(
                (CollectiveTask(name="c", kind=kind, message_bytes=message_bytes, algorithm=algorithm),)
            ),
            gpu_memory_mb=1.0,
        )
        for number, (kind, message_bytes) in enumerate(messages)
    ]
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=gpus, topology=topology)
    run = ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, contention="max-min", placement="first-fit")
    assert all(run.jobs["start_s"] == run.jobs["arrival_s"]), "each is alone"
    return run.jobs["jct_s"].tolist()


def simulated_s(kind: str, message_bytes: float, algorithm: str, servers: int, gpus: int, topology: str) -> float:
    return all_simulated_s([(kind, message_bytes)], algorithm, servers, gpus, topology)[0]


@pytest.mark.long
@pytest.mark.parametrize(("servers", "gpus"), [(1, 8), (2, 1), (2, 8), (3, 1), (5, 2), (8, 8), (16, 4)])
@pytest.mark.parametrize("switches", ["none", "inside", "all"])
def test_the_choice_by_size_takes_the_simulated_time(switches: str, servers: int, gpus: int) -> None:
    """From 1 kB to 2.4 GB, across every choice; links and latencies are the simulator's."""
    spans = (Span(gpus, 450e9, 3e-6), Span(servers, 50e9, 4e-6))
    rails = f"rail-optimised:rails={gpus},rail_gbps=400,nvlink_gbps=3600,latency_s=2e-6,nvlink_latency_s=3e-6"
    algorithm = f"nccl:switches={switches}"
    messages = list(itertools.product(("all-reduce", "reduce-scatter", "all-gather"), (1e3, 1e6, 3e7, 1e9, 2.4e9)))
    alone_s = all_simulated_s(messages, algorithm, servers, gpus, f"{rails},hosts_per_unit=64")
    for (kind, message_bytes), simulated in zip(messages, alone_s, strict=True):
        brought = message_bytes / (servers * gpus if kind == "all-gather" else 1)
        assert collective_s(kind, brought, spans, algorithm=algorithm) == pytest.approx(simulated, rel=1e-3)


@pytest.mark.parametrize("algorithm", [*TREES, "halving-doubling", "direct", "in-network"])
@pytest.mark.parametrize(("servers", "gpus"), [(1, 8), (2, 8), (4, 4), (5, 2)])
def test_algorithms_move_the_bytes_that_are_simulated(algorithm: str, servers: int, gpus: int) -> None:
    spans = (Span(gpus, 450e9), Span(servers, 50e9))
    rails = f"rail-optimised:rails={gpus},rail_gbps=400,nvlink_gbps=3600,latency_s=0,nvlink_latency_s=0"
    found_s = collective_s("all-reduce", 1e9, spans, algorithm=algorithm)
    assert found_s == pytest.approx(simulated_s("all-reduce", 1e9, algorithm, servers, gpus, rails), rel=1e-6)


@pytest.mark.parametrize("algorithm", [*TREES, "halving-doubling", "in-network", "nccl"])
@pytest.mark.parametrize(("gpus", "leaf", "leaves"), [(1, 4, 2), (1, 4, 4), (2, 4, 2), (4, 2, 4)])
def test_a_tier_of_switches_carries_what_is_simulated(algorithm: str, gpus: int, leaf: int, leaves: int) -> None:
    """A leaf's cables carry a quarter of what its servers' cards do; a port twice as much as a card."""
    spans = (Span(gpus, 2e9), Span(leaf, 1e9), Span(leaves, 0.25e9))
    rails = f"rail-optimised:rails={gpus},rail_gbps=8,nvlink_gbps=16,latency_s=0,nvlink_latency_s=0"
    topology = f"{rails},hosts_per_unit={leaf},spines=1,oversubscription=4"
    found_s = collective_s("all-reduce", 1e9, spans, algorithm=algorithm)
    assert found_s == pytest.approx(simulated_s("all-reduce", 1e9, algorithm, leaf * leaves, gpus, topology), rel=1e-5)


def test_kinds_that_an_algorithm_has_not_go_in_rings() -> None:
    group = (Span(4, 4e9, 1e-6), Span(3, 1e9, 5e-6))
    kinds: tuple[Kind, ...] = ("all-gather", "reduce-scatter", "all-to-all")
    for kind in kinds:
        assert collective_s(kind, 8e6, group, algorithm="double-binary-tree") == collective_s(kind, 8e6, group)


def test_unknown_algorithm() -> None:
    with pytest.raises(InputError, match="no collective is named 'tree'"):
        collective_s("all-reduce", 1.0, (Span(2, 1.0),), algorithm="tree")


def one_by_one(stage_s: list[float], chunks: int) -> float:
    """Return when the last of equal chunks has gone through stages that each take one chunk at a time."""
    free = [0.0] * len(stage_s)
    end = 0.0
    for _ in range(chunks):
        end = 0.0
        for number, seconds in enumerate(stage_s):
            end = free[number] = max(end, free[number]) + seconds
    return end


@given(groups, st.floats(1e3, 1e10), st.sampled_from(["reduce-scatter", "all-gather", "all-to-all"]))
def test_a_pipeline_of_chunks_takes_the_closed_form(group, message_bytes, kind) -> None:
    chunks, part, stage_s = 64, message_bytes, []
    for span in reversed(group) if kind == "all-gather" else group:
        buffer = part * span.size if kind == "all-gather" else part
        stage_s.append((span.size - 1) / span.size * buffer / span.bytes_per_s / chunks)
        part = {"all-gather": part * span.size, "reduce-scatter": part / span.size, "all-to-all": part}[kind]
    assert collective_s(kind, message_bytes, group) == pytest.approx(one_by_one(stage_s, chunks), rel=1e-9)


@given(groups, st.floats(1e3, 1e10))
def test_an_all_reduce_is_at_least_as_long_as_on_its_busiest_tier(group, message_bytes) -> None:
    part, busiest = message_bytes, 0.0
    for span in group:
        busiest = max(busiest, 2 * (span.size - 1) / span.size * part / span.bytes_per_s)
        part /= span.size
    found = collective_s("all-reduce", message_bytes, group)
    assert found >= busiest * (1 - 1e-12)
    assert found <= collective_s("all-reduce", message_bytes, group, chunks=1) * (1 + 1e-12)


@given(groups, st.floats(1e3, 1e10))
def test_tiers_of_one_change_nothing(group, message_bytes) -> None:
    with_ones = (Span(1, 1e9), *group, Span(1, 1e9))
    for kind in ("all-reduce", "reduce-scatter", "all-gather", "all-to-all"):
        assert collective_s(kind, message_bytes, with_ones) == pytest.approx(collective_s(kind, message_bytes, group))


def test_arrays_give_an_entry_each() -> None:
    sizes, rates = np.array([2, 8]), np.array([1e9, 2e9])
    together = collective_s("all-reduce", 1e6, (Span(sizes, rates),))
    alone = [collective_s("all-reduce", 1e6, (Span(size, rate),)) for size, rate in zip(sizes, rates, strict=True)]
    assert together.tolist() == pytest.approx(alone)


def test_the_choice_is_made_for_each_entry() -> None:
    """Of the 62 steps of a ring over 8 servers of 4, trees have 12: they are the quicker up to 2,386 MB."""
    group = (Span(4, 228e9, 6.42e-6), Span(np.array([[8], [1]]), 50e9, 14e-6))
    found = collective_s("all-reduce", np.array([1e6, 4e9]), group, algorithm="nccl")
    trees, rings = (collective_s("all-reduce", np.array([1e6, 4e9]), group, algorithm=name) for name in NCCLS)
    assert found.shape == (2, 2)
    assert found[0].tolist() == [trees[0, 0], rings[0, 1]]
    assert found[1].tolist() == rings[1].tolist()


@pytest.mark.parametrize(
    ("sizes", "tiers", "expected"),
    [
        ([128, 8], [16, 64], [[16, 8], [1, 8]]),
        ([8, 4, 2], [8, 8], [[8, 1], [1, 4], [1, 2]]),
        ([4, 4, 4], [8, 8], [[4, 1], [2, 2], [1, 4]]),
        ([8, 1, 35], [8, 35], [[8, 1], [1, 1], [1, 35]]),
    ],
)
def test_groups_take_the_innermost_tiers_first(sizes, tiers, expected) -> None:
    assert [[int(part) for part in parts] for parts in split_group(sizes, tiers)] == expected


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3), st.integers(1, 3))
def test_no_member_is_lost(sizes, number_of_tiers) -> None:
    parts = split_group(sizes, [4] * number_of_tiers)
    assert [int(np.prod(part)) for part in parts] == sizes
