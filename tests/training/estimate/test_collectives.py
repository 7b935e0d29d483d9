"""Closed forms of collectives against hand calculation and a pipeline of chunks run one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.errors import InputError
from ddlsched.training.estimate.collectives import Span, collective_s, split_group

ALGORITHMS = ("ring", "halving-doubling", "direct")
spans = st.tuples(st.sampled_from([2, 4, 8, 16]), st.floats(1e9, 1e12)).map(lambda pair: Span(*pair))
groups = st.lists(spans, min_size=1, max_size=4).map(tuple)


def test_ring_all_reduce_by_hand() -> None:
    """8 GPUs, 8 MB, 1 GB/s, 1 us a step: 2 x 7/8 x 8 MB / 1 GB/s + 14 us."""
    group = (Span(8, 1e9, 1e-6),)
    assert collective_s("all-reduce", 8e6, group) == pytest.approx(14e-3 + 14e-6)
    assert collective_s("reduce-scatter", 8e6, group) == pytest.approx(7e-3 + 7e-6)
    assert collective_s("all-gather", 1e6, group) == pytest.approx(7e-3 + 7e-6)


def test_algorithms_differ_in_steps_and_for_all_to_all_in_bytes() -> None:
    group = (Span(8, 1e9, 1e-6),)
    latency_us = [1e6 * collective_s("all-reduce", 0.0, group, algorithm=name) for name in ALGORITHMS]
    assert latency_us == pytest.approx([14, 6, 2])
    quick = (Span(8, 1e9),)
    exchange_ms = [1e3 * collective_s("all-to-all", 8e6, quick, algorithm=name) for name in ALGORITHMS]
    assert exchange_ms == pytest.approx([28, 12, 7])


def test_unknown_algorithm() -> None:
    with pytest.raises(InputError, match="no collective is named 'tree'"):
        collective_s("all-reduce", 1.0, (Span(2, 1.0),), algorithm="tree")
    known = "expected one of direct, halving-doubling, hierarchical, ring"
    for algorithm, lacks in (
        ("in-network", "all-gather, reduce-scatter"),
        ("double-binary-tree", "all-gather, reduce-scatter"),
        ("nccl:switches=inside", "round_on: bytes and steps that are the same for any size of message"),
    ):
        with pytest.raises(InputError, match=f"collective {algorithm}: an estimate needs its {lacks}; {known}"):
            collective_s("all-reduce", 1.0, (Span(2, 1.0),), algorithm=algorithm)


def test_hierarchical_is_a_ring_on_each_tier_and_straight_where_each_has_its_own() -> None:
    group = (Span(4, 4e9, 1e-6), Span(3, 1e9, 5e-6))
    for kind, same in (("all-reduce", "ring"), ("all-gather", "ring"), ("all-to-all", "direct")):
        assert collective_s(kind, 8e6, group, algorithm="hierarchical") == collective_s(
            kind, 8e6, group, algorithm=same
        )


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
        moved = (span.size - 1) / 2 if kind == "all-to-all" else (span.size - 1) / span.size
        stage_s.append(moved * buffer / span.bytes_per_s / chunks)
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
