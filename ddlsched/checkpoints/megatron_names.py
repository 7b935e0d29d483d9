"""What Megatron-core calls the tensors of this package's models (:mod:`~ddlsched.checkpoints.tensor_models`)."""

from __future__ import annotations

import re

from ddlsched.checkpoints.tensors import Tensor
from ddlsched.errors import InputError

__all__ = ["megatron_name"]

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
