"""DLRM: a recommendation model whose embedding tables are spread over all GPUs and whose MLPs are replicated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ddlsched.training.estimate.layers import Layer, LayerCollective, Layers, elementwise, matrix_product
from ddlsched.training.estimate.parallel_layout import Parallelism, Rule
from ddlsched.training.estimate.small_models import data_parallel_only

__all__ = ["Dlrm"]


@dataclass(frozen=True, kw_only=True)
class Dlrm:
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

    @property
    def samples_are(self) -> str:
        """The batch counts rows of features."""
        return "samples"

    def rules(self, parallelism: Parallelism) -> list[Rule]:
        """Return what the parallelism must keep: only data parallelism, which spreads the tables too."""
        return data_parallel_only("a DLRM", parallelism)

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
            forward_passes=1,
            backward_passes=2,
            element_bytes=4,
            parameters=held,
            activation_bytes=2 * pooled,
            forward_collectives=sent,
            backward_collectives=sent,
        )
        return dataclasses.replace(layer, table_parameters=held, awaited_before="interaction")


def _mlp(name: str, batch: object, widths: tuple[int, ...]) -> list[Layer]:
    return [
        matrix_product(f"{name} {number}", batch, inputs, outputs, bias=outputs)
        for number, (inputs, outputs) in enumerate(pairwise(widths), start=1)
    ]
