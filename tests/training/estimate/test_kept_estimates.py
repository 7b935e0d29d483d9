"""Estimates of every published model in layouts that use all that a layout can say, on every published GPU."""

from __future__ import annotations

from typing import Any

from kept_numbers import assert_kept, digest, short

from ddlsched.training.estimate import RECOMPUTE, Degrees, Widths
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import EFFICIENCIES, GPUS, MODELS, PROGRAMS
from ddlsched.training.estimate.step_estimate import Estimate, estimate

LAYOUTS: tuple[dict[str, Any], ...] = (
    {"data": 64, "micro_batch": 2, "overlap": True},
    {"tensor": 4, "data": 16, "sequence_parallel": True, "zero": 1, "recompute": "selective"},
    {"tensor": 2, "pipeline": 4, "data": 8, "interleave": 2},
    {"data": 64, "expert": 8, "zero": 3, "overlap": True, "recompute": "full", "expert_skew": 1.5},
    {"pipeline": 8, "data": 8, "zero_bubble": True, "expert": 2, "zero": 1},
    {"tensor": 8, "context": 2, "data": 4, "ring_attention": True, "asynchronous": True, "sequence_parallel": True},
    {"context": 4, "data": 16, "zero": 2, "overlap": True, "recompute": "elementwise", "offload": 0.5},
    {"tensor": 2, "data": 32, "expert": 4, "own_experts": True, "zero": 1, "expert_skew": 2.0, "expert_capacity": 1.25},
    {"pipeline": 4, "data": 16, "balanced": True, "recompute": "alternate", "overlap": True},
    {"data": 64, "zero": 3, "shards": 8, "overlap": True, "widths": Widths(8, 4, 4, True, 2), "recompute": "full"},
)
CLUSTERS = (
    ("nodes=8,gpus_per_node=8", None),
    ("nodes=16,gpus_per_node=4,nic_gbps=100,taken=0.3", None),
    ("nodes=8,gpus_per_node=8", "leaf-spine:servers_per_leaf=4,oversubscription=4"),
    ("nodes=8,gpus_per_node=8,expansion_gb=512,expansion_gb_per_s=60,expansion_shared_by=4", None),
    ("nodes=8,gpus_per_node=8", "rail-optimised:hosts_per_unit=4,nvlink_gbps=3600"),
)
PRECISIONS = ("half", "half", "fp8", "single", "nvfp4", "mxfp8")


def numbers(found: Estimate) -> str:
    """The first two to read, all others so that a digit that changes is seen."""
    memory = found.memory
    parts = (found.compute_s, found.tensor_s, found.pipeline_s, found.bubble_s, found.data_s, found.optimiser_s)
    more = (found.offload_s, found.forward_s, found.backward_s, found.missing_bytes, found.reduced_bytes, found.mfu)
    last = (found.reduced_expert_bytes, found.energy_j, found.cost, *vars(memory).values())
    return f"{short(found.step_s, memory.total_bytes)} {digest([short(*parts, *more, *last)])}"


def test_estimates_of_all_models_are_what_they_were() -> None:
    assert {name for layout in LAYOUTS for name in layout} | {"global_batch"} == set(Degrees.__dataclass_fields__)
    assert {layout.get("recompute", "none") for layout in LAYOUTS} == set(RECOMPUTE)
    efficiencies, gpus = [*EFFICIENCIES, *PROGRAMS], list(GPUS)
    kept: dict[str, str] = {}
    for number, (name, model) in enumerate(MODELS.items()):
        for place in range(3):
            case = 7 * number + 3 * place
            layout = LAYOUTS[case % len(LAYOUTS)] if isinstance(model, Transformer) else {"data": 64, "overlap": place}
            plan = Parallelism(**layout, global_batch=512)
            where, topology = CLUSTERS[(number + place) % len(CLUSTERS)]
            gpu, efficiency = gpus[(number + 5 * place) % len(gpus)], efficiencies[case % len(efficiencies)]
            precision: Any = PRECISIONS[case % len(PRECISIONS)]
            if precision not in GPUS[gpu].peak_flops_per_s:
                precision = "half"
            machine = parse_cluster(f"{gpu}:{where}", topology=topology, efficiency=efficiency).machine(64)
            algorithm = ("ring", "hierarchical", "double-binary-tree")[case % 3]
            found = estimate(model, plan, machine, precision=precision, algorithm=algorithm)
            kept[f"{name} {case} {gpu} {efficiency} {precision}"] = numbers(found)
    assert_kept("estimates", kept)
