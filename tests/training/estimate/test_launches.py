"""What launching costs: gaps between kernels, passes shorter than their launches, collectives, odd output layers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddlsched.errors import InputError
from ddlsched.training.estimate.collectives import Span
from ddlsched.training.estimate.energy_costs import Costs
from ddlsched.training.estimate.hardware import Efficiency, Gpu, Machine, operations_s
from ddlsched.training.estimate.layers import Operation
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate

GPU = Gpu(name="", peak_flops_per_s={"half": 1e14}, memory_bytes=1e12, memory_bytes_per_s=1e12, link_bytes_per_s=1e30)
GPT = Transformer(num_layers=8, hidden=1024, heads=16, sequence=512, vocabulary=51_200)


def machine(*, size: int = 1, **efficiency: float) -> Machine:
    gpu = dataclasses.replace(GPU, efficiency=Efficiency(**efficiency))
    return Machine(gpu=gpu, tiers=(Span(size=size, bytes_per_s=1e30),))


def test_gaps_are_added_and_odd_products_take_longer() -> None:
    gpu = machine(gap_s=1e-3, odd=3.0).gpu
    assert operations_s(Operation(0.0, 1e12, kernels=2), gpu) == pytest.approx(1.0 + 2e-3)
    assert operations_s(Operation(1e14, 0.0), gpu) == pytest.approx(1.001)
    assert operations_s(Operation(1e14, 0.0, odd=True), gpu) == pytest.approx(3.001)


def test_a_pass_takes_no_less_than_its_launches() -> None:
    """Of a block: 13 kernels forward, 19 backward, and two collectives in each where matrices are split."""
    plan = Parallelism(tensor=2, recompute="full")
    block = GPT.layers(plan).block
    for launch_s, slow in ((1.0, True), (1e-12, False)):
        found = Costs(parallelism=plan, machine=machine(size=2, launch_s=launch_s)).part(block)
        quick = Costs(parallelism=plan, machine=machine(size=2)).part(block)
        launches_s = (15 * launch_s, 21 * launch_s, 15 * launch_s)
        expected_s = launches_s if slow else (quick.forward_s, quick.backward_s, quick.again_s)
        assert (found.forward_s, found.backward_s, found.again_s) == pytest.approx(expected_s)


def test_while_a_block_waits_for_its_collectives_it_launches() -> None:
    plan = Parallelism(tensor=2, recompute="full")
    slow = dataclasses.replace(machine(size=2, launch_s=1.0), tiers=(Span(size=2, bytes_per_s=1e6),))
    found = Costs(parallelism=plan, machine=slow).part(GPT.layers(plan).block)
    assert found.again_exposed_s > 1.0
    assert found.again_s + found.again_exposed_s == pytest.approx(15.0)


def test_only_what_is_recomputed_is_launched_again() -> None:
    """Selectively: scores, softmax, dropout and context."""
    plan = Parallelism(recompute="selective")
    found = Costs(parallelism=plan, machine=machine(launch_s=1.0)).part(GPT.layers(plan).block)
    assert found.again_s == pytest.approx(4.0)


def test_a_collective_of_one_gpu_costs_nothing() -> None:
    for size, expected_s in ((1, 0.0), (4, 2.0)):
        costs = Costs(parallelism=Parallelism(tensor=size), machine=machine(size=size, collective_s=2.0))
        assert costs.group_s("all-reduce", 1.0, "tensor") == pytest.approx(expected_s)


def test_a_send_between_stages_costs_what_a_collective_does() -> None:
    """Two a micro-batch: activations there, gradients back."""
    plan = Parallelism(pipeline=2, global_batch=3)
    plain, slow = (estimate(GPT, plan, machine(size=2, collective_s=lost_s)).pipeline_s for lost_s in (0.0, 2.0))
    assert float(slow - plain) == pytest.approx(2 * 3 * 2.0)


def test_launches_count_in_models_without_blocks() -> None:
    model = MODELS["vgg-16"]
    plain, slow = (estimate(model, Parallelism(), machine(launch_s=launch_s)).compute_s for launch_s in (0.0, 1.0))
    layers = model.layers(Parallelism())
    passes = [
        operations
        for layer in (*layers.first, *layers.last)
        for operations in (layer.forward, layer.input_gradient, layer.weight_gradient)
    ]
    assert slow == pytest.approx(sum(one.kernels for operations in passes for one in operations))
    assert plain < 1.0


@pytest.mark.parametrize(
    ("vocabulary", "tensor", "times"),
    [(50_257, 1, 3), (50_257, 2, 1), (50_257, 4, 5 / 3), (50_257, 8, 7 / 3), (51_200, 1, 1)],
)
def test_the_share_of_the_vocabulary_may_be_badly_aligned(vocabulary, tensor, times) -> None:
    model = dataclasses.replace(GPT, vocabulary=vocabulary)
    plan = Parallelism(tensor=tensor, micro_batch=64, global_batch=64)
    output = next(layer for layer in model.layers(plan).last if layer.name == "output")
    costs = [Costs(parallelism=plan, machine=machine(size=tensor, odd=odd)) for odd in (1.0, 3.0)]
    even_s, odd_s = (each.computing_s(output.forward) for each in costs)
    assert odd_s == pytest.approx(times * even_s)


def test_recomputation_may_differ_by_configuration() -> None:
    kinds = ("none", "selective", "full")
    together = estimate(GPT, Parallelism(recompute=np.array(kinds)), machine(launch_s=1e-4))
    for number, kind in enumerate(kinds):
        alone = estimate(GPT, Parallelism(recompute=kind), machine(launch_s=1e-4))
        assert together.step_s[number] == alone.step_s
        assert np.broadcast_to(together.memory.total_bytes, 3)[number] == alone.memory.total_bytes
    with pytest.raises(
        InputError, match="recompute is 'some'; expected one of none, selective, elementwise, alternate, full"
    ):
        Parallelism(recompute=np.array(["full", "some"]))
