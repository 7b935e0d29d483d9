"""The tensors of GPT, BERT and Llama-like models, from their description: no training run is needed to know shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ddlsched.checkpoints.tensors import Cut, CutPart, Place, Tensor
from ddlsched.errors import InputError
from ddlsched.ranges import REQUIRED, check_fields, ranged

Sharding: TypeAlias = Literal["none", "zero1", "fsdp"]
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class StoredTransformer:
    """A transformer whose matrices are divided as Megatron-LM does.

    Parameters
    ----------
    num_layers, hidden, heads, vocabulary, positions
        The usual sizes; ``positions`` 0: no learned position embedding.
    key_value_heads
        Fewer than ``heads`` for grouped-query attention; 0: as many.
    feed_forward
        Inner size of the feed-forward layer; 0: 4 x hidden.
    gated
        Whether gate and up projection are one fused matrix, gates first (SwiGLU).
    fused_qkv
        ``heads``: queries, keys and values of a head (or of a group of query heads) lie together, as in Megatron-LM;
        ``parts``: all queries, then all keys, then all values.
    experts
        Feed-forward networks of each layer, with a router; 0: one network, no router.
    biases
        Whether matrices have biases (norms have one too).
    tied
        Whether the output layer is the word embedding, which first and last stage then hold.
    token_types
        Segment embeddings (BERT: 2).
    pad_vocabulary
        The vocabulary is padded to a multiple of this x tp; 0: not.
    """

    num_layers: int = ranged(REQUIRED, 1, 9999)  # Names of tensors are read with four digits of the layer.
    hidden: int = ranged(REQUIRED, 1)
    heads: int = ranged(REQUIRED, 1)
    vocabulary: int = ranged(REQUIRED, 1)
    positions: int = 0
    key_value_heads: int = 0
    feed_forward: int = 0
    gated: bool = False
    fused_qkv: Literal["heads", "parts"] = "heads"
    experts: int = 0
    biases: bool = True
    tied: bool = True
    token_types: int = 0
    pad_vocabulary: int = 128

    def __post_init__(self) -> None:
        check_fields(self, "transformer")
        if self.hidden % self.heads:
            raise InputError(f"hidden {self.hidden} does not divide by heads {self.heads}; expected equal heads")
        if self.heads % self.groups:
            text = f"heads {self.heads} do not divide by key-value heads {self.groups}"
            raise InputError(f"{text}; expected groups of equal size")

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    def parameters(self, dtype: str) -> list[Tensor]:
        """Return the weights, in the order in which the model uses them."""
        shapes = [
            *self._embeddings(),
            *(t for layer in range(self.num_layers) for t in self._layer(layer)),
            *self._head(),
        ]
        return [dataclasses.replace(tensor, dtype=dtype) for tensor in shapes]

    def _embeddings(self) -> Iterator[Tensor]:
        words = (self.vocabulary, self.hidden)
        both: tuple[Place, ...] = ("first", "last") if self.tied else ("first",)
        yield _tensor("embedding.word.weight", words, both, self._vocabulary_cut())
        if self.positions:
            yield _tensor("embedding.position.weight", (self.positions, self.hidden), ("first",))
        if self.token_types:
            yield _tensor("embedding.token_type.weight", (self.token_types, self.hidden), ("first",))

    def _vocabulary_cut(self) -> Cut:
        return Cut(dim=0, pad_multiple=self.pad_vocabulary)

    def _layer(self, layer: int) -> Iterator[Tensor]:
        name = f"layers.{layer}"
        yield from self._norm(f"{name}.input_norm", layer)
        yield from self._attention(f"{name}.attention", layer)
        yield from self._norm(f"{name}.post_attention_norm", layer)
        yield from self._experts(f"{name}.mlp", layer) if self.experts else self._mlp(f"{name}.mlp", layer)

    def _norm(self, name: str, place: Place) -> Iterator[Tensor]:
        for part in ("weight", "bias") if self.biases else ("weight",):
            yield _tensor(f"{name}.{part}", (self.hidden,), (place,))

    def _attention(self, name: str, layer: int) -> Iterator[Tensor]:
        width = self.hidden // self.heads
        rows = (self.heads + 2 * self.groups) * width
        together = (CutPart(rows, self.groups),)
        apart = (
            CutPart(self.heads * width, self.heads),
            *(CutPart(self.groups * width, self.groups, shared=True),) * 2,
        )
        cut = Cut(dim=0, parts=together if self.fused_qkv == "heads" else apart)
        yield _tensor(f"{name}.qkv.weight", (rows, self.hidden), (layer,), cut)
        if self.biases:
            yield _tensor(f"{name}.qkv.bias", (rows,), (layer,), cut)
        yield from self._row_parallel(f"{name}.dense", self.heads * width, layer, self.heads)

    def _mlp(self, name: str, layer: int) -> Iterator[Tensor]:
        inner = self.feed_forward or 4 * self.hidden
        rows = inner * (2 if self.gated else 1)
        cut = Cut(dim=0, parts=(CutPart(inner),) * 2 if self.gated else ())
        yield _tensor(f"{name}.h_to_4h.weight", (rows, self.hidden), (layer,), cut)
        if self.biases:
            yield _tensor(f"{name}.h_to_4h.bias", (rows,), (layer,), cut)
        yield from self._row_parallel(f"{name}.4h_to_h", inner, layer)

    def _row_parallel(self, name: str, columns: int, layer: int, units: int = 0) -> Iterator[Tensor]:
        cut = Cut(dim=1, parts=(CutPart(columns, units),))
        yield _tensor(f"{name}.weight", (self.hidden, columns), (layer,), cut)
        if self.biases:
            yield _tensor(f"{name}.bias", (self.hidden,), (layer,))

    def _experts(self, name: str, layer: int) -> Iterator[Tensor]:
        inner = self.feed_forward or 4 * self.hidden
        rows = inner * (2 if self.gated else 1)
        spread = Cut(dim=0, axis="expert")
        first = Cut(dim=1, parts=(CutPart(inner),) * 2 if self.gated else ())
        yield _tensor(f"{name}.router.weight", (self.experts, self.hidden), (layer,))
        yield _tensor(f"{name}.experts.h_to_4h.weight", (self.experts, rows, self.hidden), (layer,), spread, first)
        yield _tensor(
            f"{name}.experts.4h_to_h.weight", (self.experts, self.hidden, inner), (layer,), spread, Cut(dim=2)
        )

    def _head(self) -> Iterator[Tensor]:
        yield from self._norm("final_norm", "last")
        if not self.tied:
            yield _tensor("output.weight", (self.vocabulary, self.hidden), ("last",), self._vocabulary_cut())


def _tensor(name: str, shape: tuple[int, ...], places: tuple[Place, ...], *cuts: Cut) -> Tensor:
    return Tensor(name=name, shape=shape, dtype="F32", places=places, cuts=cuts)


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """Adam's state.

    Parameters
    ----------
    master
        Whether weights of lower precision have a copy in fp32.
    sharding
        ``none``: every replica has all of it. ``zero1``: spread over the data-parallel ranks, in one flat buffer of
        weights that decay and one of those that do not (biases and norms). ``fsdp``: a flat buffer a layer, the weights
        too.
    """

    master: bool = True
    sharding: Sharding = "none"

    def __post_init__(self) -> None:
        if self.sharding not in get_args(Sharding):
            raise InputError(f"sharding is {self.sharding!r}; expected one of {', '.join(get_args(Sharding))}")


def job_tensors(
    model: StoredTransformer, *, dtype: str = "BF16", optimiser: Optimiser | None = None
) -> tuple[Tensor, ...]:
    """Return the tensors of a training job: weights, and with an optimiser its step, master weights and moments."""
    weights = model.parameters(dtype)
    if optimiser is None:
        return tuple(weights)
    kinds = [*(("master",) if optimiser.master and dtype != "F32" else ()), *_MOMENTS]
    states = [_state(weight, kind, optimiser.sharding) for kind in kinds for weight in weights]
    if optimiser.sharding == "fsdp":
        weights = [dataclasses.replace(weight, flat=f"weights/{_module(weight)}") for weight in weights]
    # Every stage's optimiser counts its own steps.
    places: tuple[Place, ...] = ("first", *range(model.num_layers), "last")
    step = Tensor(name="optimiser.step", shape=(), dtype="I64", places=places)
    return (*weights, *states, step)


def _state(weight: Tensor, kind: str, sharding: Sharding) -> Tensor:
    group = {"none": "", "zero1": f"{kind}/{_decay(weight)}", "fsdp": f"{kind}/{_module(weight)}"}[sharding]
    return dataclasses.replace(weight, name=f"optimiser.{kind}.{weight.name}", dtype="F32", flat=group)


def _decay(weight: Tensor) -> str:
    """Return the optimiser's group of a weight: biases and norms do not decay."""
    return "no_decay" if len(weight.shape) == 1 else "decay"


def _module(weight: Tensor) -> str:
    """Return what FSDP wraps as one: a layer, or all that is before or behind the layers."""
    return "/".join(map(str, weight.places))
