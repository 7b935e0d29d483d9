"""A small Llama-like model of Megatron-core (``pip install megatron-core``), saved as ``torch_dist``, loaded on CPUs.

What a rank runs takes its number and a task.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

# Megatron-core asks for its GPU although nothing here needs one.
torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]

from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.optimizer import (  # noqa: E402
    get_param_id_to_sharded_param_map,
    optim_state_to_sharding_state,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

HIDDEN, INNER, HEADS, GROUPS, LAYERS, WORDS = 16, 24, 4, 2, 4, 40
ITERATION = 7


class Task(NamedTuple):
    """What ranks do: with these degrees, with the checkpoint in this folder, its layers stacked or each by itself."""

    tp: int
    pp: int
    folder: str
    stacked: bool = False


def save(_rank: int, task: Task) -> dict[str, str]:
    """Save a model that is drawn at random; returns the digests of this rank's tensors."""
    model, optimiser = _job(task, seed=1)
    state = _state(model, optimiser, task) | {"iteration": ITERATION, "checkpoint_version": 3.0}
    if not dist.get_rank():
        Path(task.folder).mkdir(exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(state, task.folder, sharded_strategy=("torch_dist", 1))
    return _digests(model, optimiser)


def load(_rank: int, task: Task) -> dict[str, str]:
    """Load into a job that began otherwise; returns the digests of this rank's tensors."""
    model, optimiser = _job(task, seed=2)
    found = dist_checkpointing.load(_state(model, optimiser, task), task.folder)
    model.load_state_dict(found["model"])
    for entry in found["optimizer"]["state"].values():
        entry["step"] = found["step"].clone()
    optimiser.load_state_dict(found["optimizer"])
    return _digests(model, optimiser) | {"iteration": str(found["iteration"])}


def load_gpt(_rank: int, folder: str) -> dict[str, Any]:
    """Load a GPT of 4 layers, hidden size 64 and 4 heads as one rank; returns its tensors by their global names."""
    parallel_state.initialize_model_parallel(1, 1)
    config = TransformerConfig(num_layers=4, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=250,
        max_sequence_length=32,
        share_embeddings_and_output_weights=True,
        position_embedding_type="learned_absolute",
    )
    state = model.sharded_state_dict(metadata={"non_homogeneous_layers": True})
    wanted = {name: value for name, value in state.items() if "_extra_state" not in name}
    keys = {name: value.key for name, value in wanted.items()}
    found = dist_checkpointing.load(wanted, folder)
    return {key: found[name].numpy() for name, key in keys.items()}


class Llama(NamedTuple):
    """A Llama's sizes, and a checkpoint of it."""

    folder: str
    layers: int
    hidden: int
    inner: int
    heads: int
    groups: int
    words: int


def logits(_rank: int, llama: Llama) -> Any:
    """Load a Llama as one rank, and return what it makes of the words 0, 7, 14, ...: an array (words, vocabulary)."""
    parallel_state.initialize_model_parallel(1, 1)
    # Without dropout nothing is drawn, yet Megatron-core would set a GPU's generator.
    CudaRNGStatesTracker.fork = lambda *_args, **_known: nullcontext()  # type: ignore[method-assign]
    config = TransformerConfig(
        num_layers=llama.layers,
        hidden_size=llama.hidden,
        ffn_hidden_size=llama.inner,
        num_attention_heads=llama.heads,
        num_query_groups=llama.groups,
        use_cpu_initialization=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        layernorm_epsilon=1e-6,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=llama.words,
        max_sequence_length=64,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    ).eval()
    state = model.sharded_state_dict(metadata={"non_homogeneous_layers": False})
    wanted = {name: value for name, value in state.items() if "_extra_state" not in name}
    model.load_state_dict(dist_checkpointing.load(wanted, llama.folder), strict=False)
    words, places = torch.arange(20)[None] * 7 % llama.words, torch.arange(20)[None]
    with torch.no_grad():
        return model(words, places, torch.ones(1, 1, 20, 20).triu(1).bool())[0].numpy()


def _job(task: Task, seed: int) -> tuple[GPTModel, torch.optim.AdamW]:
    parallel_state.initialize_model_parallel(task.tp, task.pp)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        ffn_hidden_size=INNER,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        tensor_model_parallel_size=task.tp,
        pipeline_model_parallel_size=task.pp,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        layernorm_epsilon=1e-5,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        perform_initialization=True,
    )
    torch.manual_seed(seed)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=WORDS,
        max_sequence_length=8,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3 * seed, foreach=False)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.5 + 0.1 * seed
    adam.step()
    return model, adam


def _state(model: GPTModel, adam: torch.optim.AdamW, task: Task) -> dict[str, Any]:
    """Return what is saved, or where it is to be loaded; Megatron-core keeps one count of steps, apart."""
    weights = model.sharded_state_dict(metadata={"non_homogeneous_layers": not task.stacked})
    state = adam.state_dict()
    steps = [entry.pop("step") for entry in map(dict, state["state"].values())]
    state["state"] = {
        number: {key: value for key, value in entry.items() if key != "step"}
        for number, entry in state["state"].items()
    }
    known = get_param_id_to_sharded_param_map(weights, model.parameters())
    optim_state_to_sharding_state(state, known)
    return {"model": weights, "optimizer": state, "step": steps[0]}


def _digests(model: GPTModel, optimiser: torch.optim.AdamW) -> dict[str, str]:
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = _digest(parameter)
        state = optimiser.state[parameter]
        found |= {f"{name}.{key}": _digest(state[key]) for key in ("exp_avg", "exp_avg_sq")}
    return found


def _digest(value: torch.Tensor) -> str:
    data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()
