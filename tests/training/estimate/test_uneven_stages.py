"""Layers that do not divide among pipeline stages: the first and the last stage have one fewer."""

from __future__ import annotations

import dataclasses

import pytest

from ddlsched.errors import InputError
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.design_sweep import DesignSweep, design
from ddlsched.training.estimate.energy_costs import Costs
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism, stage_blocks
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import ComputeTask

LLAMA = MODELS["llama-3-405b"]
PLAN = Parallelism(tensor=8, pipeline=16, global_batch=32)
MACHINE = parse_cluster("h100").machine(128)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"), [(126, 16, (7, 8)), (70, 12, (5, 6)), (126, 18, (7, 7)), (96, 1, (96, 96))]
)
def test_layers_of_stages_by_hand(layers: int, stages: int, expected: tuple[int, int]) -> None:
    end, middle = stage_blocks(layers, Parallelism(pipeline=stages))
    assert (end, middle) == expected
    assert stages == 1 or 2 * end + (stages - 2) * middle == layers


def test_llama_3_405b_on_16_stages_takes_as_long_as_its_longest_stage() -> None:
    found = estimate_checked(LLAMA, PLAN, MACHINE)
    layers, costs = LLAMA.layers(PLAN), Costs(parallelism=PLAN, machine=MACHINE)
    block, first, last = (costs.part(part).compute_s for part in (layers.block, layers.first, layers.last))
    stages = [first + 7 * block, 8 * block, last + 7 * block]
    assert found.compute_s == pytest.approx(32 * max(stages))
    assert found.compute_s > 32 * 126 / 16 * block


def test_a_stage_between_holds_the_most_parameters() -> None:
    layers = LLAMA.layers(PLAN)
    of_block, of_first, of_last = (
        sum(float(layer.parameters) for layer in part) for part in (layers.block, layers.first, layers.last)
    )
    most = max(8 * of_block, 7 * of_block + max(of_first, of_last))
    assert estimate_checked(LLAMA, PLAN, MACHINE).memory.weights_bytes == pytest.approx(2 * most)


def test_70_layers_on_12_stages_are_accepted_and_71_are_not() -> None:
    model = Transformer(num_layers=70, hidden=1024, heads=16, sequence=512, vocabulary=32_000)
    plan, machine = Parallelism(pipeline=12, global_batch=24), parse_cluster("h100:gpus_per_node=4").machine(12)
    layers, costs = model.layers(plan), Costs(parallelism=plan, machine=machine)
    block, first, last = (costs.part(part).compute_s for part in (layers.block, layers.first, layers.last))
    slowest_s = max(6 * block, 5 * block + max(first, last))
    assert estimate_checked(model, plan, machine).compute_s == pytest.approx(24 * slowest_s)
    with pytest.raises(InputError, match=r"layers 71 not divisible by pipeline x interleave 12; .* or of 73 for one"):
        estimate_checked(dataclasses.replace(model, num_layers=71), plan, machine)


def test_the_stages_of_a_job_with_groups_have_their_own_layers() -> None:
    model = Transformer(num_layers=6, hidden=1024, heads=16, sequence=512, vocabulary=32_000)
    plan, machine = Parallelism(pipeline=4, global_batch=4), parse_cluster("h100:gpus_per_node=4").machine(4)
    job = job_of(model, plan, machine, job_id="uneven", iterations=1, groups=True)
    assert job.iteration is not None
    times = {task.name: task.duration_ns for task in job.iteration.tasks if isinstance(task, ComputeTask)}
    block = Costs(parallelism=plan, machine=machine).part(model.layers(plan).block)
    assert times["forward 1.0"] == times["forward 2.0"] == pytest.approx(ns_from_s(float(2 * block.forward_s)), abs=2)
    assert times["forward 0.0"] < times["forward 1.0"]


@pytest.mark.long
def test_a_sweep_tries_uneven_stages_only_when_it_is_told_the_stages() -> None:
    cluster = parse_cluster("h100")
    told = design(
        LLAMA, cluster, num_gpus=128, global_batch=16, sweep=DesignSweep(axes={"pipeline": (16,), "tensor": (8,)})
    )
    own = design(LLAMA, cluster, num_gpus=128, global_batch=16, sweep=DesignSweep(axes={"tensor": (8,)}))
    assert set(told["pipeline"]) == {16}
    assert set(own["pipeline"]) == {1, 2}
