"""Sweeps: all that is valid and nothing else, as single estimates give it; fronts and cells."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import tried

from ddlsched.errors import InputError
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.design_sweep import DesignSweep, _variant, best_of, design, pareto_front
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked

GPT = Transformer(num_layers=6, hidden=768, heads=12, sequence=512, vocabulary=32_000)
PLAN = parse_cluster("a100-80")


@pytest.mark.long
def test_every_valid_combination_and_no_other() -> None:
    sweep = DesignSweep(axes={"pipeline": range(1, 9)}, recompute=("none",))
    table = design(GPT, PLAN, num_gpus=8, global_batch=8, sweep=sweep)
    found = set(table[["tensor", "pipeline", "data", "micro_batch"]].itertuples(index=False, name=None))
    machine, expected = PLAN.machine(8), set()
    for tensor, pipeline, data, micro in itertools.product((1, 2, 3, 4, 5, 8), repeat=4):
        try:
            plan = Parallelism(tensor=tensor, pipeline=pipeline, data=data, micro_batch=micro, global_batch=8)
            estimate_checked(GPT, plan, machine)
        except InputError:
            continue
        expected.add((tensor, pipeline, data, micro))
    assert found == expected
    assert len(table) == len(found)


@pytest.mark.long
def test_each_row_is_the_single_estimate() -> None:
    sweep = DesignSweep(axes={"zero": (0, 1, 3), "sequence_parallel": (0, 1), "overlap": (0, 1)})
    table = design(GPT, PLAN, num_gpus=16, global_batch=32, sweep=sweep)
    for _, row in table.sample(30, random_state=1).iterrows():
        names = ("tensor", "pipeline", "data", "micro_batch", "zero")
        flags = {name: bool(row[name]) for name in ("sequence_parallel", "overlap")}
        numbers = {name: int(row[name]) for name in names}
        plan = Parallelism(**numbers, **flags, global_batch=32, recompute=row["recompute"])
        found = estimate_checked(GPT, plan, PLAN.machine(16))
        assert row["step_s"] == pytest.approx(float(found.step_s))
        assert row["memory_gb"] == pytest.approx(float(found.memory.total_bytes) / 1e9)
        assert row["cost"] == pytest.approx(float(found.cost))


def test_what_fits_comes_first_and_the_fastest_of_it() -> None:
    plan = parse_cluster("a100-80:memory_gb=2")
    table = design(GPT, plan, num_gpus=8, global_batch=64, sweep=DesignSweep())
    assert 0 < table["fits"].sum() < len(table)
    assert table["fits"].is_monotonic_decreasing
    assert table[table["fits"]]["step_s"].is_monotonic_increasing
    assert (table["missing_gb"] > 0).eq(~table["fits"]).all()


@pytest.mark.long
def test_variants_of_the_cluster() -> None:
    axes = {"memory_bandwidth": (0.5, 1.0, 2.0), "network_bandwidth": (0.5, 1.0), "tensor": (2,)}
    table = design(GPT, PLAN, num_gpus=16, global_batch=16, sweep=DesignSweep(axes=axes))
    one = design(GPT, PLAN, num_gpus=16, global_batch=16, sweep=DesignSweep(axes={"tensor": (2,)}))
    assert len(table) == 6 * len(one)
    cells = best_of(table, "memory_bandwidth", "network_bandwidth")
    assert cells.index.tolist() == [0.5, 1, 2]
    assert (np.diff(cells.to_numpy(), axis=0) < 0).all()
    assert cells.loc[1.0, 1.0] == one["step_s"].min()


def test_an_expansion_moves_as_many_bytes_as_its_axis_says() -> None:
    ones = dict.fromkeys(("memory_bandwidth", "compute", "link_bandwidth", "network_bandwidth"), np.ones(1))
    axes = {"expansion_gb": np.array([100.0]), "expansion_gb_per_s": np.array([50.0])}
    found = _variant(PLAN.machine(8), ones | axes).expansion
    assert found is not None
    assert (found.capacity_bytes, found.bytes_per_s, found.shared_by) == (100e9, 50e9, 1)


@pytest.mark.long
def test_expansion_lets_fit_what_did_not() -> None:
    small = parse_cluster("a100-80:memory_gb=1")
    axes = {"expansion_gb": (100,), "expansion_gb_per_s": (50, 500)}
    none = design(GPT, small, num_gpus=8, global_batch=8, sweep=DesignSweep(axes={"zero": (0,)}))
    more = design(GPT, small, num_gpus=8, global_batch=8, sweep=DesignSweep(axes=axes))
    assert more["fits"].all()
    assert not none["fits"].all()
    cells = best_of(more, "tensor", "expansion_gb_per_s")
    assert (cells[500.0] <= cells[50.0]).all()


def test_nothing_valid_is_an_empty_table() -> None:
    table = design(GPT, PLAN, num_gpus=8, global_batch=8, sweep=DesignSweep(axes={"tensor": (8,)}))
    assert len(table) == 0
    assert "step_s" in table


@pytest.mark.long
def test_models_without_blocks_can_be_swept() -> None:
    table = design(MODELS["resnet-50"], parse_cluster("v100"), num_gpus=16, global_batch=512, sweep=DesignSweep())
    assert set(table["data"]) == {16}
    assert set(table["recompute"]) == {"none"}


def test_refused_axes() -> None:
    with pytest.raises(InputError, match="'tensr' is no axis; expected one of tensor, "):
        DesignSweep(axes={"tensr": (1,)})
    with pytest.raises(InputError, match="tensor has no values"):
        DesignSweep(axes={"tensor": ()})
    with pytest.raises(InputError, match="expected both or neither"):
        design(GPT, PLAN, num_gpus=8, global_batch=8, sweep=DesignSweep(axes={"expansion_gb": (1,)}))


@pytest.mark.slow
def test_a_hundred_thousand_configurations_in_seconds() -> None:
    factors = tuple(np.linspace(0.5, 2.0, 10))
    axes = {"memory_bandwidth": factors, "network_bandwidth": factors, "sequence_parallel": (0, 1)}
    begin_s = time.process_time()  # of this process, on a machine that does other things too
    plan = parse_cluster("h100")
    table = design(MODELS["megatron-175b"], plan, num_gpus=512, global_batch=1536, sweep=DesignSweep(axes=axes))
    took_s = time.process_time() - begin_s
    one = design(MODELS["megatron-175b"], plan, num_gpus=512, global_batch=1536, sweep=DesignSweep())
    # Every plan on each of 10 x 10 clusters; sequence parallelism divides 2,048 tokens by every tensor that divides 96.
    assert len(table) == 200 * len(one) - 100 * int((2048 % one["tensor"] != 0).sum())
    assert len(table) > 100_000
    assert took_s < 10


@pytest.mark.long
@pytest.mark.parametrize("size", tried([1, 7, 10_000], lambda place: place > 0))
def test_configurations_that_threads_take_together_are_all_there(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    sweep = DesignSweep(axes={"memory_bandwidth": (0.5, 1.0)})
    whole = design(GPT, PLAN, num_gpus=8, global_batch=8, sweep=sweep)
    monkeypatch.setattr("ddlsched.training.estimate.design_sweep._CHUNK", size)
    pd.testing.assert_frame_equal(design(GPT, PLAN, num_gpus=8, global_batch=8, sweep=sweep), whole)


def test_a_cluster_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="the cluster has 32 GPUs; expected the 64 to try"):
        design(GPT, parse_cluster("h100:nodes=4"), num_gpus=64, global_batch=64, sweep=DesignSweep())


def test_too_many_combinations_are_refused() -> None:
    axes = {name: tuple(np.linspace(0.5, 2, 100)) for name in ("memory_bandwidth", "network_bandwidth", "compute")}
    with pytest.raises(InputError, match="combinations; expected at most 50,000,000"):
        design(GPT, PLAN, num_gpus=64, global_batch=64, sweep=DesignSweep(axes=axes))


points = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30)


@given(points)
def test_the_front_is_what_nothing_beats(pairs) -> None:
    times, costs = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    front = pareto_front(times, costs).tolist()
    best = {(t, c) for t, c in pairs if not any(a <= t and b <= c and (a, b) != (t, c) for a, b in pairs)}
    assert {pairs[number] for number in front} == best
    assert len(front) == len(best)
