"""Published GPUs, models and programs by name, and models by their ``config.json``.

``presets.yaml`` has the GPUs and models, ``programs.yaml`` how far GPUs stay below their data sheets under programs
whose step times are published.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.io.files import read_bytes
from ddlsched.io.tables import readable
from ddlsched.training.estimate.collectives import Span
from ddlsched.training.estimate.hardware import Efficiency, Gpu, clock
from ddlsched.training.estimate.models import LatentAttention, Model, Transformer
from ddlsched.training.estimate.small_models import CNNS, LSTM_PTB, Dlrm
from ddlsched.units import is_whole

Item = TypeVar("Item")
_GB = 1e9
_TERA = 1e12
GPU_FIELDS = {
    "memory_gb": ("memory_bytes", _GB),
    "memory_gb_per_s": ("memory_bytes_per_s", _GB),
    "link_gb_per_s": ("link_bytes_per_s", _GB),
    "price_per_hour": ("price_per_hour", 1),
    "power_w": ("power_w", 1),
}
"""A GPU's figures as people write them: by what name it has each, and in what unit."""


class _Sheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU in ``presets.yaml``: its figures, and its usual server's."""

    peak_tflops: dict[str, float]
    memory_gb: float
    memory_gb_per_s: float
    link_gb_per_s: float
    host_gb_per_s: float
    power_w: int
    price_per_hour: int
    gpus_per_node: int
    nic_gbps: int

    def gpu(self, name: str) -> Gpu:
        """Return what the figures make."""
        peaks = {precision: peak * _TERA for precision, peak in self.peak_tflops.items()}
        figures = {of_gpu: getattr(self, field) * unit for field, (of_gpu, unit) in GPU_FIELDS.items()}
        return Gpu(name=name, peak_flops_per_s=peaks, host_bytes_per_s=self.host_gb_per_s * _GB, **figures)


class _Presets(msgspec.Struct, frozen=True, kw_only=True):
    gpus: dict[str, _Sheet]
    models: dict[str, Transformer]
    recommenders: dict[str, Dlrm]
    alike: dict[str, list[str]]
    unmodelled: dict[str, list[str]]


_PRESETS = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=_Presets)
GPUS: dict[str, Gpu] = {name: sheet.gpu(name) for name, sheet in _PRESETS.gpus.items()}
USUAL_SERVERS: dict[str, dict[str, int]] = {
    name: {"gpus_per_node": sheet.gpus_per_node, "nic_gbps": sheet.nic_gbps} for name, sheet in _PRESETS.gpus.items()
}
"""GPUs of a server, and Gbit/s of all its network cards, by GPU."""
EFFICIENCIES: dict[str, Efficiency] = {
    "ideal": Efficiency(),
    "megatron": Efficiency(matrix=0.740, half_flops=1e9, memory=0.529, kernel_s=5e-6),
    "eager": Efficiency(
        matrix=0.811, memory=0.623, gap_s=44.0e-6, launch_s=93.1e-6, crowded=1.361, collective_s=268e-6, odd=2.81
    ),
}
"""How far GPUs stay below those figures.

``ideal`` is the roofline. ``megatron`` was fitted to the eight published times of Megatron-LM with fused kernels
(experiments/cluster_design/megatron.py), ``eager`` to the rows of ``training_times`` (fit.py there), whose
kernels are launched one by one. Both were fitted on A100s; on other GPUs they are an assumption.
"""
A100_NODE_TIERS = (
    Span(size=8, bytes_per_s=228.4e9, latency_s=6.42e-6),
    Span(size=1, bytes_per_s=6.402e9, latency_s=10e-6),
)
"""Nodes of eight A100s as measured: inside, the fit to ``allreduce_times``; between, that to ``training_times`` (the
data sheet says 300 GB/s and, of 800 Gbit/s a node, 12.5 GB/s a GPU; the latency between nodes is assumed)."""
MODELS: dict[str, Model] = {
    **_PRESETS.models,
    **_PRESETS.recommenders,
    **CNNS,
    "lstm-ptb": LSTM_PTB,
    **{name: _PRESETS.models[earlier] for earlier, names in _PRESETS.alike.items() for name in names},
}


def plain_name(text: str) -> str:
    """Return letters and digits of a name, in small letters."""
    return "".join(filter(str.isalnum, text.lower()))


def unmodelled(name: str) -> str:
    """Return which layers of a model of this name, however it is spelt, are not modelled; nothing of other models."""
    plain = plain_name(name)
    known = _PRESETS.unmodelled.items()
    return next((f"{layers} are not modelled" for layers, starts in known if plain.startswith(tuple(starts))), "")


def preset(items: Mapping[str, Item], name: str, what: str) -> Item:
    """Return the item of a name.

    Raises
    ------
    UnknownNameError
        No such name; the message has the near ones, or why a model has no preset.
    """
    if name not in items:
        reason = unmodelled(name) if what == "model" else ""
        hint = f": {reason}" if reason else f".{did_you_mean(name, items)}"
        raise UnknownNameError(f"no {what} is named {name!r}{hint}")
    return items[name]


_MOST = 100_000_000
_STATE_SPACES = ("hybrid_override_pattern", "layers_block_type", "mamba_num_heads")
_UNMODELLED = dict.fromkeys(_STATE_SPACES, "layers of state spaces; expected a preset such as nemotron-3-nano") | {
    "index_topk": "sparse attention with an indexer, which is not modelled; expected full or windowed attention",
    "linear_num_value_heads": "gated delta nets, which are not modelled; expected full or windowed attention",
    "linear_attn_config": "linear attention, which is not modelled; expected full or windowed attention",
}


def read_configuration(path: Path, *, sequence: int = 4096) -> Transformer:
    """Return the language model of a configuration: dense, or with experts; queries grouped or latent, windows or none.

    Raises
    ------
    InputError
        The file cannot be read, lacks a size, or has one that is no whole number from 1; or it is of a model with
        layers that are not modelled or, as those of state spaces, have no common names.
    """
    try:
        given: Any = msgspec.json.decode(readable(path, "a config.json", read_bytes))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is no JSON ({error}); expected the config.json of a model") from None
    if not isinstance(given, dict):
        raise InputError(f"{path}: is no configuration; expected an object with hidden_size, num_hidden_layers, ...")
    config = given.get("text_config", given)
    for key, unknown in _UNMODELLED.items():
        if config.get(key) is not None:
            raise InputError(f"{path}: has {unknown}")
    read = partial(_size, path, config)
    heads, hidden = read("num_attention_heads"), read("hidden_size")
    experts = read("n_routed_experts", "num_local_experts", "num_experts", default=1)
    inner = read("moe_intermediate_size", "intermediate_size")
    layers, step = read("num_hidden_layers"), read("interleave_moe_layer_step", default=0)
    # Llama 4 has a shared expert, and chunks of attention in three of four layers; half of a chunk is seen on average.
    shared = inner if step else read("n_shared_experts", default=0) * inner
    dense = layers - layers // step if step else read("first_k_dense_replace", default=0)
    half_chunk = read("attention_chunk_size", default=0) // 2
    window = half_chunk or (read("sliding_window", default=0) if config.get("use_sliding_window", True) else 0)
    return Transformer(
        num_layers=layers,
        hidden=hidden,
        heads=heads,
        key_value_heads=read("num_key_value_heads", default=heads),
        head_width=read("head_dim", default=0),
        sequence=sequence,
        vocabulary=read("vocab_size"),
        feed_forward=read("intermediate_size_mlp", "intermediate_size"),
        gated=True,
        biases=bool(config.get("attention_bias", False)),
        learned_positions=False,
        tied=bool(config.get("tie_word_embeddings", False)),
        dropout=False,
        fused_attention=True,
        latent=_latent(read) if config.get("kv_lora_rank") else None,
        window=window,
        windowed_share=0.75 if half_chunk else _windowed(config.get("layer_types")) if window else 0.0,
        experts=experts,
        active_experts=read("num_experts_per_tok", "experts_per_token") if experts > 1 else 1,
        expert_inner=inner if experts > 1 else 0,
        shared_inner=read("shared_expert_intermediate_size", default=shared) if experts > 1 else 0,
        dense_layers=dense if experts > 1 else 0,
        next_tokens=read("num_nextn_predict_layers", default=0),
    )


def _size(path: Path, config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Return a whole number of a configuration by the first of some names that it has."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if not is_whole(value, 0, _MOST):
                raise InputError(f"{path}: {name} is {value!r}; expected a whole number from 0 to {_MOST:,}")
            return int(value)
    if default is None:
        raise InputError(f"{path}: has no {names[0]}; expected the configuration of a language model")
    return default


def _latent(read: Callable[..., int]) -> LatentAttention:
    return LatentAttention(
        query_rank=read("q_lora_rank"),
        key_value_rank=read("kv_lora_rank"),
        plain_width=read("qk_nope_head_dim"),
        rotary_width=read("qk_rope_head_dim"),
        value_width=read("v_head_dim"),
    )


def _windowed(kinds: Any) -> float:
    """Return the share of layers that look back a window only; all, if the configuration lists no kinds."""
    return sum(kind == "sliding_attention" for kind in kinds) / len(kinds) if isinstance(kinds, list) and kinds else 1.0


class MeasuredProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that trains, as its published times show it: a program in ``programs.yaml``.

    Attributes
    ----------
    efficiencies
        By name of a GPU that has rows.
    alike
        GPUs that have another's efficiency, at their own clock.
    links
        Shares of the data sheet's bandwidth inside and between nodes, by GPU.
    errors
        Mean error on rows that were kept out, by GPU, kind of model (``dense``, ``experts``) and precision.
    unseen
        The same of rows whose model was kept out as a whole, by kind of model.
    models
        Layers, hidden size and experts of the models that have rows.
    stand_in
        The GPU whose efficiency stands in for those without rows.
    variants
        Programs that differ in some parameters of efficiencies, by name.
    """

    efficiencies: dict[str, Efficiency]
    alike: dict[str, list[str]] = {}
    links: dict[str, tuple[float, float]]
    errors: dict[str, dict[str, dict[str, float]]]
    unseen: dict[str, float]
    models: list[tuple[int, int, int]]
    stand_in: str
    variants: dict[str, dict[str, float]] = {}

    def with_alike(self, differs: Mapping[str, Any]) -> MeasuredProgram:
        """Return the program for all its GPUs, with some parameters of its efficiencies in place of its own."""
        known = {gpu: dataclasses.replace(own, **differs) for gpu, own in self.efficiencies.items()}
        for like, others in self.alike.items():
            known |= {gpu: known[like].at_clock(clock(GPUS[gpu], GPUS[like])) for gpu in others}
        return msgspec.structs.replace(self, efficiencies=known)

    def known(self, gpu: str) -> str:
        """Return the GPU whose constants serve for one."""
        return gpu if gpu in self.efficiencies else self.stand_in

    def remark(self, gpu: str, precision: str, model: Transformer) -> str:
        """Return in a line how far estimates are expected to be off, or what they were carried over from."""
        known, experts = self.known(gpu), bool(np.max(model.experts) > 1)
        of_kind = "experts" if experts else "dense"
        error = self.errors[known].get(of_kind, {}).get(precision)
        kind = f"{'mixtures of experts' if experts else 'dense models'} in {precision} on {gpu}"
        if known != gpu:
            return f"no measured steps on {gpu}: constants of {known}, error unknown"
        if error is None:
            return f"no measured steps of {kind}: constants of others, error unknown"
        if (model.num_layers, model.hidden, model.experts) in self.models:
            return f"{100 * error:.0f} % typical error of {kind}"
        return (
            f"{100 * max(error, self.unseen[of_kind]):.0f} % typical error of {kind} where other models were measured"
        )


class _Programs(msgspec.Struct, frozen=True, kw_only=True):
    release_gain: float
    programs: dict[str, MeasuredProgram]


_READ = msgspec.yaml.decode(Path(__file__).with_name("programs.yaml").read_bytes(), type=_Programs)
RELEASE_GAIN = _READ.release_gain
"""By how much Megatron-Bridge's releases up to 26.04 are each faster than the one before."""
PROGRAMS: Mapping[str, MeasuredProgram] = {
    name: told.with_alike(differs)
    for plain, told in _READ.programs.items()
    for name, differs in [(plain, dict[str, float]()), *told.variants.items()]
}
"""llm-foundry's FSDP, torchtitan, and Megatron-Bridge, its kernels launched one by one or a step as one CUDA graph."""


def usual_program(gpu: str) -> str:
    """Return the name of the efficiency that stands for a GPU if none is named."""
    return "megatron-bridge" if gpu in (*PROGRAMS["megatron-bridge"].efficiencies, "h200", "h100-96") else "megatron"


def remark(efficiency: str, gpu: str, precision: str, model: Model) -> str:
    """Return in a line how far an estimate is expected to be off, or that nothing was measured that tells."""
    if not isinstance(model, Transformer):
        return "no measured steps of such a model, error unknown"
    if efficiency in PROGRAMS:
        return PROGRAMS[efficiency].remark(gpu, precision, model)
    experts = bool(np.max(model.experts) > 1)
    error = _A100_ERRORS.get(efficiency)
    if error is None or not gpu.startswith("a100") or precision != "half" or experts:
        kind = "mixtures of experts" if experts else "dense models"
        return f"no measured steps of {kind} in {precision} on {gpu} under {efficiency}, error unknown"
    return f"{100 * error:.0f} % typical error of GPT models on {gpu}"


_A100_ERRORS = {"megatron": 0.03, "eager": 0.04}
"""Of the published times of Megatron-LM, to which it was fitted, and of measured steps that were kept out."""
