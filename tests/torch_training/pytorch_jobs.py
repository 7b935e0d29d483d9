"""A small Llama-like model as plain PyTorch trains it (FSDP2, HSDP, tensor parallelism with FSDP2), on several ranks.

Checkpoints are saved and loaded as PyTorch's documentation says, by ``get_state_dict``, ``dcp.save``, ``dcp.load`` and
``set_state_dict``, without ``allow_partial_load``. What a rank runs takes its number and a task.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HIDDEN, INNER, HEADS, KEY_HEADS, LAYERS, WORDS = 16, 22, 4, 2, 3, 37
"""INNER and WORDS divide by no number of ranks that is used: shards are uneven."""
EPOCH = 3
KINDS = {"fsdp2": 2, "hsdp": 4, "tp x fsdp2": 4, "tp": 2}
"""Ranks of each way to train."""


class Task(NamedTuple):
    """What ranks do: train in this way, with the checkpoint in this folder."""

    kind: str
    folder: str
    flat: bool = False
    """Whether the optimiser's state has one name for each entry, as torchtitan saves it, or is nested."""


def save(_rank: int, task: Task) -> dict[str, str]:
    """Train two steps and save; returns the digests of what was saved."""
    model, optimiser = _job(task.kind, seed=1)
    for _ in range(2):
        _step(model, optimiser)
    dcp.save(_state(model, optimiser, task), checkpoint_id=task.folder)
    return _digests(model, optimiser) | {"epoch": str(EPOCH)}


def load(_rank: int, task: Task) -> dict[str, str]:
    """Load into a job that began otherwise; returns the digests of what it then holds."""
    model, optimiser = _job(task.kind, seed=2)
    _step(model, optimiser)
    state = _state(model, optimiser, task) | {"epoch": 0}
    dcp.load(state, checkpoint_id=task.folder)
    options = StateDictOptions(flatten_optimizer_state_dict=task.flat)
    set_state_dict(model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optim"], options=options)
    return _digests(model, optimiser) | {"epoch": str(state["epoch"])}


def _state(model: nn.Module, optimiser: torch.optim.Optimizer, task: Task) -> dict[str, Any]:
    options = StateDictOptions(flatten_optimizer_state_dict=task.flat)
    weights, moments = get_state_dict(model, optimiser, options=options)
    return {"model": weights, "optim": moments, "epoch": EPOCH}


def _step(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.5 + 0.1
    optimiser.step()


def _job(kind: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Model()
    mesh = _mesh(kind)
    if "tp" in kind:
        _tensor_parallel(model, mesh["tp"])
    if kind != "tp":
        shards = mesh["dp"] if kind == "tp x fsdp2" else mesh
        for layer in model.model.layers:
            fully_shard(layer, mesh=shards)
        fully_shard(model, mesh=shards)
    small = [p for p in model.parameters() if p.dim() == 1]
    large = [p for p in model.parameters() if p.dim() > 1]
    groups = [{"params": large, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0, "lr": 5e-4}]
    return model, torch.optim.AdamW(groups, lr=1e-3 * seed, foreach=False)


def _mesh(kind: str) -> Any:
    ranks = dist.get_world_size()
    if kind == "hsdp":
        return init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards"))
    if kind == "tp x fsdp2":
        return init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    return init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp" if kind == "tp" else "dp",))


def _tensor_parallel(model: Model, mesh: Any) -> None:
    rows = dict.fromkeys(("q_proj", "k_proj", "v_proj"), ColwiseParallel())
    for layer in model.model.layers:
        parallelize_module(layer.self_attn, mesh, {**rows, "o_proj": RowwiseParallel()})
        halves = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        parallelize_module(layer.mlp, mesh, halves)


def _digests(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, str]:
    """Return the SHA-256 of each whole tensor, and the settings of the optimiser's groups."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = _digest(parameter)
        for key, value in optimiser.state[parameter].items():
            found[f"{name}.{key}"] = _digest(value)
    for number, group in enumerate(optimiser.param_groups):
        settings = {key: value for key, value in group.items() if key != "params"}
        found[f"group {number}"] = repr(sorted(settings.items()))
    return found


def _digest(value: torch.Tensor) -> str:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    data = whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = HIDDEN // HEADS
        self.q_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KEY_HEADS * width, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KEY_HEADS * width, bias=False)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)


class _FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(), _FeedForward()
        self.input_layernorm = nn.RMSNorm(HIDDEN)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN)


class _Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)


class Model(nn.Module):
    """The tensors of a Llama, by the names that Hugging Face gives them; it is never run."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _Body()
        self.lm_head = nn.Linear(HIDDEN, WORDS, bias=False)
