"""Clusters of a line to the last digit, how tables spell what they say, and remarks on what was measured."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept_numbers import answered, assert_kept, short

from ddlsched.training.estimate import estimated_jobs, published_rows
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.collectives import Span
from ddlsched.training.estimate.design_sweep import DesignSweep, _all_axes, _divisors, _variant, best_of, design
from ddlsched.training.estimate.energy_costs import Costs, PassTimes, copies_sent, groups_of
from ddlsched.training.estimate.hardware import Machine, MemoryExpansion, clock, tiers_of_topology
from ddlsched.training.estimate.layers import Layer, LayerCollective, Operation
from ddlsched.training.estimate.models import LatentAttention, Transformer
from ddlsched.training.estimate.parallel_layout import MOST, Parallelism
from ddlsched.training.estimate.presets import (
    EFFICIENCIES,
    GPUS,
    MODELS,
    plain_name,
    preset,
    read_configuration,
    remark,
    unmodelled,
    usual_program,
)
from ddlsched.training.estimate.published_rows import is_published, read_published
from ddlsched.training.estimate.rows import COLUMNS, GPUS_PER_NODE, plans_of, predicted_rows, read_rows
from ddlsched.training.estimate.step_estimate import estimate

# ---- Clusters


def test_a_gpu_has_the_figures_of_its_sheet_to_the_last_digit() -> None:
    h100 = GPUS["h100"]
    assert (h100.name, h100.peak_flops_per_s) == ("h100", {"half": 989e12, "single": 494e12, "fp8": 1979e12})
    assert (h100.memory_bytes, h100.memory_bytes_per_s, h100.link_bytes_per_s) == (80e9, 3350e9, 450e9)
    assert (h100.host_bytes_per_s, h100.power_w, h100.price_per_hour) == (64e9, 700, 12)
    assert clock(dataclasses.replace(h100, power_w=5600.0), h100) == pytest.approx(2.0, rel=1e-12)


def test_each_field_of_a_line_changes_what_it_names() -> None:
    fields = {
        "memory_gb": ("memory_bytes", 33e9), "memory_gb_per_s": ("memory_bytes_per_s", 33e9),
        "link_gb_per_s": ("link_bytes_per_s", 33e9), "price_per_hour": ("price_per_hour", 33.0),
        "power_w": ("power_w", 33.0),
    }  # fmt: skip
    usual = parse_cluster("h100")
    assert (usual.gpus_per_node, usual.nic_gbps, usual.nodes, usual.efficiency) == (8, 3200, 0, "megatron-bridge")
    for field, (name, value) in fields.items():
        changed = parse_cluster(f"h100:{field}=33")
        assert changed == dataclasses.replace(usual, gpu=dataclasses.replace(usual.gpu, **{name: value}))
    own: dict[str, Any] = {"nodes": 3, "gpus_per_node": 3, "nic_gbps": 3.5, "taken": 0.0}
    expansion = {"expansion_gb": 2.5, "expansion_gb_per_s": 1.5, "expansion_shared_by": 4}
    line = ",".join(f"{field}={value}" for field, value in (own | expansion).items())
    assert parse_cluster(f"h100:{line}") == dataclasses.replace(usual, **own, **expansion)
    said = "cluster h100:nodes=0: nodes is '0'; expected a whole number from 1"
    assert answered(parse_cluster, "h100:nodes=0") == said
    said = "cluster h100:nic_gbps=0: nic_gbps is '0'; expected a finite number > 0"
    assert answered(parse_cluster, "h100:nic_gbps=0") == said


def test_a_cluster_is_what_its_line_says() -> None:
    machine = parse_cluster("a100-80:nodes=5,gpus_per_node=4,nic_gbps=100", efficiency="ideal").machine(16)
    assert machine.tiers == (
        Span(size=4, bytes_per_s=300e9, latency_s=6.4e-6),
        Span(size=5, bytes_per_s=3.125e9, latency_s=10e-6),
    )
    assert (machine.overhead_w, machine.power_usage_effectiveness, machine.expansion) == (400.0, 1.2, None)
    assert machine.gpu.efficiency == EFFICIENCIES["ideal"]
    assert machine.num_gpus == 20
    shares = {"megatron": (0.76, 0.8), "eager": (0.76, 0.53)}
    for name, (inside, between) in shares.items():
        found = parse_cluster("a100-80:gpus_per_node=4,nic_gbps=100", efficiency=name).machine(8)
        assert [tier.bytes_per_s for tier in found.tiers] == [300e9 * inside, 3.125e9 * between]
        assert found.gpu.efficiency == EFFICIENCIES[name]
    few = parse_cluster("a100-80").machine(3)
    assert [tier.size for tier in few.tiers] == [3, 1]
    assert few.tiers[1].bytes_per_s == pytest.approx(25e9 * 0.8)
    wide = parse_cluster("a100-80:expansion_gb=100,expansion_gb_per_s=40,expansion_shared_by=4,taken=0.5").machine(8)
    assert wide.expansion == MemoryExpansion(capacity_bytes=100e9, bytes_per_s=40e9, shared_by=4)
    assert (wide.expansion.capacity_per_gpu, wide.expansion.bytes_per_s_per_gpu) == (25e9, 10e9)
    assert wide.gpu.efficiency.taken == 0.5
    assert answered(parse_cluster("h100").machine, 9).startswith("9 GPUs do not fill nodes of 8; expected a multiple")
    assert parse_cluster("h100:nodes=2").machine(9).num_gpus == 16


def test_a_topology_keeps_the_longer_latency() -> None:
    for latency_s, expected in ((1e-6, (6.4e-6, 10e-6)), (8e-6, (6.4e-6, 16e-6))):
        topology = f"star:nic_gbps=800,latency_s={latency_s}"
        machine = parse_cluster("a100-80", topology=topology, efficiency="megatron").machine(32)
        assert [tier.latency_s for tier in machine.tiers] == pytest.approx(expected, rel=1e-12)
        assert machine.tiers[1].bytes_per_s == pytest.approx(12.5e9 * 0.8, rel=1e-12)


TOPOLOGIES = (
    ("star", 4, 8), ("leaf-spine:servers_per_leaf=2,oversubscription=3", 8, 4), ("fat-tree:k=4", 8, 2),
    ("clos:rack_oversubscription=2,pod_oversubscription=3", 32, 8),
    ("rail-clos:units_per_pod=2,oversubscription=4", 128, 8),
    ("rail-optimised:rails=4,hosts_per_unit=2", 8, 8), ("rail-only", 5, 8), ("nvl72:racks_per_block=2", 36, 4),
    ("nvl72", 37, 4), ("nvl72", 2, 8), ("nvl72", 36, 5), ("nvl72", 19, 8), ("clos", 5, 8),
    ("rail-optimised:hosts_per_domain=2,rails=4,hosts_per_unit=4,nvlink_gbps=3600", 8, 4),
    ("rail-optimised:hosts_per_domain=2,rails=4,hosts_per_unit=4,nvlink_gbps=3600,nvlink_latency_s=1e-6", 3, 4),
    ("rail-optimised:rails=8,hosts_per_unit=2,nvlink_gbps=80,latency_s=2e-6,oversubscription=2", 6, 4),
    ("double-sided", 8, 8), ("lingjun", 8, 8), ("monkeytree", 8, 8),
)  # fmt: skip


@pytest.mark.long
def test_tiers_of_topologies_are_what_they_were() -> None:
    def told(topology: str, servers: int, gpus: int) -> str:
        tiers = tiers_of_topology(topology, num_servers=servers, gpus_per_server=gpus, gpu=GPUS["gb200"])
        return "; ".join(f"{short(each.size, each.bytes_per_s, each.latency_s)} {each.carries_outer}" for each in tiers)

    assert_kept("tiers", {f"{case}": answered(told, *case) for case in TOPOLOGIES})


# ---- Groups and costs


MACHINE = Machine(
    gpu=dataclasses.replace(GPUS["a100-80"], efficiency=EFFICIENCIES["ideal"]),
    tiers=(Span(size=4, bytes_per_s=8e9), Span(size=6, bytes_per_s=1e9, latency_s=1e-3)),
)


def test_groups_of_a_layout_lie_on_tiers() -> None:
    plan = Parallelism(tensor=2, context=2, data=3, pipeline=2, expert=3, shards=2, global_batch=6)
    sizes = {name: [int(span.size) for span in spans] for name, spans in groups_of(plan, MACHINE).items()}
    assert sizes == {
        "tensor": [2, 1], "context": [2, 1], "data": [2, 3], "expert": [1, 3], "replicas": [2, 1], "shards": [2, 1],
        "mirrors": [1, 3], "pipeline": [1, 2], "world": [4, 6],
    }  # fmt: skip
    own = groups_of(dataclasses.replace(plan, own_experts=True, expert=4), MACHINE)
    assert [[int(span.size) for span in own[name]] for name in ("expert", "replicas")] == [[4, 1], [1, 3]]
    assert groups_of(plan, MACHINE)["data"][1][1:] == (1e9, 1e-3, False)


@pytest.mark.parametrize(
    ("kind", "message_bytes", "group", "copies", "efficiency", "ms"),
    [
        ("all-reduce", 8e6, "tensor", 1, {}, 1.0),  # 2 x 1/2 x 8 MB at 8 GB/s
        ("all-reduce", 8e6, "tensor", 1, {"exposed": 0.25}, 0.25),
        ("all-reduce", 8e6, "tensor", 1, {"collective_s": 3e-3}, 4.0),
        ("all-reduce", 8e6, "context", 1, {"exposed": 0.25, "collective_s": 3e-3}, 0.0),  # one GPU
        ("all-to-all", 3e6, "expert", 1, {}, 2.0 + 1.0),  # two thirds of 3 MB at 1 GB/s, and a step
        ("all-to-all", 3e6, "expert", 1, {"scattered": 0.5}, 4.0 + 1.0),
        ("all-to-all", 6e6, "expert", 2, {"scattered": 0.5}, 4.0 * (1 + 2 / 3) + 1.0),
        ("all-to-all", 3e6, "expert", 1, {"exposed": 0.25}, 2.0 + 1.0),  # it leaves the node
    ],
)
def test_a_collective_of_a_group_takes_its_time(
    kind: Any, message_bytes: float, group: Any, copies: int, efficiency: dict[str, float], ms: float
) -> None:
    plan = Parallelism(tensor=2, data=6, expert=3, pipeline=2, global_batch=6)
    own = dataclasses.replace(EFFICIENCIES["ideal"], **efficiency)
    costs = Costs(parallelism=plan, machine=MACHINE.with_efficiency(own))
    assert [int(span.size) for span in costs.groups["expert"]] == [1, 3]
    assert float(costs.group_s(kind, message_bytes, group, copies)) == pytest.approx(ms * 1e-3, rel=1e-12)


def test_gradients_inside_and_between_nodes_take_the_busiest_tier_and_a_chunk() -> None:
    costs = Costs(parallelism=Parallelism(tensor=2, data=6, pipeline=2, global_batch=6), machine=MACHINE)
    assert [int(span.size) for span in costs.groups["data"]] == [2, 3]
    inside_s, between_s = 2 * 0.5 * 8e6 / 8e9, 2 * 2 / 3 * 4e6 / 1e9
    found = costs.group_s("all-reduce", 8e6, "data")
    assert float(found) == pytest.approx(between_s + inside_s / 64 + 4e-3, rel=1e-12)


def test_a_token_goes_to_each_node_once() -> None:
    assert float(copies_sent(4, 1)) == 1.0
    assert float(copies_sent(4, 2)) == 4 * (1 - 0.75**2)
    assert float(copies_sent(1, 5)) == 1.0


def test_a_pass_adds_up_and_its_recomputation_is_its_share() -> None:
    flops = 312e12
    layers = {
        name: Layer(
            name=name, forward=(Operation(flops, 0.0),), input_gradient=(Operation(2 * flops, 0.0),),
            weight_gradient=(Operation(3 * flops, 0.0),), alternate=0.25, role=role, output_bytes=output,
            forward_collectives=(LayerCollective("all-reduce", 8e9),),
            backward_collectives=(LayerCollective("all-reduce", 40e9),),
        )
        for name, role, output in (("core", "attention", 0.0), ("product", "other", 1.0), ("norm", "other", 0.0))
    }  # fmt: skip
    again = {
        "none": (0, 0, 0), "selective": (1, 0, 0), "elementwise": (1, 0, 1), "alternate": (0.25, 0.25, 0.25),
        "full": (1, 1, 1),
    }  # fmt: skip
    for recompute, shares in again.items():
        costs = Costs(parallelism=Parallelism(tensor=2, recompute=recompute), machine=MACHINE)
        assert tuple(float(costs.again(one)) for one in layers.values()) == shares
        found = costs.part(layers.values())
        expected = PassTimes(
            forward_s=3.0, backward_s=15.0, forward_exposed_s=3.0, backward_exposed_s=6.0, again_s=float(sum(shares)),
            again_exposed_s=float(sum(shares)), weight_s=9.0,
        )  # fmt: skip
        assert {name: float(value) for name, value in vars(found).items()} == pytest.approx(vars(expected))
        whole = (float(found.compute_s), float(found.exposed_s), float(found.whole_s))
        assert whole == pytest.approx((18 + sum(shares), 9 + sum(shares), 27 + 2 * sum(shares)))
        assert float(costs.part(layers.values(), recomputed=False).again_s) == 0
    parts = Costs(parallelism=Parallelism(tensor=2, asynchronous=True), machine=MACHINE)
    found = parts.part([layers["product"]])  # half of 1 s is behind 1 s, of 5 s 1 behind 2
    assert (float(found.forward_exposed_s), float(found.backward_exposed_s)) == pytest.approx((0.5, 1.0))
    ring = Costs(parallelism=Parallelism(tensor=2, context=2, ring_attention=True), machine=MACHINE)
    assert float(ring.part([layers["core"]]).forward_exposed_s) == pytest.approx(0.5)
    assert float(ring.part([layers["product"]]).forward_exposed_s) == pytest.approx(1.0)


@pytest.mark.parametrize(("tensor", "launches_ms"), [(1, 3.0), (4, 4.0), (8, 8.0)])
def test_hosts_that_are_crowded_launch_more_slowly(tensor: int, launches_ms: float) -> None:
    """Three kernels forward and, where matrices are split, a collective; from 8 GPUs on each takes twice as long."""
    layer = Layer(
        name="a", forward=(Operation(0.0, 0.0, 3),), forward_collectives=(LayerCollective("all-reduce", 1e-9),)
    )
    own = dataclasses.replace(EFFICIENCIES["ideal"], launch_s=1e-3, crowded=2.0)
    machine = dataclasses.replace(MACHINE, tiers=(Span(size=8, bytes_per_s=1e30),)).with_efficiency(own)
    costs = Costs(parallelism=Parallelism(tensor=tensor), machine=machine)
    assert float(costs.part([layer]).forward_s) == pytest.approx(launches_ms * 1e-3)


# ---- Sweeps


def test_axes_that_are_not_given_are_all_that_divides() -> None:
    assert _divisors(12) == [1, 2, 3, 4, 6, 12]
    assert [_divisors(number) for number in (0, 1, 7, 9)] == [[], [1], [1, 7], [1, 3, 9]]
    axes = _all_axes(DesignSweep(axes={"tensor": (2,)}), MACHINE, 24, 6)
    assert {name: values.tolist() for name, values in axes.items()} == {
        "tensor": [2], "pipeline": [1, 2, 3, 4, 6, 8, 12, 24], "micro_batch": [1, 2, 3, 6], "interleave": [1],
        "expert": [1], "zero": [0], "sequence_parallel": [0], "overlap": [0], "memory_bandwidth": [1.0],
        "link_bandwidth": [1.0], "network_bandwidth": [1.0], "compute": [1.0],
    }  # fmt: skip
    assert {values.dtype.kind for name, values in axes.items() if name == "tensor"} == {"i"}
    expansion = MemoryExpansion(capacity_bytes=5e9, bytes_per_s=7e9, shared_by=2)
    more = _all_axes(DesignSweep(), dataclasses.replace(MACHINE, expansion=expansion), 24, 6)
    assert (more["expansion_gb"].tolist(), more["expansion_gb_per_s"].tolist()) == ([5.0], [7.0])
    given = _all_axes(DesignSweep(axes={"expansion_gb": (9,)}), dataclasses.replace(MACHINE, expansion=expansion), 8, 8)
    assert (given["expansion_gb"].tolist(), given["expansion_gb_per_s"].tolist()) == ([9.0], [7.0])


def test_a_variant_changes_what_its_axes_name() -> None:
    names = ("memory_bandwidth", "link_bandwidth", "network_bandwidth", "compute")
    columns = {name: np.array([factor]) for name, factor in zip(names, (2.0, 3.0, 5.0, 7.0), strict=True)}
    third = Span(size=2, bytes_per_s=0.5e9)
    found = _variant(dataclasses.replace(MACHINE, tiers=(*MACHINE.tiers, third)), columns)
    assert found.gpu.memory_bytes_per_s.tolist() == [2 * 2039e9]
    assert [tier.bytes_per_s.tolist() for tier in found.tiers] == [[24e9], [5e9], [2.5e9]]
    assert {name: peak.tolist() for name, peak in found.gpu.peak_flops_per_s.items()} == {
        "half": [7 * 312e12], "single": [7 * 156e12]
    }  # fmt: skip
    assert found.expansion is None
    shared = MemoryExpansion(capacity_bytes=1.0, bytes_per_s=1.0, shared_by=4)
    more = columns | {"expansion_gb": np.array([3.0]), "expansion_gb_per_s": np.array([2.0])}
    wider = _variant(dataclasses.replace(MACHINE, expansion=shared), more).expansion
    assert wider == MemoryExpansion(capacity_bytes=np.array([3e9]), bytes_per_s=np.array([2e9]), shared_by=4)


SMALL = Transformer(num_layers=4, hidden=64, heads=4, sequence=32, vocabulary=100)


@pytest.mark.long
def test_a_sweep_tells_the_estimate_to_the_last_digit() -> None:
    cluster = parse_cluster("a100-80:memory_gb=0.01,expansion_gb=0.001,expansion_gb_per_s=50,expansion_shared_by=2")
    sweep = DesignSweep(
        axes={"tensor": (1, 2), "pipeline": (2,), "micro_batch": (1,), "zero": (1,)}, recompute=("full",)
    )
    table = design(SMALL, cluster, num_gpus=8, global_batch=8, sweep=sweep)
    assert table["tensor"].tolist() in ([1, 2], [2, 1])
    for _, row in table.iterrows():
        plan = Parallelism(tensor=row["tensor"], pipeline=2, data=row["data"], zero=1, recompute="full", global_batch=8)
        found = estimate(SMALL, plan, cluster.machine(8))
        told = {
            "step_s": found.step_s, "mfu": found.mfu, "memory_gb": found.memory.total_bytes / 1e9,
            "missing_gb": found.missing_bytes / 1e9, "energy_j": found.energy_j, "cost": found.cost,
        }  # fmt: skip
        assert {name: row[name] for name in told} == pytest.approx(
            {n: float(v) for n, v in told.items()}, rel=1e-13, abs=0
        )
        assert row["fits"] == bool(found.fits)
    for batch in (0, MOST + 1):
        said = f"global batch is {batch}; expected a whole number from 1 to 1,000,000,000,000"
        assert answered(design, SMALL, cluster, num_gpus=8, global_batch=batch, sweep=sweep) == said


def test_a_cell_is_the_least_that_fits() -> None:
    rows = [(1, 4, 3.0, True), (1, 4, 2.0, True), (1, 4, 1.0, False), (2, 4, 9.0, False), (1, 8, 5.0, True)]
    table = pd.DataFrame(rows, columns=["tensor", "data", "step_s", "fits"]).assign(cost=range(5))
    np.testing.assert_equal(best_of(table, "tensor", "data").to_numpy(), [[2.0, 5.0], [np.nan, np.nan]])
    assert best_of(table, "tensor", "data", "cost").loc[1, 4] == 0


def test_a_scaling_curve_has_the_best_rate_of_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, Any]] = []

    def found(model: Any, plan: Any, *, num_gpus: int, global_batch: int, sweep: Any) -> pd.DataFrame:
        asked.append((num_gpus, global_batch, sweep))
        plans = {"tensor": 1, "pipeline": 2, "data": 3, "micro_batch": 4, "recompute": "full", "mfu": 0.5}
        return pd.DataFrame(
            [plans | {"step_s": 0.5, "fits": num_gpus > 1}, plans | {"step_s": 9.0, "fits": True}][num_gpus > 2 :]
        )

    monkeypatch.setattr(estimated_jobs, "design", found)
    own = DesignSweep(recompute=("none",))
    curve = estimated_jobs.scaling_curve(SMALL, parse_cluster("h100"), gpus=(2, 4), global_batches=(8, 18), sweep=own)
    names = [
        "gpus",
        "global_batch",
        "samples_per_s",
        "step_s",
        "tensor",
        "pipeline",
        "data",
        "micro_batch",
        "recompute",
    ]
    assert curve.columns.tolist() == names
    assert curve["gpus"].tolist() == [2, 2, 4, 4]
    assert curve["samples_per_s"].tolist() == [16.0, 36.0, 8 / 9, 2.0]
    assert [each[:2] for each in asked] == [(2, 8), (2, 18), (4, 8), (4, 18)]
    assert all(each[2] is own for each in asked)


# ---- Spellings


@pytest.mark.parametrize(
    ("read", "spelt", "found"),
    [
        *(("_recompute", text, "none") for text in ("", "-", "N/A", "None", "no", "False", "nan")),
        *(("_recompute", text, "full") for text in ("True", "yes", "full", "FULL")),
        ("_recompute", "Selective", "selective"),
        *(("_precision", text, "mxfp8") for text in ("MXFP8", "FP8-MX", "fp8 mx")),
        *(("_precision", text, "fp8") for text in ("FP8", "FP8-CS", "amp_fp8", "float8")),
        *(("_precision", text, "half") for text in ("BF16", "amp_bf16", "fp16", "float16")),
        ("_precision", "NVFP4", "nvfp4"),
        ("_precision", "fp32", "single"),
        ("_precision", "int8", "precision 'int8': is not known; expected bf16, fp8, mxfp8 or nvfp4"),
        ("_gpu", "NVIDIA H100 SXM 96 GB", "h100-96"),
        ("_gpu", "NVIDIA H100 SXM 80 GB", "h100"),
        ("_gpu", "A100 SXM 40", "a100-40"),
        ("_gpu", "DGX-GB300", "gb300"),
        ("_gpu", "DGX-B300", "b300"),
        ("plain_name", "Llama-3.1 8B", "llama318b"),
    ],
)
def test_what_tables_spell(read: str, spelt: str, found: str) -> None:
    assert answered(getattr(published_rows, read), spelt) == found


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("1,024", 1024), ("1_024", 1024), ("8.0", 8), ("", 5), ("-", 5), ("N/A", 5), (None, 5), ("0", 0),
     ("1000000000000", MOST), ("1000000000001", None), ("8.5", None), ("-3", None), ("many", None)],
)  # fmt: skip
def test_whole_numbers_of_tables(text: str | None, number: int | None) -> None:
    row: Any = {} if text is None else {"gpus": text}
    said = f"gpus is {text}; expected a whole number"
    assert answered(published_rows._whole, row, "gpus", 5) == (said if number is None else str(number))


def test_rates_of_tables_become_seconds() -> None:
    found = [published_rows._step_s(600.0, {"a": text}, "a") for text in ("300", "1,200", "40[^note]", " 60 ", "6e2")]
    assert found == [2.0, 0.5, 15.0, 10.0, 1.0]
    for row in ({"a": ""}, {"a": "n/a"}, {"a": "-"}, {}):
        assert math.isnan(published_rows._step_s(600.0, row, "a"))


def test_tables_are_known_by_a_column() -> None:
    for name in ("accumulation", " Release ", "LOCAL_BATCH"):
        assert is_published(["model", name])
    assert not is_published(["model", "gpus", *COLUMNS])


@pytest.mark.long
def test_a_row_keeps_why_it_cannot_be_said(tmp_path: Path) -> None:
    header = "release,model,system,gpus,precision,global_batch,micro_batch,sequence,fsdp,tensor,pipeline,context,"
    header += "virtual_pipeline,expert,tokens_per_s_per_gpu"
    rows = {
        "26.06,GLM-5,DGX-H100,8,BF16,8,1,4096,,1,1,1,,,1": "model 'GLM-5': sparse attention with an indexer are not mo",
        "26.06,ResNet-50,DGX-H100,8,BF16,8,1,4096,,1,1,1,,,1": "model 'ResNet-50': its configuration is not known; exp",
        "26.06,LLAMA3_8B,DGX-H100,8,BF16,8,2,4096,,1,1,1,,,1": "global batch 8 is not divisible by data 8 x micro-ba",
        "26.06,LLAMA3_8B,DGX-H100,8,BF16,0,1,4096,,1,1,1,,,1": "global_batch is 0; expected a whole number from 1",
        "26.06,LLAMA3_8B,DGX-H100,8,BF16,8,1,4096,,1,1,1,,,fast": "could not convert string to float: 'fast'",
        "26.06,LLAMA3_8B,DGX-H100,8,BF16,8,1,4096,,1,1,1,,,0": "float division by zero",
        "26.06,LLAMA3_8B,DGX-H100,8,BF16,8,1,4096,,1,1,1,,,1": "",
    }
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    found = read_published(path)
    assert all(one.reason.startswith(reason) for one, reason in zip(found, rows.values(), strict=True))
    assert [bool(one.reason) for one in found] == [True] * 6 + [False]
    assert [one.model is None for one in found] == [True] * 6 + [False]
    path.write_text(header.replace("system,", "") + "\n26.06,LLAMA3_8B,8,BF16,8,1,4096,,1,1,1,,,1\n")
    assert read_published(path)[0].reason == "has no value for 'system'"
    path.write_text("a,b\n1,2\n")
    said = f"{path}: is no table of published step times; expected the columns of one that is known"
    assert answered(read_published, path) == said


@pytest.mark.parametrize(
    ("release", "system", "model", "precision", "program"),
    [
        ("26.06", "DGX-GB200", "GPT OSS 120B", "MXFP8", "graphs"),
        ("26.08", "DGX-GB300", "Qwen3_30B_a3B", "MXFP8", "graphs"),
        ("26.06", "DGX-B300", "Qwen3_30B_a3B", "MXFP8", "graphs"), ("26.06", "DGX-B300", "GPT OSS 120B", "MXFP8", ""),
        ("26.04", "DGX-GB200", "GPT OSS 120B", "MXFP8", ""), ("26.06", "DGX-GB200", "GPT OSS 120B", "FP8", ""),
        ("26.06", "DGX-GB200", "LLAMA3_8B", "MXFP8", ""), ("26.06", "DGX-GB200", "Kimi K2", "MXFP8", ""),
        ("26.06", "DGX-GB200", "Nemotron_3_Nano", "MXFP8", ""), ("26.06", "DGX-B200", "Qwen3_30B_a3B", "MXFP8", ""),
    ],
)  # fmt: skip
def test_steps_in_one_graph_are_those_of_the_recipes(
    release: str, system: str, model: str, precision: str, program: str
) -> None:
    row = {"release": release, "system": system, "model": model, "precision": precision}
    found = published_rows._in_graphs(row, published_rows._model(model, 4096))
    assert found == (program == "graphs")


# ---- Configurations and remarks


SIZES = {
    "num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100, "intermediate_size": 96,
}  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_shared_experts": 3, "first_k_dense_replace": 2,
    "shared_expert_intermediate_size": 40,
}  # fmt: skip


def configured(folder: Path, **more: Any) -> Transformer:
    path = folder / "config.json"
    path.write_text(json.dumps(SIZES | more))
    return read_configuration(path, sequence=77)


def test_each_key_of_a_configuration_is_a_size_of_the_model(tmp_path: Path) -> None:
    plain = Transformer(
        num_layers=6, hidden=64, heads=8, key_value_heads=8, sequence=77, vocabulary=100, feed_forward=96, gated=True,
        biases=False, learned_positions=False, tied=False, dropout=False, fused_attention=True,
    )  # fmt: skip
    assert configured(tmp_path) == configured(tmp_path, num_local_experts=1, **EXPERTS) == plain
    mixture = dataclasses.replace(plain, experts=2, active_experts=2, expert_inner=32, shared_inner=40, dense_layers=2)
    assert configured(tmp_path, num_local_experts=2, **EXPERTS) == mixture
    more = {name: value for name, value in EXPERTS.items() if name != "shared_expert_intermediate_size"}
    shared = dataclasses.replace(mixture, shared_inner=96, experts=4)
    assert configured(tmp_path, num_experts=4, **more) == shared
    for key, value, field, found in (
        ("num_key_value_heads", 2, "key_value_heads", 2), ("head_dim", 16, "head_width", 16),
        ("attention_bias", True, "biases", True), ("tie_word_embeddings", True, "tied", True),
        ("num_nextn_predict_layers", 1, "next_tokens", 1), ("intermediate_size_mlp", 48, "feed_forward", 48),
    ):  # fmt: skip
        assert configured(tmp_path, **{key: value}) == dataclasses.replace(plain, **{field: found})
    half = {"window": 50, "windowed_share": 0.75}
    assert configured(tmp_path, attention_chunk_size=100) == dataclasses.replace(plain, **half)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    for given, share in (({}, 1.0), ({"layer_types": kinds}, 0.75), ({"use_sliding_window": True}, 1.0)):
        found = configured(tmp_path, sliding_window=9, **given)
        assert found == dataclasses.replace(plain, window=9, windowed_share=share)
    assert configured(tmp_path, sliding_window=9, use_sliding_window=False) == plain
    latent = {"kv_lora_rank": 1, "q_lora_rank": 2, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "v_head_dim": 5}
    ranks = LatentAttention(key_value_rank=1, query_rank=2, plain_width=3, rotary_width=4, value_width=5)
    assert configured(tmp_path, **latent) == dataclasses.replace(plain, latent=ranks)
    steps = {"interleave_moe_layer_step": 2, "num_experts": 8, "num_experts_per_tok": 1}
    found = configured(tmp_path, **steps)
    assert (found.dense_layers, found.shared_inner, found.expert_inner, found.active_experts) == (3, 96, 96, 1)


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [(0, True), (100_000_000, True), (100_000_001, False), (-1, False), (True, False), (2.0, False)],
)
def test_sizes_of_a_configuration_are_whole_numbers(tmp_path: Path, value: Any, is_taken: bool) -> None:
    said = answered(configured, tmp_path, head_dim=value).replace(str(tmp_path), "")
    expected = f"/config.json: head_dim is {value!r}; expected a whole number from 0 to 100,000,000"
    assert said.startswith("Transformer(") if is_taken else said == expected


REMARKS = [
    ("fsdp", "h100", "half", "llama-3-8b"), ("fsdp", "h100", "fp8", "llama-3-8b"),
    ("fsdp", "h200", "half", "llama-3-8b"),
    ("fsdp", "h100", "half", "qwen3-30b-a3b"), ("megatron-bridge", "gb300", "mxfp8", "llama-3-70b"),
    ("megatron-bridge", "gb300", "mxfp8", "qwen3-30b-a3b"), ("megatron-bridge", "gb300", "mxfp8", "mixtral-8x22b"),
    ("megatron-bridge", "gb300", "mxfp8", "qwen2.5-72b"), ("megatron-bridge", "gb300", "single", "qwen2.5-72b"),
    ("torchtitan", "h100-96", "fp8", "llama-3-8b"), ("megatron", "a100-80", "half", "gpt3-13b"),
    ("eager", "a100-40", "half", "gpt3-13b"), ("megatron", "a100-80", "single", "gpt3-13b"),
    ("megatron", "h100", "half", "gpt3-13b"), ("ideal", "a100-80", "half", "gpt3-13b"),
    ("eager", "a100-80", "half", "qwen3-30b-a3b"), ("fsdp", "h100", "half", "resnet-50"),
]  # fmt: skip


def test_remarks_say_what_was_measured() -> None:
    assert remark(*REMARKS[-1][:3], MODELS["resnet-50"]) == "no measured steps of such a model, error unknown"
    assert remark(*REMARKS[10][:3], MODELS["gpt3-13b"]) == "3 % typical error of GPT models on a100-80"
    kept = {" ".join(case): remark(*case[:3], MODELS[case[3]]) for case in REMARKS}
    kept |= {gpu: usual_program(gpu) for gpu in GPUS}
    assert_kept("remarks", kept)


def test_names_are_known_by_their_beginnings() -> None:
    assert [unmodelled(name) for name in ("DeepSeek-V4-Flash", "llama-3-8b", "Kimi Linear 48B")] == [
        "compressed sparse attention and hyper-connections are not modelled", "", "gated delta nets are not modelled"
    ]  # fmt: skip
    assert plain_name("GPT-OSS 120b!") == "gptoss120b"
    assert answered(preset, GPUS, "glm-5", "GPU").startswith("no GPU is named 'glm-5'.")
    said = "no model is named 'glm-5': sparse attention with an indexer are not modelled"
    assert answered(preset, MODELS, "glm-5", "model") == said


# ---- Rows


ROW = {
    "gpus": 16, "global_batch": 32, "micro_batch": 2, "hidden": 2048, "heads": 16, "layers": 24, "sequence": 1024,
    "tensor_parallel": 4, "data_parallel": 2, "pipeline_parallel": 2,
}  # fmt: skip


def test_a_row_is_a_model_on_nodes_of_eight() -> None:
    model, plan, machine = plans_of(ROW)
    assert (float(model.vocabulary), str(plan.recompute)) == (50_688, "full")  # a multiple of 512
    assert (plan.tensor, plan.data, plan.pipeline, plan.micro_batch, plan.global_batch) == (4, 2, 2, 2, 32)
    assert (model.num_layers, model.hidden, model.heads, model.sequence) == (24, 2048, 16, 1024)
    assert [(float(tier.size), tier.bytes_per_s, tier.latency_s) for tier in machine.tiers] == [
        (8, 228.4e9, 6.42e-6), (2, 6.402e9, 10e-6)
    ]  # fmt: skip
    model, plan, machine = plans_of(ROW | {"gpus": 8})
    assert (float(model.vocabulary), str(plan.recompute), float(machine.tiers[1].size)) == (50_257, "none", 1)
    assert [float(tier.size) for tier in plans_of(ROW | {"gpus": 4})[2].tiers] == [4, 1]
    assert GPUS_PER_NODE == 8


@pytest.mark.long
def test_predicted_rows_are_what_they_were(tmp_path: Path) -> None:
    rows = [
        ROW, ROW | {"gpus": 8, "pipeline_parallel": 1}, ROW | {"hidden": 3072, "heads": 24, "layers": 30},
        ROW | {"gpus": 64, "data_parallel": 8, "global_batch": 512}, ROW | {"hidden": 100_000_001},
        ROW | {"gpus": 12, "data_parallel": 3, "global_batch": 30, "tensor_parallel": 2},
        ROW | {"gpus": 2, "tensor_parallel": 1, "data_parallel": 1},
    ]  # fmt: skip
    path = tmp_path / "rows.csv"
    pd.DataFrame(rows).assign(iteration_ms=["500", "", "900.5", "", "1", "1", "0"]).to_csv(path, index=False)
    table = predicted_rows(path)
    assert read_rows(path).reasons.keys() == {4, 5, 6}
    assert [table["measured_step_s"][n] for n in (0, 2)] == [0.5, 0.9005]
    names = ["predicted_ms", "predicted_step_s", "predicted_memory_gb"]
    told = table[names].itertuples(index=False, name=None)
    kept = {f"{n}": f"{short(*numbers)} {table['remark'][n]}" for n, numbers in enumerate(told)}
    assert_kept("predicted-rows", kept)
