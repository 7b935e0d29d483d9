"""One pipeline stage of a small GPT, for one sequence, on tensor-parallel weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch
from groups import Groups, enter, gather_last, leave
from torch import Tensor
from torch.nn import functional

from ddlsched.checkpoints.tensor_models import StoredTransformer


class Dropout:
    """Masks that follow from the run's seed and from what is masked, so that no rank has a random state of its own.

    A mask is drawn for the whole activation and cut like it: it is the same under every parallelism.
    """

    def __init__(self, probability: float, seed: int, sample: int) -> None:
        self.probability, self.seed, self.sample = probability, seed, sample

    def __call__(self, value: Tensor, site: str, part: int = 0, parts: int = 1) -> Tensor:
        """Return the value with elements dropped; it is one of so many equal parts along the first dimension."""
        if not self.probability:
            return value
        text = f"{self.seed} {self.sample} {site}".encode()
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "little"))
        kept = torch.rand((value.shape[0] * parts, *value.shape[1:]), generator=generator) >= self.probability
        return value * kept.narrow(0, part * value.shape[0], value.shape[0]) / (1 - self.probability)


class Stage:
    """What a rank computes.

    Parameters
    ----------
    weights
        The rank's parts by tensor name.
    layers
        Numbers, in the whole model, of the stage's layers.
    """

    def __init__(
        self, model: StoredTransformer, groups: Groups, weights: Mapping[str, Tensor], layers: list[int]
    ) -> None:
        self.model, self.groups, self.weights, self.layers = model, groups, weights, layers

    def embed(self, tokens: Tensor, dropout: Dropout) -> Tensor:
        """Return the first layer's input, shape (tokens, hidden)."""
        table = self.weights["embedding.word.weight"]
        local = tokens - self.groups.place.tensor * table.shape[0]
        mine = (local >= 0) & (local < table.shape[0])
        words = functional.embedding(local.clamp(0, table.shape[0] - 1), table) * mine[:, None]
        positions = self.weights["embedding.position.weight"][: len(tokens)]
        return dropout(leave(words, self.groups.tensor) + positions, "embedding")

    def forward(self, value: Tensor, dropout: Dropout) -> Tensor:
        """Return the output of the stage's layers."""
        for layer in self.layers:
            value = value + dropout(self._attention(value, f"layers.{layer}.", dropout), f"{layer} attention")
            value = value + dropout(self._mlp(value, f"layers.{layer}."), f"{layer} mlp")
        return value

    def loss(self, value: Tensor, targets: Tensor, head: Tensor) -> Tensor:
        """Return the sum of the tokens' losses, in float64; ``head`` is the rank's part of the tied embedding."""
        normed = enter(self._norm(value, "final_norm"), self.groups.tensor)
        logits = gather_last(functional.linear(normed, head), self.groups.tensor)[:, : self.model.vocabulary]
        return functional.cross_entropy(logits.double(), targets, reduction="sum")

    def _norm(self, value: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(value, weight.shape, weight, bias)

    def _attention(self, value: Tensor, layer: str, dropout: Dropout) -> Tensor:
        groups, weights, name = self.groups, self.weights, layer + "attention."
        normed = enter(self._norm(value, layer + "input_norm"), groups.tensor)
        fused = functional.linear(normed, weights[name + "qkv.weight"], weights[name + "qkv.bias"])
        query, key, values = self._heads(fused)
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        future = torch.ones(len(value), len(value), dtype=torch.bool).triu(1)
        shares = scores.masked_fill(future, -torch.inf).softmax(-1)
        shares = dropout(shares, layer + "heads", groups.place.tensor, groups.parallelism.tp)
        mixed = (shares @ values).transpose(0, 1).reshape(len(value), -1)
        dense, bias = weights[name + "dense.weight"], weights[name + "dense.bias"]
        return leave(functional.linear(mixed, dense), groups.tensor) + bias

    def _heads(self, fused: Tensor) -> list[Tensor]:
        """Return queries, keys and values of the rank's heads, each of shape (heads, tokens, size of a head)."""
        model, parts = self.model, self.groups.parallelism.tp
        size, groups, each = model.hidden // model.heads, model.groups // parts, model.heads // model.groups
        if model.fused_qkv == "heads":
            pieces = fused.view(len(fused), groups, each + 2, size).split([each, 1, 1], dim=2)
        else:
            pieces = [part.view(len(fused), groups, -1, size) for part in fused.split(self._widths(), dim=1)]
        full = [part.expand(-1, -1, each, -1) for part in pieces]
        return [part.reshape(len(fused), groups * each, size).transpose(0, 1) for part in full]

    def _widths(self) -> list[int]:
        model, parts = self.model, self.groups.parallelism.tp
        size = model.hidden // model.heads
        return [model.heads * size // parts, *[model.groups * size // parts] * 2]

    def _mlp(self, value: Tensor, layer: str) -> Tensor:
        weights, name = self.weights, layer + "mlp."
        normed = enter(self._norm(value, layer + "post_attention_norm"), self.groups.tensor)
        inner = functional.linear(normed, weights[name + "h_to_4h.weight"], weights[name + "h_to_4h.bias"])
        gate, *up = inner.chunk(2, dim=1) if self.model.gated else (inner,)
        inner = functional.silu(gate) * up[0] if up else functional.gelu(gate)
        down, bias = weights[name + "4h_to_h.weight"], weights[name + "4h_to_h.bias"]
        return leave(functional.linear(inner, down), self.groups.tensor) + bias
