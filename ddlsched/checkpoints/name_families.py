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
from enum import Enum
from typing import NamedTuple

from ddlsched.checkpoints.tensors import Tensor
from ddlsched.errors import InputError

__all__ = ["FAMILIES", "Rows", "Weight", "megatron_name"]


class Rows(Enum):
    """How the rows of Hugging Face's tensors lie in Megatron-core's."""

    same = "as they are"
    behind = "those of each tensor behind those of the one before"
    groups = "queries, keys and values, group by group"
    vocabulary = "as they are, then padding"


class Weight(NamedTuple):
    """A tensor of Megatron-core; ``{}`` is the number of a layer.

    ``theirs`` are Hugging Face's tensors that it holds; ``transposed`` says that these have their rows as columns.
    """

    megatron: str
    theirs: tuple[str, ...]
    rows: Rows = Rows.same
    transposed: bool = False


def _of_layer(prefix: str, *weights: Weight) -> tuple[Weight, ...]:
    return tuple(
        weight._replace(
            megatron=f"decoder.layers.{{}}.{weight.megatron}",
            theirs=tuple(f"{prefix}.{{}}.{name}" for name in weight.theirs),
        )
        for weight in weights
    )


_PROJECTIONS = tuple(
    weight
    for kind in ("weight", "bias")
    for weight in (
        Weight(
            f"self_attention.linear_qkv.{kind}",
            (f"self_attn.q_proj.{kind}", f"self_attn.k_proj.{kind}", f"self_attn.v_proj.{kind}"),
            Rows.groups,
        ),
        Weight(f"self_attention.linear_proj.{kind}", (f"self_attn.o_proj.{kind}",)),
        Weight(f"mlp.linear_fc1.{kind}", (f"mlp.gate_proj.{kind}", f"mlp.up_proj.{kind}"), Rows.behind),
        Weight(f"mlp.linear_fc2.{kind}", (f"mlp.down_proj.{kind}",)),
    )
)
_LLAMA = (
    Weight("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), Rows.vocabulary),
    *_of_layer(
        "model.layers",
        *_PROJECTIONS,
        Weight("self_attention.linear_qkv.layer_norm_weight", ("input_layernorm.weight",)),
        Weight("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",)),
        Weight("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",)),
        Weight("mlp.linear_fc1.layer_norm_weight", ("post_attention_layernorm.weight",)),
    ),
    Weight("decoder.final_layernorm.weight", ("model.norm.weight",)),
    Weight("output_layer.weight", ("lm_head.weight",), Rows.vocabulary),
)
_GPT2 = (
    Weight("embedding.word_embeddings.weight", ("transformer.wte.weight",), Rows.vocabulary),
    Weight("embedding.position_embeddings.weight", ("transformer.wpe.weight",)),
    *_of_layer(
        "transformer.h",
        Weight("self_attention.linear_qkv.weight", ("attn.c_attn.weight",), Rows.groups, transposed=True),
        Weight("self_attention.linear_qkv.bias", ("attn.c_attn.bias",), Rows.groups),
        Weight("self_attention.linear_proj.weight", ("attn.c_proj.weight",), transposed=True),
        Weight("self_attention.linear_proj.bias", ("attn.c_proj.bias",)),
        Weight("mlp.linear_fc1.weight", ("mlp.c_fc.weight",), transposed=True),
        Weight("mlp.linear_fc1.bias", ("mlp.c_fc.bias",)),
        Weight("mlp.linear_fc2.weight", ("mlp.c_proj.weight",), transposed=True),
        Weight("mlp.linear_fc2.bias", ("mlp.c_proj.bias",)),
        *(Weight(f"self_attention.linear_qkv.layer_norm_{kind}", (f"ln_1.{kind}",)) for kind in ("weight", "bias")),
        *(Weight(f"mlp.linear_fc1.layer_norm_{kind}", (f"ln_2.{kind}",)) for kind in ("weight", "bias")),
    ),
    *(Weight(f"decoder.final_layernorm.{kind}", (f"transformer.ln_f.{kind}",)) for kind in ("weight", "bias")),
)

FAMILIES: Mapping[str, tuple[Weight, ...]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt2": _GPT2,
}
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
