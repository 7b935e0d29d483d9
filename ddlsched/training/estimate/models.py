"""What a model must offer, and the transformer, generated from a short description."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.layers import Collective, Layer, Layers, Operation, elementwise, matrix_product
from ddlsched.training.estimate.parallel_layout import Parallelism, Rule

__all__ = ["Model", "Transformer", "forward_flops_per_sample", "parameters"]


class Model(Protocol):
    """What the estimate asks of a model."""

    @property
    def samples_are(self) -> str:
        """What the batch counts: sequences, images, rows."""
        ...

    def layers(self, parallelism: Parallelism) -> Layers:
        """Return the layers as one GPU runs them for one micro-batch."""
        ...

    def rules(self, parallelism: Parallelism) -> list[Rule]:
        """Return what the parallelism must keep for this model."""
        ...


def parameters(model: Model) -> Amount:
    """Return the number of parameters of the whole model."""
    return _total(model, lambda layer: layer.parameters)


def forward_flops_per_sample(model: Model) -> Amount:
    """Return the operations of the matrix products of a forward pass over one sample."""
    return _total(model, lambda layer: sum(operation.flops for operation in layer.forward))


def _total(model: Model, quantity: Callable[[Layer], Amount]) -> Amount:
    first, block, num_blocks, last = model.layers(Parallelism())
    return sum(map(quantity, (*first, *last))) + sum(map(quantity, block)) * num_blocks


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A transformer of the GPT, BERT or Llama kind.

    Parameters
    ----------
    num_layers, hidden, heads, sequence, vocabulary
        The usual sizes; ``sequence`` in tokens.
    key_value_heads
        Fewer than ``heads`` for grouped-query attention; 0: as many.
    feed_forward
        Inner size of the feed-forward layer; 0: 4 x hidden.
    gated
        Whether gate and up projection are fused into a first matrix of twice the size (SwiGLU).
    experts, active_experts
        Feed-forward layers to choose from, and how many of them each token visits.
    biases
        Whether matrices and norms have biases.
    learned_positions
        Whether positions have an embedding of their own.
    tied
        Whether the output layer shares the embedding's weights.
    dropout
        Whether training drops out activations (GPT-3 and Megatron do, Llama does not).
    fused_attention
        Whether attention is one kernel that never writes its scores (FlashAttention), without dropout of its own.

    References
    ----------
    Activations kept: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023.
    Fused attention: Dao, "FlashAttention-2", ICLR 2024 (its backward has 2.5 times the operations of its forward).
    """

    num_layers: Amount
    hidden: Amount
    heads: Amount
    sequence: Amount
    vocabulary: Amount
    key_value_heads: Amount = 0
    feed_forward: Amount = 0
    gated: bool = False
    experts: int = 1
    active_experts: int = 1
    biases: bool = True
    learned_positions: bool = True
    tied: bool = True
    dropout: bool = True
    fused_attention: bool = False

    @property
    def samples_are(self) -> str:
        """The batch counts sequences."""
        return "sequences"

    @property
    def groups(self) -> Amount:
        """Heads of keys and values."""
        return np.where(np.asarray(self.key_value_heads) > 0, self.key_value_heads, self.heads)

    @property
    def inner(self) -> Amount:
        """Inner size of the feed-forward layer."""
        return np.where(np.asarray(self.feed_forward) > 0, self.feed_forward, 4 * np.asarray(self.hidden))

    def rules(self, parallelism: Parallelism) -> list[Rule]:
        """Return what the parallelism must keep."""
        tensor, stages = parallelism.tensor, parallelism.pipeline * parallelism.interleave
        rules = [
            _divisible("heads", self.heads, "tensor", tensor),
            _divisible("key-value heads", self.groups, "tensor", tensor),
            _divisible("hidden size", self.hidden, "tensor", tensor),
            _divisible("feed-forward size", self.inner, "tensor", tensor),
            _dealt_out(self.num_layers, stages),
            _divisible("experts", self.experts, "expert", parallelism.expert),
        ]
        split = np.where(np.asarray(parallelism.sequence_parallel), tensor, 1)
        return [*rules, _divisible("sequence", self.sequence, "tensor with sequence parallelism", split)]

    def layers(self, parallelism: Parallelism) -> Layers:
        """Return the layers as one GPU runs them for one micro-batch."""
        shard = _Shard(self, parallelism)
        block = (*shard.attention(), *shard.feed_forward())
        return Layers(shard.embedding(), block, self.num_layers, shard.head())


def _divisible(name: str, number: Amount, by: str, divisor: Amount) -> Rule:
    text = f"{name} {number} not divisible by {by} {divisor}; expected a divisor of {number}"
    return Rule(np.mod(number, np.maximum(divisor, 1)) == 0, text)


def _dealt_out(layers: Amount, stages: Amount) -> Rule:
    """Return the rule that :func:`~.parallel_layout.stage_blocks` can deal out a number of layers."""
    text = f"layers {layers} not divisible by pipeline x interleave {stages}; expected a divisor of {layers}"
    divisor = np.maximum(stages, 1)
    holds = (np.mod(layers, divisor) == 0) | (np.mod(layers + 2, divisor) == 0)
    return Rule(holds, f"{text}, or of {layers + 2} for one layer fewer on the first and on the last stage")


class _Shard:
    """A transformer's layers on one GPU; sizes named as in the literature."""

    def __init__(self, model: Transformer, parallelism: Parallelism) -> None:
        self.model, self.parallelism = model, parallelism
        self.h = np.asarray(model.hidden, dtype=np.float64)
        self.s = np.asarray(model.sequence, dtype=np.float64)
        self.tokens = self.s * parallelism.micro_batch
        self.tensor = parallelism.tensor
        self.split = parallelism.norm_shards
        self.key_value = self.h * model.groups / model.heads
        self.pairs = self.tokens * self.s * model.heads / self.tensor
        self.bias = 1 if model.biases else 0

    def attention(self) -> tuple[Layer, ...]:
        """Return the layers from the norm to the residual sum."""
        wide = (self.h + 2 * self.key_value) / self.tensor
        return (
            self._norm("attention norm"),
            self._entry("qkv", wide, self.bias * wide, kept_too=wide),
            *(self._fused_core() if self.model.fused_attention else self._core()),
            self._exit("projection", self.h / self.tensor),
            self._residual("attention residual"),
        )

    def _core(self) -> tuple[Layer, ...]:
        """Return scores, softmax and context as kernels of their own."""
        s, heads, width = self.s, self.model.heads, self.h / self.model.heads
        batch = self.parallelism.micro_batch * heads / self.tensor
        probabilities_bytes = 2 * self.pairs * self.model.dropout
        return (
            matrix_product("scores", s, width, s, batch=batch, weights=False, role="attention", activation_bytes=0),
            *self._softmax(),
            matrix_product(
                "context",
                s,
                s,
                width,
                batch=batch,
                weights=False,
                role="attention",
                activation_bytes=probabilities_bytes,
            ),
        )

    def _fused_core(self) -> tuple[Layer, ...]:
        """Return one kernel that never writes the scores and in backward computes them again (FlashAttention)."""
        flops = 4 * self.pairs * self.h / self.model.heads
        traffic_bytes = 4 * self.tokens * (self.h + self.key_value) / self.tensor
        sums_bytes = 4 * self.tokens * self.model.heads / self.tensor
        layer = Layer(
            name="attention",
            forward=(Operation(flops, traffic_bytes),),
            input_gradient=(Operation(2.5 * flops, 2.5 * traffic_bytes),),
            activation_bytes=sums_bytes,
            role="attention",
        )
        return (layer,)

    def feed_forward(self) -> tuple[Layer, ...]:
        """Return the layers from the second norm to the second residual sum."""
        model, tensor = self.model, self.tensor
        inner = model.inner / tensor
        if model.experts > 1:
            return (self._norm("feed-forward norm"), *self._experts(inner), self._residual("feed-forward residual"))
        return (
            self._norm("feed-forward norm"),
            self._entry("feed-forward in", inner * (2 if model.gated else 1), self.bias * inner),
            self._activation(self.tokens * inner),
            self._exit("feed-forward out", inner),
            self._residual("feed-forward residual"),
        )

    def embedding(self) -> tuple[Layer, ...]:
        """Return the first layer."""
        h, positions = self.h, self.s * self.h * self.model.learned_positions
        elements = self.tokens * h
        count = self.model.vocabulary / self.tensor * h + positions
        mask_bytes = elements / self.split * self.model.dropout
        layer = elementwise(
            "embedding",
            elements,
            forward_passes=4,
            backward_passes=4,
            kernels=3,
            parameters=count,
            activation_bytes=mask_bytes,
            forward_collectives=self._leaving(),
        )
        return (layer,)

    def head(self) -> tuple[Layer, ...]:
        """Return the last norm, the output layer and the loss (in single precision)."""
        own = self.model.vocabulary / self.tensor
        shared = np.asarray(self.model.tied) & (np.asarray(self.parallelism.pipeline) == 1)
        logits = matrix_product(
            "output",
            self.tokens,
            self.h,
            own,
            activation_bytes=2 * self.tokens * self.h / self.split,
            backward_collectives=self._entering_backward(),
            forward_collectives=self._entering(),
            odd=np.floor(own) % 2 == 1,
        )
        logits = dataclasses.replace(logits, parameters=np.where(shared, 0.0, logits.parameters))
        loss = elementwise(
            "loss",
            self.tokens * own,
            element_bytes=4,
            forward_passes=5,
            backward_passes=3,
            kernels=8,
            activation_bytes=4 * self.tokens * own,
        )
        return (self._norm("last norm"), logits, loss)

    def _norm(self, name: str) -> Layer:
        elements = self.tokens * self.h / self.split
        return elementwise(
            name,
            elements,
            forward_passes=2,
            backward_passes=4,
            kernels=1,
            parameters=self.h * (1 + self.bias),
            activation_bytes=2 * elements,
        )

    def _softmax(self) -> tuple[Layer, ...]:
        softmax = elementwise(
            "softmax",
            self.pairs,
            forward_passes=2,
            backward_passes=3,
            activation_bytes=2 * self.pairs,
            role="attention",
        )
        dropout = elementwise(
            "attention dropout",
            self.pairs,
            forward_passes=2.5,
            backward_passes=2.5,
            activation_bytes=self.pairs,
            role="attention",
        )
        return (softmax, dropout) if self.model.dropout else (softmax,)

    def _residual(self, name: str) -> Layer:
        elements = self.tokens * self.h / self.split
        mask_bytes = elements * self.model.dropout
        return elementwise(name, elements, forward_passes=3.5, backward_passes=2.5, activation_bytes=mask_bytes)

    def _activation(self, elements: Amount) -> Layer:
        gated = self.model.gated
        return elementwise(
            "activation",
            elements,
            forward_passes=3 if gated else 2,
            backward_passes=5 if gated else 3,
            activation_bytes=2 * elements * (2 if gated else 1),
        )

    def _entry(self, name: str, columns: Amount, bias: Amount, *, kept_too: Amount = 0) -> Layer:
        """Return a product whose matrix is split by columns: every GPU needs the whole input.

        Its input is kept for backward, and of its output ``kept_too`` columns (queries, keys and values).
        """
        kept_bytes = 2 * self.tokens * (self.h / self.split + kept_too)
        return matrix_product(
            name,
            self.tokens,
            self.h,
            columns,
            bias=bias,
            activation_bytes=kept_bytes,
            forward_collectives=self._entering(),
            backward_collectives=self._entering_backward(),
        )

    def _exit(self, name: str, rows: Amount) -> Layer:
        """Return a product whose matrix is split by rows: every GPU has a part of each sum."""
        return matrix_product(
            name,
            self.tokens,
            rows,
            self.h,
            bias=self.bias * self.h,
            forward_collectives=self._leaving(),
            backward_collectives=self._leaving_backward(),
        )

    def _sharing(self) -> tuple[Amount, Amount, Amount]:
        """Return the bytes of an all-reduce without, and of a gather and scatter with sequence parallelism."""
        whole = 2 * self.tokens * self.h
        split = np.asarray(self.parallelism.sequence_parallel)
        return np.where(split, 0.0, whole), np.where(split, whole / self.tensor, 0.0), np.where(split, whole, 0.0)

    def _entering(self) -> tuple[Collective, ...]:
        return (Collective("all-gather", self._sharing()[1]),)

    def _entering_backward(self) -> tuple[Collective, ...]:
        reduced, gathered, scattered = self._sharing()
        # With sequence parallelism the input is gathered anew for the weight gradient.
        return (
            Collective("all-reduce", reduced),
            Collective("reduce-scatter", scattered),
            Collective("all-gather", gathered),
        )

    def _leaving(self) -> tuple[Collective, ...]:
        reduced, _, scattered = self._sharing()
        return (Collective("all-reduce", reduced), Collective("reduce-scatter", scattered))

    def _leaving_backward(self) -> tuple[Collective, ...]:
        return (Collective("all-gather", self._sharing()[1]),)

    def _experts(self, inner: Amount) -> tuple[Layer, ...]:
        """Return a mixture of experts with balanced load: route, send tokens, compute, send them back."""
        model, held = self.model, self.model.experts / np.asarray(self.parallelism.expert)
        visits = self.tokens * model.active_experts
        sent = (Collective("all-to-all", 2 * visits * self.h / self.tensor, "expert"),)
        width = inner * (2 if model.gated else 1)
        router = matrix_product("router", self.tokens, self.h, model.experts)
        first = matrix_product(
            "experts in",
            visits / held,
            self.h,
            width,
            batch=held,
            bias=held * self.bias * inner,
            forward_collectives=(*sent, *self._entering()),
            backward_collectives=(*sent, *self._entering_backward()),
        )
        last = matrix_product(
            "experts out",
            visits / held,
            inner,
            self.h,
            batch=held,
            bias=held * self.bias * self.h,
            forward_collectives=(*sent, *self._leaving()),
            backward_collectives=(*sent, *self._leaving_backward()),
        )
        first, last = (dataclasses.replace(layer, expert_parameters=layer.parameters) for layer in (first, last))
        return router, first, self._activation(visits * inner), last
