"""Jobs without groups, and collectives on tiers, of layouts and algorithms that others check one by one."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from kept_numbers import answered, assert_kept, digest, short

from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.collectives import Kind, Span, collective_s, sent_by, split_group
from ddlsched.training.estimate.estimated_jobs import elastic_job_of, job_of, step_dag
from ddlsched.training.estimate.hardware import Machine
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import EFFICIENCIES, GPUS
from ddlsched.training.estimate.step_estimate import estimate_checked
from ddlsched.workload.dag import ComputeTask, IterationDag

SMALL = Transformer(num_layers=4, hidden=512, heads=8, sequence=256, vocabulary=1000, fused_attention=True)
MACHINE = Machine(
    gpu=dataclasses.replace(GPUS["a100-80"], efficiency=dataclasses.replace(EFFICIENCIES["megatron"], taken=0.25)),
    tiers=(Span(size=4, bytes_per_s=8e10, latency_s=1e-6), Span(size=4, bytes_per_s=1e9, latency_s=5e-6)),
)
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"data": 16}, {"data": 16, "overlap": True}, {"tensor": 4, "data": 4}, {"tensor": 2, "data": 8, "overlap": True},
    {"pipeline": 4, "data": 4, "micro_batch": 2}, {"pipeline": 2, "data": 8, "zero": 1, "overlap": True},
    {"data": 16, "zero": 3, "overlap": True}, {"data": 16, "zero": 2}, {"data": 16, "expert": 4, "overlap": True},
    {"data": 16, "zero": 3, "shards": 4, "overlap": True}, {"context": 4, "data": 4},
)  # fmt: skip


def told(dag: IterationDag) -> str:
    """Return the tasks' lengths in ns or bytes, the first and the last to read, and who waits for whom."""
    lengths = [task.duration_ns if isinstance(task, ComputeTask) else task.message_bytes for task in dag.tasks]
    rest = [(type(task).__name__, task.name, task.after, getattr(task, "algorithm", "")) for task in dag.tasks]
    numbers = [f"{length:.7g}" for length in lengths]
    return f"{len(lengths)} {numbers[0]} {numbers[1]} {numbers[-1]} {digest(numbers)} {digest(rest)}"


@pytest.mark.long
def test_jobs_of_layouts_are_what_they_were() -> None:
    mixture, kept = dataclasses.replace(SMALL, experts=8, active_experts=2), dict[str, str]()
    for number, layout in enumerate(LAYOUTS):
        plan, model = Parallelism(**layout, global_batch=64), mixture if "expert" in layout else SMALL
        for algorithm in ("ring", "hierarchical", "halving-doubling"):
            found = estimate_checked(model, plan, MACHINE, algorithm=algorithm)
            dag = step_dag(found, plan, MACHINE, buckets=3, algorithm=algorithm)
            kept[f"{number} {algorithm}"] = told(dag)
    plan = Parallelism(data=16, overlap=True, global_batch=32)
    job = job_of(SMALL, plan, MACHINE, job_id="a", iterations=7, arrival_s=2.5, label="l", user="u", buckets=2)
    assert (job.job_id, job.iterations, job.arrival_s, job.model, job.user) == ("a", 7, 2.5, "l", "u")
    assert job.num_gpus == 16
    assert len(job.dag.tasks) == 1 + 2 * 2 + 1
    memory_bytes = float(estimate_checked(SMALL, plan, MACHINE).memory.total_bytes)
    assert job.gpu_memory_mb == memory_bytes / 1e6
    small = dataclasses.replace(MACHINE, gpu=dataclasses.replace(MACHINE.gpu, memory_bytes=memory_bytes - 1))
    assert answered(job_of, SMALL, plan, small, job_id="a", iterations=1) == "job 'a': does not fit by 0.00 GB a GPU"
    kept["default"] = told(job_of(SMALL, plan, MACHINE, job_id="a", iterations=1).dag)
    assert_kept("estimated-jobs", kept)


def test_an_elastic_job_has_the_times_of_what_fits_one_gpu() -> None:
    cluster = parse_cluster("a100-80:memory_gb=1")
    made = elastic_job_of(SMALL, cluster, job_id="a", samples=100, max_gpus=4, gpu_batches=(4, 1, 2, 4, 10_000))
    assert made.curve.gpu_batch == (1, 2, 4)
    assert (made.job_id, made.arrival_s, made.samples, made.max_gpus, made.gpu_batch) == ("a", 0.0, 100, 4, 4)
    machine = cluster.machine(1)
    for size, seconds in zip(made.curve.gpu_batch, made.curve.seconds, strict=True):
        found = estimate_checked(SMALL, Parallelism(micro_batch=size, global_batch=size), machine)
        assert seconds == float(found.step_s)
    assert made.message_bytes == float(found.reduced_bytes)
    assert made.gpu_memory_mb == float(found.memory.total_bytes) / 1e6
    said = "job 'a': does not fit one GPU with any batch of [10000]"
    assert answered(elastic_job_of, SMALL, cluster, job_id="a", samples=1, max_gpus=1, gpu_batches=[10_000]) == said


GROUPS: dict[str, tuple[Span, ...]] = {
    "one": (Span(1, 8e9, 1e-3),),
    "node": (Span(8, 8e9, 1e-6),),
    "nodes": (Span(4, 8e9, 1e-6), Span(3, 1e9, 5e-6)),
    "racks": (Span(2, 8e9, 1e-6), Span(4, 4e9, 2e-6, True), Span(3, 1e9, 5e-6)),
    "slow inside": (Span(4, 1e9, 1e-6), Span(2, 8e9, 5e-6)),
    "arrays": (Span(np.array([1, 2, 4]), 8e9, 1e-6), Span(np.array([4, 2, 1]), 1e9, 5e-6)),
}
ALGORITHMS = ("ring", "hierarchical", "halving-doubling", "direct", "double-binary-tree", "in-network", "nccl")
KINDS: tuple[Kind, ...] = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")


def test_collectives_on_tiers_are_what_they_were() -> None:
    kept: dict[str, str] = {}
    for (name, group), algorithm in itertools.product(GROUPS.items(), ALGORITHMS):
        found = [collective_s(kind, 6e6, group, algorithm=algorithm) for kind in KINDS]
        kept[f"{name} {algorithm}"] = short(*np.concatenate([np.ravel(each) for each in found]))
    for chunks in (1, 7):
        kept[f"{chunks} chunks"] = short(*(collective_s(kind, 6e6, GROUPS["racks"], chunks=chunks) for kind in KINDS))
    for kind, algorithm in itertools.product(KINDS, ALGORITHMS):
        kept[f"{kind} by {algorithm}"] = sent_by(kind, algorithm)
    for sizes, tiers in (([4, 6], [8, 9]), ([3, 2, 2], [8, 3, 5]), ([1, 12], [8, 4]), ([5], [8])):
        kept[f"{sizes} on {tiers}"] = str([[int(part) for part in parts] for parts in split_group(sizes, tiers)])
    assert_kept("collectives", kept)
