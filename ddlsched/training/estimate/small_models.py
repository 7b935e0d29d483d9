"""Models that are no transformers: the CNNs and the LSTM of the 64-GPU experiment, and DLRM's spread tables."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from ddlsched.training.estimate.layers import Layer, LayerCollective, Layers, elementwise, matrix_product
from ddlsched.training.estimate.parallel_layout import Parallelism, Rule


class _DataParallel:
    """A model that is not split over tensor-parallel GPUs or pipeline stages."""

    _kind: ClassVar[str]
    """How messages call it."""

    def rules(self, parallelism: Parallelism) -> list[Rule]:
        """Return what the parallelism must keep: data parallelism alone."""
        what, recompute, zero = self._kind, parallelism.recompute, parallelism.zero
        degrees = {name: getattr(parallelism, name) for name in ("tensor", "pipeline", "expert", "interleave")}
        return [
            *(Rule(np.asarray(of) == 1, f"{name} {of}; expected 1 for {what}") for name, of in degrees.items()),
            Rule(recompute == "none", f"recompute {recompute!r}; expected 'none' for {what}"),
            Rule(np.asarray(zero) <= 1, f"ZeRO stage {zero}; expected 0 or 1 for {what}"),
        ]


class Convolution(NamedTuple):
    """A convolution, or with ``out_size`` 1 a fully connected layer.

    ``inputs`` and ``outputs`` are channels, ``kernel`` height x width, ``out_size`` the side of the square it produces;
    ``norm`` whether a batch normalisation follows (which has parameters, and takes the bias's place).
    """

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    out_size: int
    norm: bool = True


@dataclass(frozen=True, kw_only=True)
class Cnn(_DataParallel):
    """A convolutional network for images, in single precision's layout of ``convolutions`` in order."""

    convolutions: tuple[Convolution, ...]

    samples_are = "images"
    _kind = "a CNN"

    def layers(self, parallelism: Parallelism) -> Layers:
        """Return each convolution as a matrix product over its unrolled windows, then its norm and activation."""
        parts: list[Layer] = []
        for number, one in enumerate(self.convolutions, start=1):
            pixels = parallelism.micro_batch * one.out_size**2
            window = one.inputs * one.kernel[0] * one.kernel[1]
            bias = 2 * one.outputs if one.norm else one.outputs
            kept_bytes = 2 * pixels * one.outputs
            parts.append(
                matrix_product(
                    f"convolution {number}", pixels, window, one.outputs, bias=bias, activation_bytes=kept_bytes
                )
            )
            passes, kernels = ((5, 7), 2) if one.norm else ((2, 3), 1)
            name, elements = f"activation {number}", pixels * one.outputs
            parts.append(elementwise(name, elements, passes, kernels=kernels, activation_bytes=kept_bytes))
        return Layers(tuple(parts), (), 0, ())


@dataclass(frozen=True, kw_only=True)
class Lstm(_DataParallel):
    """A word-level language model: embedding, stacked LSTMs, output layer.

    Parameters
    ----------
    num_layers, hidden, vocabulary
        Sizes; words are embedded in ``hidden`` numbers.
    sequence
        Words of a sample.
    """

    num_layers: int
    hidden: int
    vocabulary: int
    sequence: int

    samples_are = "sequences"
    _kind = "an LSTM"

    def layers(self, parallelism: Parallelism) -> Layers:
        """Return the layers; within an LSTM layer, the words run one after the other."""
        words = parallelism.micro_batch * self.sequence
        embedding = elementwise("embedding", words * self.hidden, (2, 2), parameters=self.vocabulary * self.hidden)
        stack = [self._layer(number, parallelism) for number in range(1, self.num_layers + 1)]
        output = matrix_product("output", words, self.hidden, self.vocabulary, bias=self.vocabulary)
        return Layers((embedding, *stack, output), (), 0, ())

    def _layer(self, number: int, parallelism: Parallelism) -> Layer:
        """Return an LSTM layer: per word, [input, state] times the four gates' matrices, and the gates' arithmetic."""
        words = parallelism.micro_batch * self.sequence
        product = matrix_product(f"lstm {number}", words, 2 * self.hidden, 4 * self.hidden, bias=8 * self.hidden)
        weights_again = 2 * (self.sequence - 1) * 8 * self.hidden**2
        (whole,) = product.forward
        steps = whole._replace(traffic_bytes=whole.traffic_bytes + weights_again, kernels=self.sequence)
        gates = elementwise("", words * self.hidden, (9, 12), kernels=self.sequence)
        return dataclasses.replace(
            product,
            forward=(steps, *gates.forward),
            input_gradient=(steps, *gates.input_gradient),
            activation_bytes=2 * words * 8 * self.hidden,
        )


_TABLE = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, tuple[Convolution, ...]])
CNNS = {name: Cnn(convolutions=convolutions) for name, convolutions in _TABLE.items()}
"""VGG-16 (Simonyan and Zisserman, ICLR 2015); ResNet-50 (He et al., CVPR 2016), with the stride on the 3 x 3
convolution, and Inception v3 (Szegedy et al., CVPR 2016) on images of 299 x 299, with its auxiliary classifier, which
trains along: both as torchvision builds them."""
LSTM_PTB = Lstm(num_layers=2, hidden=1500, vocabulary=10_000, sequence=35)
"""Zaremba et al., 2014, the large model for the Penn Treebank."""


@dataclass(frozen=True, kw_only=True)
class Dlrm(_DataParallel):
    """A DLRM: sparse features go through embedding tables, dense ones through the bottom MLP, both meet in the top MLP.

    Parameters
    ----------
    tables, rows, dimension
        Embedding tables, rows of each, width of a row.
    lookups
        Rows that one sample takes from each table, summed.
    dense_features
        Width of the dense input.
    bottom, top
        Widths of the layers of the two MLPs; the bottom one ends with ``dimension``.

    References
    ----------
    Naumov et al., "Deep Learning Recommendation Model", 2019.
    """

    tables: int
    rows: int
    dimension: int
    lookups: int
    dense_features: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]

    samples_are = "samples"
    _kind = "a DLRM"

    def layers(self, parallelism: Parallelism) -> Layers:
        """Return the layers as one GPU runs them."""
        batch = parallelism.micro_batch
        pairs = (self.tables + 1) * self.tables // 2
        bottom = _mlp("bottom", batch, (self.dense_features, *self.bottom))
        first, *rest = _mlp("top", batch, (pairs + self.dimension, *self.top))
        interaction = matrix_product(
            "interaction",
            self.tables + 1,
            self.dimension,
            self.tables + 1,
            batch=batch,
            weights=False,
            activation_bytes=2 * batch * (self.tables + 1) * self.dimension,
        )
        return Layers((self._embedding(parallelism), *bottom, interaction, first, *rest), (), 0, ())

    def _embedding(self, parallelism: Parallelism) -> Layer:
        """Return the lookups of this GPU's share of the tables, for the samples of all GPUs."""
        batch, gpus = parallelism.micro_batch, np.asarray(parallelism.data)
        pooled = batch * self.tables * self.dimension
        sent = (LayerCollective("all-to-all", 2 * pooled, "world"),)
        held = self.tables * self.rows * self.dimension / gpus
        layer = elementwise(
            "embedding",
            pooled * self.lookups,
            (1, 2),
            element_bytes=4,
            parameters=held,
            activation_bytes=2 * pooled,
            collectives=(sent, sent),
        )
        return dataclasses.replace(layer, table_parameters=held, awaited_before="interaction")


def _mlp(name: str, batch: object, widths: tuple[int, ...]) -> list[Layer]:
    return [
        matrix_product(f"{name} {number}", batch, inputs, outputs, bias=outputs)
        for number, (inputs, outputs) in enumerate(pairwise(widths), start=1)
    ]
