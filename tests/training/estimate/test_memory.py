"""Memory: ZeRO by COMET's formulas, activations in flight, what does not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ddlsched.training.estimate import Widths
from ddlsched.training.estimate.memory import memory_per_gpu, stage_parameters
from ddlsched.training.estimate.models import Transformer, parameters
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS

GPT = Transformer(num_layers=8, hidden=1024, heads=16, sequence=512, vocabulary=32_000)


def states_bytes(**plan) -> float:
    parallelism = Parallelism(**plan)
    found = memory_per_gpu(GPT.layers(parallelism), parallelism)
    return found.weights_bytes + found.gradients_bytes + found.optimiser_bytes


@pytest.mark.parametrize(
    ("zero", "per_parameter"),
    [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)],
)
def test_zero_by_the_formulas(zero, per_parameter) -> None:
    found = states_bytes(data=8, global_batch=8, zero=zero)
    layers = GPT.layers(Parallelism())
    block, output = (sum(layer.parameters for layer in part) for part in (layers.block, layers.last))
    gathered = 2 * (2 * block + output) if zero == 3 else 0
    assert found == pytest.approx(per_parameter * float(parameters(GPT)) + gathered)


def test_tensor_parallelism_divides_all_but_norms_and_biases() -> None:
    whole, half = states_bytes(), states_bytes(tensor=2)
    assert whole / 2 < half < 0.51 * whole


def activations(**plan) -> float:
    parallelism = Parallelism(**plan)
    return float(memory_per_gpu(GPT.layers(parallelism), parallelism).activations_bytes)


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    layers = GPT.layers(Parallelism())
    block = sum(layer.activation_bytes for layer in layers.block)
    first = sum(layer.activation_bytes for layer in layers.first)
    assert activations(pipeline=4, global_batch=16) == pytest.approx(4 * (2 * block + first))
    assert activations(pipeline=4, global_batch=2) == pytest.approx(2 * (2 * block + first))


def test_no_byte_is_kept_but_those_of_layers() -> None:
    """Layers that keep twice as much need twice as much; no constant comes on top."""
    plans: tuple[dict[str, Any], ...] = ({}, {"pipeline": 2}, {"pipeline": 4, "interleave": 2}, {"recompute": "full"})
    for plan in (*plans, {"tensor": 2, "offload": 0.5}):
        parallelism = Parallelism(global_batch=16, **plan)
        layers = GPT.layers(parallelism)

        def kept(factor: float, layers=layers, parallelism=parallelism) -> float:
            changed = {
                part: tuple(
                    dataclasses.replace(layer, activation_bytes=layer.activation_bytes * factor)
                    for layer in getattr(layers, part)
                )
                for part in ("first", "block", "last")
            }
            return float(memory_per_gpu(layers._replace(**changed), parallelism).activations_bytes)

        assert kept(2.0) == 2 * kept(1.0) > kept(0.0)


def test_interleaving_keeps_more() -> None:
    plain, chunks = (activations(pipeline=4, global_batch=16, interleave=count) for count in (1, 2))
    assert chunks / plain == pytest.approx(1 + 3 / 8)
    assert activations(pipeline=4, global_batch=4, interleave=2) == activations(pipeline=4, global_batch=4)


def test_full_recomputation_keeps_inputs_and_one_block() -> None:
    layers = GPT.layers(Parallelism())
    block = sum(layer.activation_bytes for layer in layers.block)
    ends = sum(layer.activation_bytes for layer in (*layers.first, *layers.last))
    expected = 8 * 2 * 512 * 1024 + ends + block
    assert activations(recompute="full") == pytest.approx(expected)
    assert activations(recompute="full") < activations(recompute="selective") < activations()


def test_kept_outputs_are_what_the_reduce_scatter_leaves() -> None:
    plan = Parallelism(tensor=8, sequence_parallel=True)
    block = MODELS["llama-3-405b"].layers(plan).block
    kept = {layer.name: float(layer.output_bytes) for layer in block}
    entered = float(block[0].activation_bytes)
    assert kept["projection"] == kept["feed-forward out"] == entered == 2 * 8192 * 16384 / 8


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_what_is_computed_again_is_not_kept(sequence_parallel) -> None:
    plan = Parallelism(
        tensor=8,
        pipeline=16,
        data=8,
        global_batch=1024,
        zero=1,
        sequence_parallel=sequence_parallel,
        recompute=np.array(["none", "elementwise", "alternate", "full"]),
    )
    found = memory_per_gpu(MODELS["llama-3-405b"].layers(plan), plan).activations_bytes
    assert np.all(np.diff(found) < 0)


def test_the_last_stage_may_keep_the_logits_of_all_micro_batches() -> None:
    plan = Parallelism(pipeline=2, global_batch=64, recompute="full", widths=Widths(logit=8, kept_logit=4))
    few = dataclasses.replace(plan, global_batch=2, widths=Widths(logit=32, kept_logit=4))
    few_plain = dataclasses.replace(few, widths=Widths(logit=32))
    kept, plain = (memory_per_gpu(GPT.layers(one), one).activations_bytes for one in (few, few_plain))
    assert kept - plain == 4 * 512 * 32_000
    # Of many micro-batches they outweigh all else, and are there twice as they are joined.
    assert memory_per_gpu(GPT.layers(plan), plan).activations_bytes == 2 * 64 * 4 * 512 * 32_000


def test_untied_output_layers_count_once_in_a_pipeline_and_tied_ones_twice() -> None:
    single, staged = (stage_parameters(GPT.layers(plan), plan)[0] for plan in (Parallelism(), Parallelism(pipeline=2)))
    vocabulary = 32_000 * 1024
    assert single == pytest.approx(float(parameters(GPT)))
    assert staged > single / 2 + vocabulary / 3
