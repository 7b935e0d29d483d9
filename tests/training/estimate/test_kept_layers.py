"""Layers of small models in layouts that change them, their memory, and what products of every kind take."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from kept_numbers import answered, assert_kept, digest, short

from ddlsched.errors import InputError
from ddlsched.training.estimate import RECOMPUTE, Widths
from ddlsched.training.estimate.hardware import Efficiency, Gpu, operations_s
from ddlsched.training.estimate.layers import Layer, LayerCollective, Operation, matrix_product
from ddlsched.training.estimate.memory import memory_per_gpu, offloaded_bytes, stage_parameters
from ddlsched.training.estimate.models import LatentAttention, Model, StateSpace, Transformer
from ddlsched.training.estimate.parallel_layout import MOST, Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.small_models import Cnn, Convolution, Dlrm, Lstm
from ddlsched.training.estimate.step_estimate import LayerTimes, layerwise_step

SMALL = Transformer(num_layers=6, hidden=48, heads=6, sequence=1280, vocabulary=1002)
BARE: dict[str, Any] = {"biases": False, "learned_positions": False, "dropout": False, "fused_attention": True}
MIXTURE = BARE | {"experts": 4, "active_experts": 2, "gated": True}
SPLIT = Parallelism(tensor=2, sequence_parallel=True, micro_batch=3, global_batch=3)
EXPERTS = Parallelism(data=4, expert=2, tensor=2, global_batch=4)
TRANSFORMERS: dict[str, tuple[dict[str, Any], Parallelism]] = {
    "plain": ({}, Parallelism(micro_batch=2, global_batch=2)),
    "plain, split": ({}, SPLIT),
    "whole inputs": ({}, dataclasses.replace(SPLIT, widths=Widths(logit=14, whole_inputs=True))),
    "no dropout": ({"dropout": False, "feed_forward": 100}, Parallelism(tensor=2)),
    "untied": ({"tied": False, "gated": True}, Parallelism(tensor=2)),
    "tied in stages": ({}, Parallelism(pipeline=2, global_batch=2)),
    "fused": (BARE | {"key_value_heads": 2}, Parallelism(context=4, tensor=2)),
    "window": (BARE | {"window": 100, "windowed_share": 0.75}, Parallelism()),
    "long window": (BARE | {"window": 500, "windowed_share": 0.75}, Parallelism()),
    "wide heads": (BARE | {"head_width": 16, "key_value_heads": 3}, Parallelism()),
    "latent": (BARE | {"latent": LatentAttention(query_rank=24)}, SPLIT),
    "experts": (MIXTURE, EXPERTS),
    "own experts": (MIXTURE | {"biases": True}, dataclasses.replace(EXPERTS, own_experts=True, expert_skew=1.5)),
    "split experts": (MIXTURE, dataclasses.replace(EXPERTS, sequence_parallel=True)),
    "shared expert": (MIXTURE | {"expert_inner": 30, "shared_inner": 20, "dense_layers": 2}, EXPERTS),
    "latent experts": (MIXTURE | {"expert_hidden": 16, "next_tokens": 2}, dataclasses.replace(SPLIT, expert=1)),
    "hybrid": (
        BARE
        | {
            "scan": StateSpace(num_layers=2, heads=4, head_width=12, state=8, groups=2),
            "attention_layers": 1,
            "next_tokens": 1,
        },
        SPLIT,
    ),
}
OTHERS: dict[str, tuple[Model, Parallelism]] = {
    "convolutions": (
        Cnn(convolutions=(Convolution(3, 8, (3, 5), 6), Convolution(8, 10, (1, 1), 1, norm=False))),
        Parallelism(micro_batch=2, global_batch=2),
    ),
    "recurrent": (
        Lstm(num_layers=2, hidden=10, vocabulary=70, sequence=7),
        Parallelism(micro_batch=3, global_batch=3),
    ),
    "tables": (
        Dlrm(tables=5, rows=100, dimension=8, lookups=3, dense_features=13, bottom=(16, 8), top=(20, 1)),
        Parallelism(data=4, micro_batch=6, global_batch=24),
    ),
}


def sent(collectives: Iterable[LayerCollective]) -> str:
    told = [
        f"{kind} {short(size)} {group} {short(copies)}" for kind, size, group, copies in collectives if np.any(size)
    ]
    return ", ".join(told) or "-"


def told(layer: Layer) -> str:
    """Kept bytes, parameters, what is done forward and sent to read; all else so that a digit that changes is seen."""
    passes = (layer.forward, layer.input_gradient, layer.weight_gradient)
    work = [
        [(short(one.flops, one.traffic_bytes, one.kernels, one.odd, one.rows), one.work) for one in operations]
        for operations in passes
    ]
    beside = short(layer.expert_parameters, layer.table_parameters, layer.output_bytes, layer.alternate)
    first = short(layer.activation_bytes, layer.parameters, sum(one.flops for one in layer.forward))
    ways = sent(layer.forward_collectives), sent(layer.backward_collectives)
    return f"{first}; {ways[0]}; {digest([*work, beside, layer.role, layer.awaited_before, ways[1]])}"


def test_layers_of_small_models_are_what_they_were() -> None:
    cases: dict[str, tuple[Model, Parallelism]] = {
        name: (dataclasses.replace(SMALL, **sizes), plan) for name, (sizes, plan) in TRANSFORMERS.items()
    }
    kept: dict[str, str] = {}
    for name, (model, plan) in (cases | OTHERS).items():
        layers = model.layers(plan)
        kept[name] = f"{short(layers.num_blocks)} {model.samples_are}"
        for part in ("first", "block", "last"):
            kept |= {f"{name}: {part} {each.name} {n}": told(each) for n, each in enumerate(getattr(layers, part))}
    assert_kept("layers", kept)


def test_a_product_counts_two_operations_a_number_and_moves_each_number_once() -> None:
    """Y (5 x 3) = X (5 x 7) W (7 x 3), four times, of two bytes a number."""
    layer = matrix_product("y", 5, 7, 3, batch=4, bias=11)
    assert layer.forward == layer.input_gradient == layer.weight_gradient
    assert layer.forward == (Operation(2 * 4 * 5 * 7 * 3, 2 * 4 * (35 + 21 + 15), rows=5),)
    assert (layer.parameters, layer.activation_bytes, layer.output_bytes) == (4 * 21 + 11, 2 * 4 * 35, 2 * 4 * 15)
    product = matrix_product("y", 5, 7, 3, weights=False, bias=11, activation_bytes=9, output_shards=5)
    assert (product.parameters, product.activation_bytes, product.output_bytes) == (0, 9, 6)
    half = layer.times(0.5)
    assert (half.parameters, half.activation_bytes, half.output_bytes) == (47.5, 140, 60)
    assert half.forward == (Operation(420, 284, 0.5, rows=5),)


def test_memory_of_layouts_is_what_it_was() -> None:
    """Of all ZeRO stages, ways to recompute and shares sent to the host at once, as arrays."""
    kept: dict[str, str] = {}
    free: dict[str, Any] = {
        "zero": np.array([0, 1, 2, 3])[:, None, None],
        "shards": np.array([0, 1, 0, 2])[:, None, None],
        "recompute": np.array(RECOMPUTE)[:, None],
        "offload": np.array([0.0, 0.25]),
    }
    models = {"dense": (SMALL, 1), "mixture": (dataclasses.replace(SMALL, **MIXTURE), 2)}
    for stages, chunks, batch in ((1, 1, 8), (2, 1, 2), (2, 3, 8), (3, 1, 8), (3, 2, 48)):
        shape = {"pipeline": stages, "interleave": chunks, "global_batch": 2 * batch, "data": 2}
        for widths, (name, (model, expert)) in itertools.product((Widths(), Widths(5, 3, 2, True, 7)), models.items()):
            plan = Parallelism(**shape, **free, expert=expert, widths=widths)
            layers = model.layers(plan)
            memory = memory_per_gpu(layers, plan)
            parts = (*vars(memory).values(), memory.total_bytes, offloaded_bytes(layers, plan))
            found = [short(*np.ravel(part)) for part in (*parts, *stage_parameters(layers, plan))]
            kept[f"{name} {stages} {chunks} {widths.logit}"] = f"{short(memory.total_bytes[0, 0, 0])}; {digest(found)}"
    tables, plan = OTHERS["tables"]
    kept["tables"] = short(*vars(memory_per_gpu(tables.layers(plan), plan)).values())
    assert_kept("memory", kept)


KERNELS = Efficiency(
    matrix=0.5, half_flops=1e9, memory=0.25, kernel_s=1e-6, gap_s=3e-6, odd=1.5, by_precision={"fp8": 0.4},
    attention=0.6, narrow=0.75, casting=0.5, experts=0.9, expert_rows=50.0, expert_s=7e-6, sorting=4.0,
)  # fmt: skip
SHEET = Gpu(
    name="sheet", peak_flops_per_s={"half": 1e14, "fp8": 2e14, "single": 1e13}, memory_bytes=1e9,
    memory_bytes_per_s=1e12, link_bytes_per_s=1e11, efficiency=KERNELS,
)  # fmt: skip
PRODUCT = Operation(1e11, 1e8, kernels=2)
"""Its bytes take 0.4 ms at a quarter of the bandwidth, its operations 2 ms and the start of two kernels 0.04 ms."""


@pytest.mark.parametrize(
    ("operation", "precision", "us"),
    [
        (PRODUCT, "half", 2000 + 40 + 6),
        (PRODUCT._replace(odd=1.0), "half", 3000 + 40 + 6),
        (PRODUCT._replace(odd=0.5), "half", 2500 + 40 + 6),
        (PRODUCT, "single", 20_000 + 400 + 6),
        (PRODUCT, "fp8", 1250 + 25 + 200 + 6),  # bringing operands into 8 bits moves half of the bytes again
        (PRODUCT._replace(work="output"), "fp8", 2000 + 40 + 6),
        (PRODUCT._replace(work="output"), "single", 20_000 + 400 + 6),
        (PRODUCT._replace(work="attention", rows=128), "fp8", (1000 + 20) / 0.6 + 6),
        (PRODUCT._replace(work="attention", rows=200), "half", (1000 + 20) / 0.6 + 6),
        (PRODUCT._replace(work="attention", rows=64), "half", (1000 + 20) / 0.45 + 6),
        (PRODUCT._replace(work="attention", rows=32), "half", (1000 + 20) / 0.45 + 6),
        (PRODUCT._replace(work="attention", rows=96), "half", (1000 + 20) / 0.525 + 6),
        (PRODUCT._replace(work="experts", rows=50.0), "half", 2040 / 0.45 + 6),
        (PRODUCT._replace(work="experts", rows=150.0), "fp8", 1275 / 0.675 + 200 + 6),
        (Operation(0.0, 1e8), "half", 400 + 3),
        (Operation(0.0, 1e8), "fp8", 400 + 3),  # nothing to cast
        (Operation(0.0, 1e8, kernels=2, work="dispatch"), "half", 1600 + 14),
        (Operation(0.0, 1.0, kernels=5), "half", 5 + 15),
    ],
)
def test_a_kernel_takes_the_longest_of_its_parts(operation: Operation, precision: Any, us: float) -> None:
    assert float(operations_s(operation, SHEET, precision=precision)) == pytest.approx(us * 1e-6, rel=1e-12, abs=0)
    if operation.flops == 0 and operation.work == "matrix" and operation.traffic_bytes > 1:
        slow = operations_s(operation, SHEET, bytes_per_s=1e11)
        assert float(slow) == pytest.approx(4003e-6, rel=1e-12)


def test_an_efficiency_follows_its_clock() -> None:
    changed = dataclasses.replace(KERNELS, matrix=1.0, by_precision={"fp8": 0.8}, attention=1.2)
    assert KERNELS.at_clock(2.0) == changed
    assert dataclasses.replace(KERNELS, attention=None).at_clock(2.0) == dataclasses.replace(changed, attention=None)
    for taken, slowed_s in ((0.0, 3.0), (0.25, 4.0), (1.0, 3e9), (2.0, 3e9)):
        assert float(dataclasses.replace(KERNELS, taken=taken).slowed_s(3.0)) == pytest.approx(slowed_s, rel=1e-12)


# ---- Rules


def broken(**given: Any) -> list[str]:
    plan = Parallelism(**{"tensor": 2, "data": 4, "global_batch": 8} | given)
    return [rule.text for rule in plan.rules(given.get("tensor", 2) * 4) if not np.all(rule.holds)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, None),
        *(({name: 0}, f"{name} is 0; expected a whole number from 1") for name in ("expert", "context", "interleave")),
        ({"micro_batch": 0}, "micro_batch is 0; expected a whole number from 1"),
        ({"global_batch": 0}, "global_batch is 0; expected a whole number from 1"),
        ({"zero": 3}, None),
        ({"zero": 4}, "ZeRO stage is 4; expected 0, 1, 2 or 3"),
        ({"zero": -1}, "ZeRO stage is -1; expected 0, 1, 2 or 3"),
        ({"shards": 2}, None),
        ({"shards": 3}, "shards 3 do not divide the 4 GPUs that hold the same weights; expected a divisor"),
        ({"offload": 1}, None),
        ({"offload": 1.01}, "offload is 1.01; expected a share from 0 to 1"),
        ({"offload": -0.01}, "offload is -0.01; expected a share from 0 to 1"),
        ({"expert": 2, "expert_skew": 2.0}, None),
        ({"expert": 2, "expert_skew": 2.1}, "expert skew is 2.1; expected a number from 1 to the 2 GPUs of the"),
        ({"expert_skew": 0.9}, "expert skew is 0.9; expected a number from 1 to the 1 GPUs of the experts"),
        ({"expert_capacity": 1.0}, None),
        ({"expert_capacity": 0.9}, "expert capacity is 0.9; expected a number from 1, or 0 for no bound"),
        ({"expert": 4}, None),
        ({"expert": 8}, "expert 8 does not divide data 4; expected experts on whole groups of replicas"),
        ({"expert": 8, "own_experts": True}, None),
        ({"expert": 16, "own_experts": True}, "expert 16 does not divide data 4"),
        ({"global_batch": 6}, "global batch 6 is not divisible by data 4 x micro-batch 1; expected every pipeline to"),
        ({"micro_batch": 2}, None),
        ({"micro_batch": 4}, "global batch 8 is not divisible by data 4 x micro-batch 4"),
        ({"context": 2}, "tensor 2 x pipeline 1 x data 4 is 16 GPUs; expected their product to be the 8 GPUs of the"),
        ({"data": 2, "pipeline": 2, "interleave": 2}, None),
        ({"interleave": 2}, "interleave 2 with pipeline 1 and 2 micro-batches; expected a pipeline of at least 2"),
        (
            {"data": 2, "pipeline": 2, "interleave": 2, "global_batch": 6},
            "interleave 2 with pipeline 2 and 3 micro-batches; expected a pipeline of at least 2 stages that divides",
        ),
    ],
)
def test_a_layout_breaks_the_rule_that_is_named(given: dict[str, Any], said: str | None) -> None:
    found = broken(**given)
    assert any(text.startswith(said) for text in found) if said else found == []
    without_size = [rule for rule in Parallelism(tensor=2, data=4, global_batch=8).rules() if "product" in rule.text]
    assert without_size == []


def test_what_follows_from_a_layout() -> None:
    plan = Parallelism(tensor=2, pipeline=3, data=4, context=5, expert=10, global_batch=24, micro_batch=2)
    assert (plan.num_gpus, plan.copies, plan.spread_over, plan.micro_batches) == (120, 20, 20, 3)
    assert (plan.replicas, dataclasses.replace(plan, own_experts=True).replicas) == (2, 4)
    assert dataclasses.replace(plan, shards=4).spread_over == 4
    assert (plan.norm_shards, dataclasses.replace(plan, sequence_parallel=True).norm_shards) == (1, 2)
    loads = [(1.5, 0.0, 1.5), (1.5, 1.25, 1.25), (1.1, 1.25, 1.1)]
    for skew, capacity, load in loads:
        assert dataclasses.replace(plan, expert_skew=skew, expert_capacity=capacity).expert_load == load
    passes = {
        (zero, overlap): dataclasses.replace(plan, zero=zero, overlap=overlap)
        for zero in (1, 2, 3)
        for overlap in (False, True)
    }
    found = {key: float(each.overlapped_passes) for key, each in passes.items()}
    assert found == {(1, False): 0, (2, False): 0, (3, False): 0, (1, True): 1, (2, True): 3, (3, True): 3}
    assert Parallelism(tensor=MOST, global_batch=MOST).tensor == MOST
    for name in ("tensor", "zero"):
        assert answered(lambda name=name: Parallelism(**{name: MOST + 1})).startswith(
            f"{name} is {MOST + 1}; expected at"
        )


@pytest.mark.parametrize("name", ["resnet-50", "lstm-ptb", "dlrm-1.2t"])
def test_a_model_without_blocks_is_data_parallel_only(name: str) -> None:
    def refused(**plan: Any) -> list[str]:
        return [rule.text for rule in MODELS[name].rules(Parallelism(**plan)) if not rule.holds]

    what = {"resnet-50": "a CNN", "lstm-ptb": "an LSTM", "dlrm-1.2t": "a DLRM"}[name]
    assert refused() == refused(zero=1, data=8, context=1, micro_batch=4) == []
    for degree in ("tensor", "pipeline", "expert", "interleave"):
        assert refused(**{degree: 2}) == [f"{degree} 2; expected 1 for {what}"]
    assert refused(recompute="full") == [f"recompute 'full'; expected 'none' for {what}"]
    assert refused(zero=2) == [f"ZeRO stage 2; expected 0 or 1 for {what}"]


def test_a_transformer_keeps_its_rules_at_their_ends() -> None:
    def refused(model: Transformer = SMALL, **plan: Any) -> list[str]:
        return [rule.text.partition(";")[0] for rule in model.rules(Parallelism(**plan)) if not rule.holds]

    assert refused(tensor=6) == refused(tensor=2, sequence_parallel=True) == refused(pipeline=3, interleave=2) == []
    assert refused(pipeline=4) == refused(pipeline=8) == []  # 8 layers with the embedding's and the output's
    assert refused(pipeline=5) == ["layers 6 not divisible by pipeline x interleave 5"]
    assert refused(tensor=4)[:2] == ["heads 6 not divisible by tensor 4", "key-value heads 6 not divisible by tensor 4"]
    grouped = dataclasses.replace(SMALL, key_value_heads=3)
    assert refused(grouped, tensor=6) == ["key-value heads 3 not divisible by tensor 6"]
    odd = dataclasses.replace(SMALL, hidden=51, heads=2, feed_forward=33)
    said = ["hidden size 51 not divisible by tensor 2", "feed-forward size 33 not divisible by tensor 2"]
    assert refused(odd, tensor=2) == said
    assert refused(expert=2) == ["experts 1 not divisible by expert 2"]
    short_one = dataclasses.replace(SMALL, sequence=1281)
    assert refused(short_one, tensor=2) == []
    said = ["sequence 1281 not divisible by tensor with sequence parallelism 2"]
    assert refused(short_one, tensor=2, sequence_parallel=True) == said


# ---- Steps by layer


def layer(name: str, *times: float, awaits: str | None = None) -> LayerTimes:
    forward, back, weight, sent_s, returned, reduced = times
    return LayerTimes(
        name=name, forward_s=forward, input_gradient_s=back, weight_gradient_s=weight, forward_collective_s=sent_s,
        input_gradient_collective_s=returned, weight_gradient_collective_s=reduced, awaited_before=awaits,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "exposed", "step_s"),
    [
        ([layer("a", 1, 2, 3, 0, 0, 0)], (0, 0, 0), 6),
        ([layer("a", 1, 2, 3, 5, 0, 0)], (5, 0, 0), 11),
        ([layer("a", 1, 2, 3, 0, 7, 0)], (0, 4, 0), 10),  # 3 of 7 behind the weight gradient
        ([layer("a", 1, 2, 3, 0, 0, 4)], (0, 0, 4), 10),
        # The first layer's 4 wait for the second's 9, of which 5 hide behind the first's backward.
        ([layer("a", 1, 2, 3, 0, 0, 4), layer("b", 1, 1, 1, 0, 0, 9)], (0, 0, 8), 9 + 8),
        ([layer("a", 1, 2, 3, 0, 0, 4), layer("b", 1, 1, 1, 0, 0, 2)], (0, 0, 4), 9 + 4),
        # Both of two lookups are awaited by the last: the later one counts, one way 4 + 1 behind 3.
        (
            [
                layer("a", 1, 0, 0, 4, 2, 0, awaits="c"),
                layer("b", 1, 0, 0, 3, 6, 0, awaits="c"),
                layer("c", 1, 1, 1, 0, 0, 0),
            ],
            (3, 6, 0),
            3 + 2 + 9,
        ),
        ([layer("a", 1, 1, 1, 2, 2, 0, awaits="c"), layer("b", 5, 1, 4, 0, 0, 0), layer("c", 1, 1, 1, 0, 0, 0)],
         (0, 0, 0), 16),
    ],
)  # fmt: skip
def test_what_a_step_by_layer_waits_for(layers: list[LayerTimes], exposed: tuple[float, ...], step_s: float) -> None:
    found = layerwise_step(layers)
    names = ("exposed_forward_s", "exposed_input_gradient_s", "exposed_weight_gradient_s")
    assert tuple(float(getattr(found, name)) for name in names) == exposed
    assert (float(found.step_s), float(found.exposed_s)) == (step_s, sum(exposed))
    assert found.compute_s == sum(one.forward_s + one.input_gradient_s + one.weight_gradient_s for one in layers)


def test_a_layer_is_awaited_by_one_after_it() -> None:
    with pytest.raises(InputError, match="a layer awaits 'b'; expected the name of a layer that comes after it"):
        layerwise_step([layer("b", 1, 1, 1, 1, 1, 1), layer("a", 1, 1, 1, 1, 1, 1, awaits="b")])
