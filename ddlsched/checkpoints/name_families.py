"""Families of models: what Hugging Face and Megatron-core call the same weights, and how rows of one lie in the other.

References
----------
Hugging Face: ``transformers`` 5, ``modeling_llama``, ``modeling_mistral``, ``modeling_qwen2``, ``modeling_qwen3``,
``modeling_gpt2``. Megatron-core 0.16: ``GPTModel`` with one norm before attention and one before the feed-forward
layers (``get_gpt_layer_local_spec`` and the Transformer Engine's save the same names); ``linear_qkv`` holds, group by
group, the queries of a group, its key, its value; ``linear_fc1`` of a gated layer the gate, then what it gates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from ddlsched.checkpoints.tensors import Tensor
from ddlsched.errors import InputError

__all__ = ["FAMILIES", "Rows", "Weight", "megatron_name"]


class Rows(StrEnum):
    """How the rows of Hugging Face's tensors lie in Megatron-core's."""

    same = "same"
    """As they are."""
    behind = "behind"
    """Those of each tensor behind those of the one before."""
    groups = "groups"
    """Queries, keys and values, group by group."""
    vocabulary = "vocabulary"
    """As they are, then padding."""


class Weight(NamedTuple):
    """A tensor of Megatron-core; ``{}`` is the number of a layer.

    ``theirs`` are Hugging Face's tensors that it holds; ``transposed`` says that these have their rows as columns.
    """

    megatron: str
    theirs: tuple[str, ...]
    rows: Rows = Rows.same
    transposed: bool = False


_TABLE = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, tuple[Weight, ...]])
FAMILIES: Mapping[str, tuple[Weight, ...]] = _TABLE | dict.fromkeys(("mistral", "qwen2", "qwen3"), _TABLE["llama"])
"""By ``model_type`` of Hugging Face's ``config.json``."""

_STATE = re.compile(r"optimiser\.(exp_avg|exp_avg_sq|master)\.(.*)")
_NAMES = tuple(
    (re.compile(old), new)
    for old, new in (
        (r"embedding\.word\.(\w+)", r"embedding.word_embeddings.\1"),
        (r"embedding\.position\.(\w+)", r"embedding.position_embeddings.\1"),
        (r"embedding\.token_type\.(\w+)", r"embedding.tokentype_embeddings.\1"),
        (r"layers\.(\d+)\.input_norm\.(\w+)", r"decoder.layers.\1.self_attention.linear_qkv.layer_norm_\2"),
        (r"layers\.(\d+)\.attention\.qkv\.(\w+)", r"decoder.layers.\1.self_attention.linear_qkv.\2"),
        (r"layers\.(\d+)\.attention\.dense\.(\w+)", r"decoder.layers.\1.self_attention.linear_proj.\2"),
        (r"layers\.(\d+)\.post_attention_norm\.(\w+)", r"decoder.layers.\1.mlp.linear_fc1.layer_norm_\2"),
        (r"layers\.(\d+)\.mlp\.h_to_4h\.(\w+)", r"decoder.layers.\1.mlp.linear_fc1.\2"),
        (r"layers\.(\d+)\.mlp\.4h_to_h\.(\w+)", r"decoder.layers.\1.mlp.linear_fc2.\2"),
        (r"final_norm\.(\w+)", r"decoder.final_layernorm.\1"),
        (r"output\.weight", r"output_layer.weight"),
    )
)


def megatron_name(tensor: Tensor) -> str:
    """Return Megatron-core's name of a tensor of a model without experts; of any other, its own.

    Raises
    ------
    InputError
        Queries, keys and values lie apart, while Megatron-core has those of each head together.
    """
    state = _STATE.fullmatch(tensor.name)
    weight = state[2] if state else tensor.name
    for old, new in _NAMES:
        if found := old.fullmatch(weight):
            if ".qkv." in weight and any(len(cut.parts) > 1 for cut in tensor.cuts):
                text = "queries, keys and values lie one behind the other"
                raise InputError(f"tensor {tensor.name}: {text}; expected those of each head together")
            renamed = found.expand(new)
            kind = {"master": "fp32_param"}.get(state[1], state[1]) if state else ""
            return f"optimizer.state.{kind}.{renamed}" if state else renamed
    return tensor.name
