"""What a model must offer, and the transformer, generated from a short description."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.layers import (
    BothWays,
    Layer,
    LayerCollective,
    Layers,
    Operation,
    elementwise,
    matrix_product,
)
from ddlsched.training.estimate.parallel_layout import Parallelism, Rule

_BLOCK = 128
"""Queries, and keys, that a kernel of fused attention computes at once."""
_SCAN_PASSES = 12.0, 24.0
"""How often a scan reads or writes what the projection before it gives, forward and backward: fitted to hybrids."""


class Model(Protocol):
    """What the estimate asks of a model."""

    @property
    def samples_are(self) -> str:
        """What the batch counts: sequences, images, rows."""

    def layers(self, parallelism: Parallelism) -> Layers:
        """Return the layers as one GPU runs them for one micro-batch."""

    def rules(self, parallelism: Parallelism) -> list[Rule]:
        """Return what the parallelism must keep for this model."""


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
class LatentAttention:
    """Widths of multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).

    The ranks of queries and of keys and values, and of each head the part without positions, the part with them, and
    its value.
    """

    query_rank: int = 1536
    key_value_rank: int = 512
    plain_width: int = 128
    rotary_width: int = 64
    value_width: int = 128


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """Mamba-2 layers of a hybrid (Dao, Gu, "Transformers are SSMs", ICML 2024): how many, and their heads and state."""

    num_layers: int
    heads: int
    head_width: int
    state: int
    groups: int

    @property
    def inner(self) -> int:
        """Width of what is scanned."""
        return self.heads * self.head_width


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
    head_width
        Of a head; 0: ``hidden`` / ``heads``.
    latent
        Queries, keys and values through low ranks (multi-head latent attention).
    window, windowed_share
        Tokens that attention looks back in this share of its layers; the others look at the whole sequence.
    expert_inner, shared_inner
        Inner size of an expert, 0: ``feed_forward``; and of the expert that every token visits, 0: there is none.
    expert_hidden
        Size to which a token is projected for its experts (latent experts); 0: ``hidden``.
    dense_layers
        Of the first layers, how many have one feed-forward layer in place of experts.
    scan
        Layers of state spaces beside those of attention (Mamba-2).
    attention_layers
        How many layers have attention; 0: all.
    next_tokens
        Further tokens that are predicted, with a block and an output each (multi-token prediction).

    Blocks that differ are counted as so many of their mean.

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
    head_width: Amount = 0
    latent: LatentAttention | None = None
    window: Amount = 0
    windowed_share: Amount = 0.0
    expert_inner: Amount = 0
    shared_inner: Amount = 0
    expert_hidden: Amount = 0
    dense_layers: Amount = 0
    scan: StateSpace | None = None
    attention_layers: Amount = 0
    next_tokens: int = 0

    samples_are = "sequences"
    """What the batch counts."""

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
        return Layers(shard.embedding(), shard.block(), self.num_layers + self.next_tokens, shard.head())

    @property
    def shares(self) -> tuple[Amount, Amount, Amount, Amount]:
        """Of all layers, those with attention, with state spaces, with experts and with one feed-forward layer."""
        layers = np.asarray(self.num_layers)
        attention = np.where(np.asarray(self.attention_layers) > 0, self.attention_layers, layers)
        scanned = 0 if self.scan is None else self.scan.num_layers
        # In a hybrid a layer is a mixer or a feed-forward layer, in others both.
        fed = layers - np.where(attention < layers, attention + scanned, 0)
        dense = np.where(self.experts > 1, self.dense_layers, fed)
        return attention / layers, scanned / layers, (fed - dense) / layers, dense / layers


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
        self.tokens = self.s * parallelism.micro_batch / parallelism.context
        self.tensor = parallelism.tensor
        self.split = parallelism.norm_shards
        width = np.asarray(model.head_width)
        self.query = np.where(width > 0, width * model.heads, self.h)
        self.key_value = self.query * model.groups / model.heads
        self.pairs = self.tokens * self.s * model.heads / self.tensor
        self.bias = 1 if model.biases else 0
        self.gates = 2 if model.gated else 1

    def block(self) -> tuple[Layer, ...]:
        """Return the mean of the model's blocks."""
        attention, scanned, experts, dense = self.model.shares
        parts = [(attention, self.attention), (scanned, self.scan), (experts, self.experts), (dense, self.feed_forward)]
        return tuple(
            layer if np.all(np.asarray(share) == 1) else layer.times(share)
            for share, layers in parts
            if np.any(np.asarray(share) > 0)
            for layer in layers()
        )

    def attention(self) -> tuple[Layer, ...]:
        """Return the layers from the norm to the residual sum."""
        latent = self.model.latent
        wide = (self.query + 2 * self.key_value) / self.tensor
        # Of query, key, value, projection, gate, up and out, in this order, the second, fourth, ... are computed again.
        entry = (
            (self._entry("qkv", wide, self.bias * wide, kept_too=wide, alternate=self.key_value / self.tensor / wide),)
            if latent is None
            else self._latent(latent)
        )
        value = self.query if latent is None else latent.value_width * self.model.heads
        return (
            self._norm("attention norm"),
            *entry,
            *(self._fused_core() if self.model.fused_attention else self._core()),
            self._exit("projection", value / self.tensor, alternate=1.0),
            self._residual("attention residual"),
        )

    def _latent(self, latent: LatentAttention) -> tuple[Layer, ...]:
        """Return the products down to the ranks, whole on each GPU, and up to the heads, which are split."""
        down = latent.query_rank + latent.key_value_rank + latent.rotary_width
        heads = self.model.heads / self.tensor
        query = heads * (latent.plain_width + latent.rotary_width)
        key_value = heads * (latent.plain_width + latent.value_width)
        return (
            matrix_product("down", self.tokens / self.split, self.h, down, collectives=(self._entering()[0], ())),
            matrix_product("query up", self.tokens, latent.query_rank, query),
            matrix_product("key-value up", self.tokens, latent.key_value_rank, key_value),
        )

    def scan(self) -> tuple[Layer, ...]:
        """Return a layer of state spaces: projections in and out, and the scan between, which moves its inputs."""
        space = self.model.scan
        assert space is not None
        columns = (2 * space.inner + 2 * space.groups * space.state + space.heads) / self.tensor
        scanned = elementwise(
            "scan",
            self.tokens * columns,
            _SCAN_PASSES,
            kernels=5,
            activation_bytes=2 * self.tokens * columns,
        )
        scanned = dataclasses.replace(scanned, alternate=0.0, output_bytes=2 * self.tokens * space.inner / self.tensor)
        return (
            self._norm("scan norm"),
            self._entry("scan in", columns, 0),
            scanned,
            self._exit("scan out", space.inner / self.tensor, alternate=0.5),
            self._residual("scan residual"),
        )

    def _core(self) -> tuple[Layer, ...]:
        """Return scores, softmax and context as kernels of their own."""
        s, heads, width = self.s, self.model.heads, self.h / self.model.heads
        batch = self.parallelism.micro_batch * heads / self.tensor
        probabilities_bytes = 2 * self.pairs * self.model.dropout
        product = partial(matrix_product, batch=batch, weights=False, role="attention")
        return (
            product("scores", s, width, s, activation_bytes=0),
            *self._softmax(),
            product("context", s, s, width, activation_bytes=probabilities_bytes),
        )

    def _fused_core(self) -> tuple[Layer, ...]:
        """Return one kernel that never writes the scores and in backward computes them again (FlashAttention)."""
        model, latent = self.model, self.model.latent
        width = 2 * self.query / model.heads
        if latent is not None:
            width = latent.plain_width + latent.rotary_width + latent.value_width
        # A window of w tokens looks at w of the s / 2 that a causal mask leaves, of all s that are counted, and kernels
        # compute whole blocks at both its ends.
        seen = np.minimum(2 * (np.asarray(model.window) + 2 * _BLOCK) / self.s, 1.0)
        pairs = self.pairs * (1 - model.windowed_share * (1 - seen))
        flops = 2 * pairs * width
        traffic_bytes = 4 * self.tokens * (self.query + self.key_value) / self.tensor
        sums_bytes = 4 * self.tokens * model.heads / self.tensor
        shared = LayerCollective("all-gather", 4 * self.tokens * self.key_value / self.tensor, "context")
        sent = (shared,) if np.any(np.asarray(self.parallelism.context) > 1) else ()
        layer = Layer(
            name="attention",
            forward=(Operation(flops, traffic_bytes, work="attention", rows=width / 2),),
            input_gradient=(Operation(2.5 * flops, 2.5 * traffic_bytes, work="attention", rows=width / 2),),
            activation_bytes=sums_bytes,
            forward_collectives=sent,
            backward_collectives=sent,
            role="attention",
            alternate=0.0,
            output_bytes=2 * self.tokens * self.query / self.tensor + sums_bytes,
        )
        return (layer,)

    def feed_forward(self) -> tuple[Layer, ...]:
        """Return the layers from the second norm to the second residual sum."""
        model, inner = self.model, self.model.inner / self.tensor
        return (
            self._norm("feed-forward norm"),
            self._entry(
                "feed-forward in",
                inner * self.gates,
                self.bias * inner,
                alternate=0.5 if model.gated else 0.0,
            ),
            self._activation(self.tokens * inner),
            self._exit("feed-forward out", inner, alternate=0.0 if model.gated else 1.0),
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
            (4, 4),
            kernels=3,
            parameters=count,
            activation_bytes=mask_bytes,
            collectives=(self._leaving()[0], ()),
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
            collectives=self._entering(),
            odd=1 - np.log2(np.gcd(np.floor(own).astype(np.int64), 8)) / 3,
            work="output",
        )
        logits = dataclasses.replace(logits, parameters=np.where(shared, 0.0, logits.parameters))
        loss = elementwise(
            "loss",
            self.tokens * own,
            (5, 3),
            element_bytes=4,
            kernels=8,
            activation_bytes=self.parallelism.widths.logit * self.tokens * own,
        )
        last = (self._norm("last norm"), logits, loss)
        return tuple(layer.times(1 + self.model.next_tokens) for layer in last) if self.model.next_tokens else last

    def _norm(self, name: str) -> Layer:
        elements = self.tokens * self.h / self.split
        return elementwise(name, elements, (2, 4), parameters=self.h * (1 + self.bias), activation_bytes=2 * elements)

    def _softmax(self) -> tuple[Layer, ...]:
        scores = self.pairs
        softmax = elementwise("softmax", scores, (2, 3), activation_bytes=2 * scores, role="attention")
        dropout = elementwise("attention dropout", scores, (2.5, 2.5), activation_bytes=scores, role="attention")
        return (softmax, dropout) if self.model.dropout else (softmax,)

    def _residual(self, name: str) -> Layer:
        elements = self.tokens * self.h / self.split
        mask_bytes = elements * self.model.dropout
        return elementwise(name, elements, (3.5, 2.5), activation_bytes=mask_bytes)

    def _activation(self, elements: Amount) -> Layer:
        passes = (3, 5) if self.model.gated else (2, 3)
        return elementwise("activation", elements, passes, activation_bytes=2 * elements * self.gates)

    def _entry(
        self, name: str, columns: Amount, bias: Amount, *, kept_too: Amount = 0, alternate: Amount = 0.5
    ) -> Layer:
        """Return a product whose matrix is split by columns: every GPU needs the whole input.

        Its input is kept for backward, and of its output ``kept_too`` columns (queries, keys and values).
        """
        shards = 1 if self.parallelism.widths.whole_inputs else self.split
        kept_bytes = 2 * self.tokens * (self.h / shards + kept_too)
        return matrix_product(
            name,
            self.tokens,
            self.h,
            columns,
            bias=bias,
            activation_bytes=kept_bytes,
            collectives=self._entering(),
            alternate=alternate,
        )

    def _exit(self, name: str, rows: Amount, *, alternate: Amount) -> Layer:
        """Return a product whose matrix is split by rows: each GPU has a part of each sum, and keeps one summed."""
        return matrix_product(
            name,
            self.tokens,
            rows,
            self.h,
            bias=self.bias * self.h,
            collectives=self._leaving(),
            alternate=alternate,
            output_shards=self.split,
        )

    def _sharing(self) -> tuple[Amount, Amount, Amount]:
        """Return the bytes of an all-reduce without, and of a gather and scatter with sequence parallelism."""
        whole = 2 * self.tokens * self.h
        split = np.asarray(self.parallelism.sequence_parallel)
        return np.where(split, 0.0, whole), np.where(split, whole / self.tensor, 0.0), np.where(split, whole, 0.0)

    def _entering(self) -> BothWays:
        reduced, gathered, scattered = self._sharing()
        gather = LayerCollective("all-gather", gathered)
        # With sequence parallelism the input is gathered anew for the weight gradient.
        backward = LayerCollective("all-reduce", reduced), LayerCollective("reduce-scatter", scattered), gather
        return (gather,), backward

    def _leaving(self) -> BothWays:
        reduced, gathered, scattered = self._sharing()
        forward = LayerCollective("all-reduce", reduced), LayerCollective("reduce-scatter", scattered)
        return forward, (LayerCollective("all-gather", gathered),)

    def experts(self) -> tuple[Layer, ...]:
        """Return a mixture of experts, as its busiest GPU has it: route, send tokens, compute, send them back."""
        model, plan = self.model, self.parallelism
        apart = self.tensor if plan.own_experts else 1
        held = model.experts / np.asarray(plan.expert)
        inner = np.where(np.asarray(model.expert_inner) > 0, model.expert_inner, model.inner) * apart / self.tensor
        visits = self.tokens * model.active_experts * plan.expert_load / apart
        hidden = np.where(np.asarray(model.expert_hidden) > 0, model.expert_hidden, self.h)
        sent_bytes = 2 * visits * hidden * apart / self.tensor
        sent = LayerCollective("all-to-all", sent_bytes, "expert", model.active_experts)
        entering, leaving = [((), ())] * 2 if plan.own_experts else (self._entering(), self._leaving())
        router = matrix_product("router", self.tokens, self.h, model.experts)
        first = matrix_product(
            "experts in",
            visits / held,
            hidden,
            inner * self.gates,
            batch=held,
            bias=held * self.bias * inner,
            collectives=((sent, *entering[0]), (sent, *entering[1])),
            work="experts",
        )
        last = matrix_product(
            "experts out",
            visits / held,
            inner,
            hidden,
            batch=held,
            bias=held * self.bias * hidden,
            collectives=((sent, *leaving[0]), (sent, *leaving[1])),
            work="experts",
            output_shards=1 if plan.own_experts else self.split,
        )
        first, last = (dataclasses.replace(layer, expert_parameters=layer.parameters) for layer in (first, last))
        return (
            self._norm("feed-forward norm"),
            router,
            *self._latent_experts(),
            self._dispatch(visits * hidden),
            first,
            self._activation(visits * inner),
            last,
            *self._shared_expert(),
            self._residual("feed-forward residual"),
        )

    def _latent_experts(self) -> tuple[Layer, ...]:
        """Return the products to the size of latent experts and back."""
        hidden = self.model.expert_hidden
        if not np.any(np.asarray(hidden)):
            return ()
        tokens = self.tokens / self.split
        down = matrix_product("experts down", tokens, self.h, hidden)
        return down, matrix_product("experts up", tokens, hidden, self.h)

    def _dispatch(self, elements: Amount) -> Layer:
        """Return what sorts tokens by expert, and back."""
        forward = Operation(0.0, 4 * elements, work="dispatch")
        return Layer(
            name="dispatch",
            forward=(forward,),
            input_gradient=(forward._replace(kernels=2),),
            alternate=0.0,
            output_bytes=2 * elements,
        )

    def _shared_expert(self) -> tuple[Layer, ...]:
        """Return the expert that every token visits, if there is one."""
        inner = self.model.shared_inner / np.asarray(self.tensor)
        if not np.any(inner):
            return ()
        return (
            matrix_product("shared in", self.tokens, self.h, inner * self.gates),
            self._activation(self.tokens * inner),
            matrix_product("shared out", self.tokens, inner, self.h),
        )
