"""Estimates of every published model in layouts that use all that a layout can say, on every published GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_numbers import answered, assert_kept, digest, short

from ddlsched.training.estimate import RECOMPUTE, Degrees, Widths
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.energy_costs import Costs
from ddlsched.training.estimate.grouped_steps import grouped_step
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import EFFICIENCIES, GPUS, MODELS, PROGRAMS, read_configuration
from ddlsched.training.estimate.step_estimate import Estimate, estimate, estimate_checked

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


@pytest.mark.long
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


@pytest.mark.long
def test_steps_whose_traffic_is_in_groups_are_what_they_were() -> None:
    mixture = dataclasses.replace(MODELS["gpt3-350m"], experts=8, active_experts=2)  # type: ignore[type-var]
    machine, found = parse_cluster("h100:nodes=8,gpus_per_node=8", efficiency="megatron").machine(64), dict[str, str]()
    for number, layout in enumerate((*LAYOUTS, {"tensor": 4, "pipeline": 2, "data": 8, "sequence_parallel": True})):
        for name, model in (("dense", MODELS["gpt3-6.7b"]), ("mixture", mixture)):
            plan = Parallelism(**layout, global_batch=128)

            def step(model: Any = model, plan: Parallelism = plan) -> str:
                estimated = estimate_checked(model, plan, machine)
                dag = grouped_step(estimated, model.layers(plan), Costs(parallelism=plan, machine=machine))
                lengths = [getattr(task, "message_bytes", None) or task.duration_ns for task in dag.tasks]
                rest = [(type(task).__name__, task.name, task.group, task.after) for task in dag.tasks]
                algorithms = [getattr(task, "algorithm", "") for task in dag.tasks]
                moved = digest(f"{length:.6g}" for length in lengths)
                return f"{len(lengths)} {digest(rest)} {moved} {digest(algorithms)}"

            found[f"{number} {name}"] = answered(step)
    assert sum("; expected" in told for told in found.values()) < len(found) / 2
    assert_kept("grouped-steps", found)


SIZES = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "vocab_size": 100,
    "intermediate_size": 96,
}
FURTHER: dict[str, tuple[Any, ...]] = {
    "num_key_value_heads": (2, 0), "head_dim": (16, True), "attention_bias": (True,), "tie_word_embeddings": (True,),
    "num_experts": (1, 4, 2.0), "n_routed_experts": (8,), "num_local_experts": (0, 2), "num_experts_per_tok": (2, -1),
    "experts_per_token": (1,), "moe_intermediate_size": (32,), "intermediate_size_mlp": (48,), "n_shared_experts": (2,),
    "interleave_moe_layer_step": (1, 2, 4), "first_k_dense_replace": (3,), "shared_expert_intermediate_size": (40,),
    "attention_chunk_size": (512, 1), "sliding_window": (128, None, "x"), "use_sliding_window": (False, True),
    "layer_types": (["sliding_attention", "full_attention", "sliding_attention"], [], "all", ["full_attention"]),
    "num_nextn_predict_layers": (1,), "kv_lora_rank": (16,), "q_lora_rank": (24,), "qk_nope_head_dim": (8,),
    "qk_rope_head_dim": (4,), "v_head_dim": (12,), "index_topk": (3,),
}  # fmt: skip


def test_configurations_are_read_as_they_were(tmp_path: Path) -> None:
    rng, found, path = np.random.default_rng(2), dict[str, str](), tmp_path / "config.json"
    latent = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

    def read(config: dict[str, Any]) -> str:
        path.write_text(json.dumps(config))
        return answered(read_configuration, path).replace(str(path), "")

    for name, values in FURTHER.items():
        found[name] = digest([read(SIZES | {name: value}) for value in values])
    for name in SIZES:
        found[f"no {name}"] = read({other: size for other, size in SIZES.items() if other != name})
    for case in range(40):
        names = [name for name in FURTHER if name not in (*latent, "index_topk") and rng.random() < 0.4]
        names += latent if rng.random() < 0.2 else ()
        more = {name: FURTHER[name][0 if rng.random() < 0.9 else -1] for name in names}
        found[f"{case}"] = digest([read({"text_config": SIZES | more} if case % 5 == 0 else SIZES | more)])
    assert_kept("model-configurations", found)
