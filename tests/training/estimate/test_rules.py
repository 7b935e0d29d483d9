"""Every combination that no cluster can run is refused with the rule that it breaks."""

from __future__ import annotations

import pytest

from ddlsched.errors import InputError
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.energy_costs import Costs
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked

GPT = MODELS["gpt3-175b"]
CASES = [
    ({"tensor": 8, "data": 2, "global_batch": 2}, "tensor 8 x pipeline 1 x data 2 is 16 GPUs; expected .* the 32 GPUs"),
    ({"tensor": 8, "data": 4, "global_batch": 6}, "global batch 6 is not divisible by data 4 x micro-batch 1"),
    ({"tensor": 8, "data": 4, "micro_batch": 3, "global_batch": 16}, "not divisible by data 4 x micro-batch 3"),
    ({"tensor": 8, "data": 4, "global_batch": 4, "zero": 4}, "ZeRO stage is 4; expected 0, 1, 2 or 3"),
    (
        {"data": 32, "global_batch": 32, "expert_skew": 1.5},
        "expert skew is 1.5; expected a number from 1 to the 1 GPUs",
    ),
    ({"tensor": 0}, "tensor is 0; expected a whole number from 1"),
    ({"data": 32, "global_batch": 32, "expert": 3}, "expert 3 does not divide data 32"),
    ({"data": 32, "global_batch": 32, "expert": 4}, "experts 1 not divisible by expert 4"),
    ({"tensor": 8, "data": 4, "global_batch": 8, "interleave": 2}, "interleave 2 with pipeline 1 and 2 micro-batches"),
    ({"tensor": 8, "pipeline": 4, "global_batch": 6, "interleave": 2}, "pipeline 4 and 6 micro-batches"),
    ({"tensor": 1, "pipeline": 32, "global_batch": 32, "interleave": 2}, "layers 96 not divisible by .* 64"),
]


@pytest.mark.parametrize(("plan", "message"), CASES)
def test_refused(plan, message) -> None:
    machine = parse_cluster("a100-80:nodes=4").machine(32)
    with pytest.raises(InputError, match=message):
        estimate_checked(GPT, Parallelism(**plan), machine)


def test_accepted() -> None:
    machine = parse_cluster("a100-80:nodes=4").machine(32)
    plan = Parallelism(tensor=8, pipeline=4, global_batch=8)
    layers, costs = GPT.layers(plan), Costs(parallelism=plan, machine=machine)
    block, first, last = (costs.part(part).compute_s for part in (layers.block, layers.first, layers.last))
    slowest_s = 96 / 4 * block + max(first, last)
    assert estimate_checked(GPT, plan, machine).compute_s == pytest.approx(8 * slowest_s)


@pytest.mark.parametrize("name", ["tensor", "interleave", "global_batch", "shards", "zero"])
def test_numbers_that_leave_64_bits(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 1000{'0' * 27}; expected at most 1,000,000,000,000"):
        Parallelism(**{name: 10**30})


def test_unknown_recomputation() -> None:
    with pytest.raises(
        InputError, match="recompute is 'some'; expected one of none, selective, elementwise, alternate, full"
    ):
        Parallelism(recompute="some")  # type: ignore[arg-type]


def test_precision_that_the_gpu_has_not() -> None:
    machine = parse_cluster("a100-80").machine(8)
    with pytest.raises(InputError, match="a100-80 multiplies no matrices in fp8; expected one of half, single"):
        estimate_checked(GPT, Parallelism(tensor=8), machine, precision="fp8")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("h10", "no GPU is named 'h10'"),
        ("h100:nods=3", "'nods' is no field of a cluster. Did you mean 'nodes'"),
        ("h100:nodes=0", "nodes is '0'; expected a whole number from 1"),
        ("h100:nodes=1.5", "nodes is '1.5'; expected a whole number from 1"),
        ("h100:nic_gbps=inf", "nic_gbps is 'inf'; expected a finite number > 0"),
        ("h100:expansion_gb=100", "no expansion_gb_per_s"),
        ("h100:expansion_gb_per_s=100", "but no expansion_gb;"),
        ("h100:nodes", "nodes has no value; expected nodes=NUMBER"),
        ("h100:taken=-0.1", "taken is '-0.1'; expected a finite number >= 0"),
        ("h100:taken=half", "taken is 'half'; expected a finite number >= 0"),
    ],
)
def test_clusters_refused(line, message) -> None:
    with pytest.raises(InputError, match=message):
        parse_cluster(line).machine(8)


def test_gpus_that_fill_no_nodes() -> None:
    with pytest.raises(InputError, match="12 GPUs do not fill nodes of 8"):
        parse_cluster("h100").machine(12)
