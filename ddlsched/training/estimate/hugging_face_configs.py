"""Models from Hugging Face configurations (``config.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddlsched.errors import InputError
from ddlsched.io.reading import read_bytes
from ddlsched.io.tables import readable
from ddlsched.training.estimate.models import LatentAttention, Transformer

__all__ = ["read_configuration"]

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
    read = _Sizes(path, config)
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


class _Sizes:
    """Reads whole numbers of a configuration by the first of some names that it has."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path, self.config = path, config

    def __call__(self, *names: str, default: int | None = None) -> int:
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
                raise InputError(f"{self.path}: {name} is {value!r}; expected a whole number from 0 to {_MOST:,}")
            return value
        if default is None:
            raise InputError(f"{self.path}: has no {names[0]}; expected the configuration of a language model")
        return default


def _latent(read: _Sizes) -> LatentAttention:
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
