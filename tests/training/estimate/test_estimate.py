"""The estimate: its parts by hand, its limits, and that arrays give the same as single numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.collectives import Span, collective_s
from ddlsched.training.estimate.hardware import Efficiency, Gpu, Machine, MemoryExpansion, operations_s
from ddlsched.training.estimate.layers import Operation
from ddlsched.training.estimate.models import Transformer, forward_flops_per_sample, parameters
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import (
    OPTIMISER_TRAFFIC_BYTES,
    Estimate,
    LayerTimes,
    estimate,
    layerwise_step,
)

GPT = Transformer(num_layers=8, hidden=1024, heads=16, sequence=512, vocabulary=32_000)
FAST_MEMORY = Gpu(
    name="compute only",
    peak_flops_per_s={"half": 1e14},
    memory_bytes=80e9,
    memory_bytes_per_s=1e30,
    link_bytes_per_s=1e30,
    power_w=500.0,
    price_per_hour=3.6,
)


def machine(*sizes: int, gpu: Gpu = FAST_MEMORY, rate: float = 1e30) -> Machine:
    return Machine(gpu=gpu, tiers=tuple(Span(size=size, bytes_per_s=rate) for size in sizes))


def parts(found: Estimate) -> float:
    names = ("compute_s", "tensor_s", "pipeline_s", "bubble_s", "data_s", "optimiser_s", "offload_s")
    return sum(float(getattr(found, name)) for name in names)


# ---- Operations


def test_roofline() -> None:
    gpu = Gpu(name="", peak_flops_per_s={"half": 1e14}, memory_bytes=1, memory_bytes_per_s=1e12, link_bytes_per_s=1)
    assert operations_s(Operation(1e14, 1e9), gpu) == pytest.approx(1.0)
    assert operations_s(Operation(1e10, 1e12), gpu) == pytest.approx(1.0)


def test_efficiency() -> None:
    gpu = dataclasses.replace(
        FAST_MEMORY,
        memory_bytes_per_s=1e12,
        efficiency=Efficiency(matrix=0.5, half_flops=1e9, memory=0.8, kernel_s=1e-6),
    )
    assert operations_s(Operation(1e9, 0.0), gpu) == pytest.approx(4e-5)  # half of half the peak
    assert operations_s(Operation(0.0, 8e8), gpu) == pytest.approx(1e-3)
    assert operations_s(Operation(0.0, 1.0, kernels=3), gpu) == pytest.approx(3e-6)


# ---- Computation and memory alone


def test_a_step_that_only_computes_has_full_utilisation() -> None:
    found = estimate(GPT, Parallelism(micro_batch=2, global_batch=8), machine(1))
    assert found.step_s == pytest.approx(3 * forward_flops_per_sample(GPT) * 8 / 1e14)
    assert found.mfu == pytest.approx(1.0)


def test_full_recomputation_runs_the_blocks_again() -> None:
    plain, again = (estimate(GPT, Parallelism(recompute=kind), machine(1)).compute_s for kind in ("none", "full"))
    block = sum(op.flops for layer in GPT.layers(Parallelism()).block for op in layer.forward)
    assert again - plain == pytest.approx(8 * block / 1e14)


def test_selective_recomputation_runs_only_the_attention_again() -> None:
    times = [estimate(GPT, Parallelism(recompute=kind), machine(1)).compute_s for kind in ("none", "selective", "full")]
    core = 8 * 2 * (2 * 512 * 512 * 1024) / 1e14
    assert times[1] - times[0] == pytest.approx(core)
    assert times[1] < times[2]


def test_the_optimiser_moves_its_states_once() -> None:
    gpu = dataclasses.replace(FAST_MEMORY, memory_bytes_per_s=1e12)
    whole = estimate(GPT, Parallelism(), machine(1, gpu=gpu)).optimiser_s
    assert whole == pytest.approx(OPTIMISER_TRAFFIC_BYTES * float(parameters(GPT)) / 1e12)
    spread = estimate(GPT, Parallelism(data=4, global_batch=4, zero=1), machine(4, gpu=gpu)).optimiser_s
    assert spread == pytest.approx(whole / 4)


def test_energy_and_cost_of_a_step() -> None:
    cluster = dataclasses.replace(machine(4), overhead_w=100.0, power_usage_effectiveness=1.5)
    found = estimate(GPT, Parallelism(data=4, global_batch=4), cluster)
    assert found.energy_j == pytest.approx(4 * (500 + 100) * 1.5 * found.step_s)
    assert found.cost == pytest.approx(4 * 3.6 / 3600 * found.step_s)


# ---- Pipeline


@pytest.mark.long
@given(st.sampled_from([2, 4, 8]), st.integers(1, 16))
def test_the_bubble_of_equal_stages(stages, count) -> None:
    """(p - 1) / m of the time of the micro-batches, but for the first and last layers."""
    thin = dataclasses.replace(GPT, vocabulary=0)
    found = estimate(thin, Parallelism(pipeline=stages, global_batch=count), machine(stages))
    assert found.bubble_s / found.compute_s == pytest.approx((stages - 1) / count, rel=1e-9)


def test_interleaving_divides_the_bubble() -> None:
    plain, chunks = (
        estimate(GPT, Parallelism(pipeline=4, global_batch=8, interleave=count), machine(4)) for count in (1, 2)
    )
    assert chunks.bubble_s == pytest.approx(plain.bubble_s / 2)


def test_sends_between_stages_by_hand() -> None:
    found = estimate(GPT, Parallelism(pipeline=2, global_batch=4), machine(1, 2, rate=1e9))
    send_s = 2 * 512 * 1024 / 1e9
    assert found.pipeline_s == pytest.approx(4 * 2 * send_s)


@pytest.mark.long
@given(st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
def test_the_critical_path_of_a_pipeline_run_one_by_one(count, stages) -> None:
    """Forward and backward as one visit: a permutation flow shop whose stages differ."""
    plan = Parallelism(pipeline=stages, global_batch=count)
    layers = GPT.layers(plan)

    def work_s(part) -> float:
        return 3 * sum(op.flops for layer in part for op in layer.forward) / 1e14

    stage_s = [8 / stages * work_s(layers.block)] * stages
    stage_s[0] += work_s(layers.first)
    stage_s[-1] += work_s(layers.last)
    free = [0.0] * stages
    for _ in range(count):
        end = 0.0
        for number, seconds in enumerate(stage_s):
            end = free[number] = max(end, free[number]) + seconds
    assert estimate(GPT, plan, machine(stages)).step_s == pytest.approx(end)


# ---- Communication


def test_tensor_collectives_by_hand() -> None:
    """Two all-reduces forward and two backward in a block, the latter behind the weight gradients."""
    one = dataclasses.replace(GPT, num_layers=1, vocabulary=0)
    found = estimate(one, Parallelism(tensor=4), machine(4, rate=1e9))
    group = (Span(4, 1e9),)
    each_s = collective_s("all-reduce", 2 * 512 * 1024, group)
    weight_s = {layer.name: layer.weight_gradient for layer in one.layers(Parallelism(tensor=4)).block}
    hidden_s = sum(weight_s[name][0].flops for name in ("qkv", "feed-forward in")) / 1e14
    # Beside the block's four: the embedding's forward, and the output layer's backward, which has no width here.
    assert found.tensor_s == pytest.approx(6 * each_s - hidden_s)


def test_sequence_parallelism_sends_as_much_forward() -> None:
    plans = [Parallelism(tensor=8, sequence_parallel=flag) for flag in (False, True)]
    costs = [estimate(GPT, plan, machine(8, rate=1e9)) for plan in plans]
    assert costs[1].forward_s == pytest.approx(costs[0].forward_s, rel=1e-6)
    assert costs[1].tensor_s > costs[0].tensor_s  # the input is gathered once more for the weight gradient


def test_gradients_by_hand_and_hidden_by_overlap() -> None:
    plan = Parallelism(data=4, global_batch=4)
    cluster = machine(4, rate=1e10)
    expected = collective_s("all-reduce", 2 * float(parameters(GPT)), (Span(4, 1e10),))
    found = estimate(GPT, plan, cluster)
    assert found.data_s == pytest.approx(expected)
    hidden = estimate(GPT, dataclasses.replace(plan, overlap=True), cluster)
    assert hidden.data_s == pytest.approx(max(0.0, expected - float(found.backward_s)))


@pytest.mark.parametrize(("zero", "passes"), [(0, 1), (1, 1), (2, 4), (3, 4)])
def test_zero_2_and_3_overlap_with_every_backward(zero, passes) -> None:
    plan, cluster = Parallelism(data=4, global_batch=16, zero=zero), machine(4, rate=1e10)
    found = estimate(GPT, plan, cluster)
    hidden = estimate(GPT, dataclasses.replace(plan, overlap=True), cluster)
    assert found.data_s - hidden.data_s == pytest.approx(passes * float(found.backward_s) / 4)


def test_an_all_to_all_is_direct_whatever_the_other_collectives_are() -> None:
    """Each of 8 GPUs keeps an eighth of its tokens' vectors and sends the rest once; four times a block and pass."""
    mixture = dataclasses.replace(GPT, experts=8, active_experts=2)
    plan = Parallelism(data=8, expert=8, global_batch=8)
    for algorithm in ("ring", "halving-doubling", "direct"):
        found = estimate(mixture, plan, machine(8, rate=1e8), algorithm=algorithm)
        one_s = 7 / 8 * (2 * 512 * 2 * 1024) / 1e8
        weights_s = sum(operation.flops for operation in _experts_weights(mixture, plan)) / 1e14
        assert found.tensor_s == pytest.approx(8 * (4 * one_s - weights_s))


def _experts_weights(mixture: Transformer, plan: Parallelism) -> list[Operation]:
    return [part for layer in mixture.layers(plan).block if "experts" in layer.name for part in layer.weight_gradient]


def test_the_optimiser_of_experts_is_spread_over_their_copies() -> None:
    mixture = dataclasses.replace(GPT, experts=8, active_experts=2)
    gpu = dataclasses.replace(FAST_MEMORY, memory_bytes_per_s=1e12)
    plans = [Parallelism(data=8, expert=8, global_batch=8, zero=zero) for zero in (0, 1)]
    plain, spread = (estimate(mixture, plan, machine(8, gpu=gpu)) for plan in plans)
    states = plain.memory.optimiser_bytes / spread.memory.optimiser_bytes
    assert plain.optimiser_s / spread.optimiser_s == pytest.approx(states)


@pytest.mark.parametrize(("zero", "rounds"), [(0, 1.0), (1, 1.0), (2, 2.5), (3, 6.0)])
def test_zero_sends_more_often(zero, rounds) -> None:
    found, plain = (
        estimate(GPT, Parallelism(data=4, global_batch=16, zero=stage), machine(4, rate=1e10)) for stage in (zero, 0)
    )
    assert found.data_s == pytest.approx(rounds * plain.data_s)


def test_experts_are_reduced_among_their_copies_only() -> None:
    mixture = dataclasses.replace(GPT, experts=8, active_experts=2)
    together, apart = (
        estimate(mixture, Parallelism(data=8, expert=count, global_batch=8), machine(8, rate=1e9)) for count in (1, 8)
    )
    assert apart.data_s < together.data_s / 4
    assert apart.tensor_s > together.tensor_s == 0  # tokens travel to their experts


# ---- Memory expansion


def test_expansion_blends_bandwidths_by_time() -> None:
    gpu = dataclasses.replace(FAST_MEMORY, peak_flops_per_s={"half": 1e30}, memory_bytes_per_s=1e12)
    need = float(estimate(GPT, Parallelism(), machine(1, gpu=gpu)).memory.total_bytes)
    small = dataclasses.replace(gpu, memory_bytes=0.75 * need)
    expansion = MemoryExpansion(capacity_bytes=need, bytes_per_s=1e11)
    cluster = dataclasses.replace(machine(1, gpu=small), expansion=expansion)
    plain, found = estimate(GPT, Parallelism(), machine(1, gpu=small)), estimate(GPT, Parallelism(), cluster)
    assert (bool(plain.fits), bool(found.fits)) == (False, True)
    assert plain.missing_bytes == pytest.approx(0.25 * need)
    assert found.step_s / plain.step_s == pytest.approx(0.75 + 0.25 * 10)
    assert found.offload_s == pytest.approx(found.step_s - plain.step_s)


def test_expansion_that_is_not_needed_changes_nothing() -> None:
    expansion = MemoryExpansion(capacity_bytes=1e12, bytes_per_s=1e9, shared_by=8)
    with_it = dataclasses.replace(machine(1), expansion=expansion)
    assert estimate(GPT, Parallelism(), with_it).step_s == estimate(GPT, Parallelism(), machine(1)).step_s
    assert (expansion.capacity_per_gpu, expansion.bytes_per_s_per_gpu) == (1.25e11, 1.25e8)


# ---- As a whole

plans = st.builds(
    Parallelism,
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 4]),
    micro_batch=st.sampled_from([1, 2]),
    global_batch=st.just(64),
    zero=st.sampled_from([0, 1, 2, 3]),
    sequence_parallel=st.booleans(),
    overlap=st.booleans(),
)


@pytest.mark.long
@given(st.lists(plans, min_size=2, max_size=5))
def test_arrays_give_what_single_estimates_give(chosen) -> None:
    cluster = parse_cluster("a100-80:nodes=8,expansion_gb=100,expansion_gb_per_s=50").machine(64)
    names = ("tensor", "pipeline", "data", "micro_batch", "zero", "sequence_parallel", "overlap")
    columns = {name: np.array([getattr(plan, name) for plan in chosen]) for name in names}
    together = estimate(GPT, Parallelism(**columns, global_batch=64), cluster)
    for number, plan in enumerate(chosen):
        alone = estimate(GPT, plan, cluster)
        assert float(np.broadcast_to(together.step_s, len(chosen))[number]) == pytest.approx(float(alone.step_s))
        memory = np.broadcast_to(together.memory.total_bytes, len(chosen))[number]
        assert float(memory) == pytest.approx(float(alone.memory.total_bytes))


@pytest.mark.long
@given(plans)
def test_parts_are_not_negative_and_add_up(plan) -> None:
    found = estimate(GPT, plan, parse_cluster("h100:nodes=8").machine(64))
    assert parts(found) == pytest.approx(float(found.step_s))
    assert min(found.compute_s, found.tensor_s, found.pipeline_s, found.bubble_s, found.data_s, found.optimiser_s) >= 0
    assert 0 < float(found.mfu) < 1


@pytest.mark.long
@given(plans, st.sampled_from(["memory_gb_per_s", "link_gb_per_s", "nic_gbps"]))
def test_better_hardware_is_never_slower(plan, field) -> None:
    slow, fast = (parse_cluster(f"a100-80:nodes=8,{field}={value}").machine(64) for value in (100, 1000))
    assert float(estimate(GPT, plan, fast).step_s) <= float(estimate(GPT, plan, slow).step_s) * (1 + 1e-12)


def test_what_hides_takes_the_given_share_of_its_time() -> None:
    """Of 0 it costs nothing, of 1 as if nothing hid it, between in proportion; without, the program's share counts."""
    plan = Parallelism(tensor=4, data=16, micro_batch=1, global_batch=16, overlap=True)
    lines = ("h100:taken=0", "h100:taken=0.25", "h100:taken=1", "h100")
    machines = [parse_cluster(line, efficiency="fsdp").machine(64) for line in lines]
    none_s, quarter_s, all_s, usual_s = (float(estimate(GPT, plan, machine).data_s) for machine in machines)
    open_s = float(estimate(GPT, dataclasses.replace(plan, overlap=False), machines[0]).data_s)
    assert none_s == 0 < open_s
    assert (all_s, quarter_s, usual_s) == pytest.approx((open_s, 0.25 * open_s, 0.589 * open_s))


# ---- Models without blocks


def test_an_all_to_all_is_awaited_where_it_is_needed() -> None:
    """The lookup's exchange (5 s) runs behind the bottom MLP (2 s): 3 s show, both ways."""
    layers = [
        LayerTimes(
            name="lookup", forward_s=1, input_gradient_s=1, weight_gradient_s=0, forward_collective_s=5,
            input_gradient_collective_s=5, awaited_before="top",
        ),
        LayerTimes(name="bottom", forward_s=2, input_gradient_s=1, weight_gradient_s=1),
        LayerTimes(name="top", forward_s=1, input_gradient_s=1, weight_gradient_s=1),
    ]  # fmt: skip
    step = layerwise_step(layers)
    assert (step.exposed_forward_s, step.exposed_input_gradient_s) == (3, 3)
    assert step.step_s == 4 + 5 + 3 + 3


def test_weight_gradients_go_over_the_network_one_after_the_other() -> None:
    layer = {"forward_s": 0, "input_gradient_s": 1, "weight_gradient_s": 1, "weight_gradient_collective_s": 3}
    step = layerwise_step([LayerTimes(name=name, **layer) for name in "ab"])
    assert step.exposed_weight_gradient_s == 2 + 3 + 3 - 4


@pytest.mark.parametrize("name", ["resnet-50", "vgg-16", "inception-v3", "lstm-ptb", "dlrm-1.2t"])
def test_data_parallel_models(name) -> None:
    plan = Parallelism(data=16, micro_batch=32, global_batch=1024)
    cluster = parse_cluster("v100").machine(16)
    exposed, hidden = (
        estimate(MODELS[name], dataclasses.replace(plan, overlap=flag), cluster) for flag in (False, True)
    )
    assert 0 <= hidden.data_s < exposed.data_s
    assert (
        hidden.compute_s
        == exposed.compute_s
        == 2 * estimate(MODELS[name], dataclasses.replace(plan, global_batch=512), cluster).compute_s
    )
