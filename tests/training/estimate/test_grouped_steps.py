"""Steps whose traffic is collectives over groups: who is in which, how many bytes, and the estimate's time."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import pytest

import ddlsched
from ddlsched.errors import InputError
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.energy_costs import Costs
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.grouped_steps import grouped_step, worker_groups
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.models import Model
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked
from ddlsched.workload.dag import CollectiveTask, ComputeTask

GPT = MODELS["gpt3-6.7b"]
MIXTURE = dataclasses.replace(MODELS["gpt3-350m"], experts=8, active_experts=2)


def machine_for(plan: Parallelism) -> Machine:
    servers = -(-int(plan.num_gpus) // 8)
    return parse_cluster(
        f"h100:nodes={servers},gpus_per_node={int(plan.num_gpus) // servers}", efficiency="megatron"
    ).machine(int(plan.num_gpus))


def step(model: Model, plan: Parallelism, algorithm: str = "ring") -> ddlsched.IterationDag:
    machine = machine_for(plan)
    found = estimate_checked(model, plan, machine, algorithm=algorithm)
    return grouped_step(found, model.layers(plan), Costs(parallelism=plan, machine=machine, algorithm=algorithm))


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "direct", "nccl"])
def test_collectives_are_sent_by_the_algorithm_and_all_to_alls_by_rail(algorithm: str) -> None:
    tasks = step(MIXTURE, Parallelism(tensor=2, data=4, pipeline=2, expert=2, global_batch=4), algorithm).tasks
    own = "hierarchical" if algorithm == "ring" else algorithm
    expected = {"all-reduce": own, "all-to-all": "hierarchical", "send": "ring"}
    assert {task.kind: task.algorithm for task in tasks if isinstance(task, CollectiveTask)} == expected


def test_groups_by_hand() -> None:
    """2 stages of 4 data-parallel x 2 tensor-parallel workers, experts over 2 of the 4."""
    groups = worker_groups(Parallelism(tensor=2, data=4, pipeline=2, expert=2, global_batch=4))
    assert groups["tensor 0"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups["data 1"] == ((8, 10, 12, 14), (9, 11, 13, 15))
    assert groups["expert 0"] == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups["replicas 0"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups["on 0"][:2] == ((0, 8), (1, 9))
    assert groups["back 1"][:2] == ((8, 0), (9, 1))
    assert groups["stage 1"] == (tuple(range(8, 16)),)


def test_a_group_of_one_worker_is_none() -> None:
    assert set(worker_groups(Parallelism(tensor=2, global_batch=1))) == {"stage 0", "tensor 0"}


def test_bytes_are_those_of_the_layers() -> None:
    """Tensor parallelism: 2 all-reduces of samples x sequence x hidden x 2 bytes a block and pass, for each kind."""
    plan = Parallelism(tensor=2, data=2, pipeline=2, micro_batch=1, global_batch=4)
    sent: dict[tuple[str, str], float] = defaultdict(float)
    for task in step(GPT, plan).tasks:
        if isinstance(task, CollectiveTask):
            sent[task.kind, str(task.group)] += task.message_bytes
    activations = 2.0 * GPT.sequence * GPT.hidden
    # 16 blocks a stage, 2 all-reduces a block and pass, 2 passes, 2 micro-batches; what the ends send comes on top.
    assert sent["all-reduce", "tensor 0"] >= 16 * 2 * 2 * 2 * activations
    found = estimate_checked(GPT, plan, machine_for(plan))
    assert sent["all-reduce", "data 0"] == pytest.approx(float(found.reduced_bytes))
    # Each tensor-parallel worker sends the activations it keeps, for each of 2 micro-batches, each way.
    assert sent["send", "on 0"] == sent["send", "back 1"] == pytest.approx(2 * activations / 2)


@pytest.mark.long
def test_only_a_layer_that_is_computed_again_sends_again() -> None:
    """Of a block, attention by itself sends nothing; its two all-reduces are of layers that come after products."""

    def sent_bytes(recompute: str) -> float:
        plan = Parallelism(tensor=2, micro_batch=1, global_batch=1, recompute=recompute)
        return sum(task.message_bytes for task in step(GPT, plan).tasks if isinstance(task, CollectiveTask))

    again_bytes = GPT.num_layers * 2 * 2.0 * GPT.sequence * GPT.hidden
    assert sent_bytes("selective") == sent_bytes("none")
    assert sent_bytes("full") == pytest.approx(sent_bytes("none") + again_bytes)


def test_1f1b_and_what_waits_for_what() -> None:
    """Stage 0 of 2 begins two micro-batches before it goes back; stage 1 takes turns."""
    dag = step(GPT, Parallelism(tensor=1, data=1, pipeline=2, micro_batch=1, global_batch=3))
    computes = [task.name for task in dag.tasks if isinstance(task, ComputeTask)]
    passes = [name for name in computes if name.split()[0].endswith("ward")]
    zero = ["forward 0.0", "forward 0.1", "backward 0.0", "forward 0.2", "backward 0.1", "backward 0.2"]
    one = ["forward 1.0", "backward 1.0", "forward 1.1", "backward 1.1", "forward 1.2", "backward 1.2"]
    assert passes == zero + one
    after = {task.name: task.after for task in dag.tasks}
    assert "send on 0.1" in after["forward 1.1"]
    assert "send back 1.0" in after["backward 0.0"]


def test_groups_with_context_shards_and_whole_experts_by_hand() -> None:
    """2 x 2 x 4 workers of one stage: tensor neighbours, then context, then data."""
    groups = worker_groups(Parallelism(tensor=2, context=2, data=4, global_batch=4, shards=4))
    assert groups["context 0"][:3] == ((0, 2), (1, 3), (4, 6))
    assert groups["data 0"] == ((0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15))
    assert groups["mirrors 0"][:2] == ((0, 8), (1, 9))
    own = worker_groups(Parallelism(tensor=2, data=4, expert=4, own_experts=True, global_batch=4))
    assert own["expert 0"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert own["replicas 0"] == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_interleaved_1f1b_by_hand() -> None:
    """2 stages of 2 chunks: places 0 and 2 are stage 0's; the last place of a stage sends on to the first stage."""
    dag = step(GPT, Parallelism(pipeline=2, interleave=2, micro_batch=1, global_batch=2))
    computes = [task.name for task in dag.tasks if isinstance(task, ComputeTask)]
    passes = [name for name in computes if name.split()[0].endswith("ward")]
    zero = ["forward 0.0", "forward 0.1", "forward 2.0", "forward 2.1"]
    zero += ["backward 2.0", "backward 2.1", "backward 0.0", "backward 0.1"]
    one = ["forward 1.0", "forward 1.1", "forward 3.0", "backward 3.0", "forward 3.1", "backward 3.1"]
    assert passes == [*zero, *one, "backward 1.0", "backward 1.1"]
    after = {task.name: task.after for task in dag.tasks}
    assert "send on 1.0" in after["forward 2.0"]
    assert "send back 2.0" in after["backward 1.0"]
    assert dag.groups["on 1"] == ((1, 0),)
    assert dag.groups["back 0"] == ((0, 1),)


def test_chunks_hold_the_blocks_of_their_stage_together() -> None:
    """14 blocks on 2 stages of 4 chunks: 2 a chunk, 1 in the first and in the last."""
    model = dataclasses.replace(GPT, num_layers=14)
    dag = step(model, Parallelism(tensor=2, pipeline=2, interleave=4, micro_batch=1, global_batch=2))
    sent = {task.name: task.message_bytes for task in dag.tasks if isinstance(task, CollectiveTask)}
    names = [f"all-reduce tensor forward {place}.0" for place in range(8)]
    block = 2 * 2.0 * GPT.sequence * GPT.hidden
    assert sent[names[0]] == pytest.approx(1.5 * block)  # and the embedding's
    assert sent[names[3]] == pytest.approx(2 * block)
    assert sent[names[7]] == pytest.approx(block)


def test_zero_3_reduces_behind_every_backward() -> None:
    plan = Parallelism(data=4, micro_batch=1, global_batch=12, zero=3, overlap=True)
    dag = step(GPT, plan)
    sent = [task for task in dag.tasks if isinstance(task, CollectiveTask)]
    assert [task.after for task in sent[:2]] == [("forward 0.0",), ("forward 0.1", "all-reduce data 0 3")]
    found = estimate_checked(GPT, plan, machine_for(plan))
    assert sum(task.message_bytes for task in sent) == pytest.approx(float(found.reduced_bytes))


USUAL = {"sequence_parallel": True, "micro_batch": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (GPT, Parallelism(tensor=8, micro_batch=1, global_batch=4)),
        (GPT, Parallelism(tensor=4, data=2, pipeline=2, micro_batch=1, global_batch=16)),
        (GPT, Parallelism(tensor=8, data=4, global_batch=16, **USUAL)),
        (GPT, Parallelism(tensor=8, pipeline=2, micro_batch=1, global_batch=8, recompute="full")),
        (MIXTURE, Parallelism(data=16, expert=8, micro_batch=1, global_batch=16)),
        (GPT, Parallelism(tensor=2, pipeline=4, data=4, interleave=4, global_batch=32, overlap=True, **USUAL)),
        (GPT, Parallelism(tensor=2, context=4, data=4, global_batch=16, **USUAL)),
        (GPT, Parallelism(data=16, shards=8, zero=3, micro_batch=1, global_batch=32, overlap=True)),
    ],
    ids=["tensor", "tensor, pipeline and data", "sequence", "recompute", "experts", "interleaved", "context", "shards"],
)
def test_the_simulator_runs_it_alone_in_about_the_estimated_time(model: Model, plan: Parallelism) -> None:
    machine = machine_for(plan)
    inner, outer = (8 * float(tier.bytes_per_s) / 1e9 for tier in machine.tiers)
    gpus = int(machine.tiers[0].size)
    cluster = ddlsched.Cluster(
        num_servers=int(plan.num_gpus) // gpus,
        gpus_per_server=gpus,
        gpu_memory_mb=80_000,
        topology=f"rail-optimised:rails={gpus},rail_gbps={outer},nvlink_gbps={inner}",
    )
    job = job_of(model, plan, machine, job_id="llm", iterations=2, groups=True)
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        cluster,
        placement="first-fit",
        order="fifo",
        communication="bounded-overlap:limit=100",
        contention="max-min",
    )
    estimated_s = 2 * float(estimate_checked(model, plan, machine).step_s)
    assert result.jobs["jct_s"].item() == pytest.approx(estimated_s, rel=0.03)


def test_what_has_no_blocks_or_fills_bubbles_is_refused() -> None:
    with pytest.raises(InputError, match="the model has no blocks to deal out to stages; expected an LLM"):
        step(MODELS["resnet-50"], Parallelism(data=2, global_batch=2))
    plan = Parallelism(pipeline=2, zero_bubble=True, micro_batch=1, global_batch=4)
    with pytest.raises(InputError, match="zero_bubble is set; expected 1F1B, plain or interleaved"):
        step(GPT, plan)


def test_a_job_with_groups_goes_through_a_file(tmp_path: Path) -> None:
    plan = Parallelism(tensor=2, data=2, pipeline=2, micro_batch=1, global_batch=4)
    job = job_of(GPT, plan, machine_for(plan), job_id="llm", iterations=2, groups=True)
    ddlsched.write_workload(ddlsched.Workload.of([job]), tmp_path / "job.json")
    (again,) = ddlsched.read_workload(tmp_path / "job.json")
    assert again == job
