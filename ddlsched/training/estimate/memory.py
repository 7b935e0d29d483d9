"""Memory that training takes on each GPU, item by item (mixed precision, Adam)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.layers import Layer, Layers
from ddlsched.training.estimate.parallel_layout import Parallelism, stage_blocks

WEIGHT_BYTES = 2
GRADIENT_BYTES = 2
OPTIMISER_BYTES = 12
"""Of a parameter: weights and gradients in half precision; master weight and Adam's two moments in single."""
TABLE_BYTES = 4
"""Of a parameter in an embedding table: single precision, SGD without state worth counting."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the GPU that holds most."""

    weights_bytes: Amount
    gradients_bytes: Amount
    optimiser_bytes: Amount
    activations_bytes: Amount

    @property
    def total_bytes(self) -> Amount:
        """All of it."""
        return self.weights_bytes + self.gradients_bytes + self.optimiser_bytes + self.activations_bytes


def memory_per_gpu(layers: Layers, parallelism: Parallelism) -> Memory:
    """Return the memory of the fullest pipeline stage.

    ZeRO divides by the data-parallel GPUs: optimiser states from stage 1, gradients from 2, weights from 3. Under 1F1B
    the first stage keeps the activations of as many micro-batches as there are stages, and when interleaved a share of
    (p - 1) / (p v) more (Korthikanti et al., MLSys 2023), but never of more than there are; the second one fewer, which
    may have a block more. The last stage keeps one, but the logits too, in some programs those of all micro-batches.
    """
    copied, own = stage_parameters(layers, parallelism)
    zero, data = np.asarray(parallelism.zero), parallelism.spread_over

    def held_bytes(stage: int, bytes_each: Amount) -> Amount:
        spread = zero >= stage
        return bytes_each * (copied / np.where(spread, data, 1) + own / np.where(spread, parallelism.replicas, 1))

    return Memory(
        weights_bytes=held_bytes(3, WEIGHT_BYTES)
        + _gathered_bytes(layers, parallelism)
        + TABLE_BYTES * _sum(layers.first, "table_parameters"),
        gradients_bytes=held_bytes(2, parallelism.widths.gradient),
        optimiser_bytes=held_bytes(1, OPTIMISER_BYTES),
        activations_bytes=_activations_bytes(layers, parallelism),
    )


def stage_parameters(layers: Layers, parallelism: Parallelism) -> tuple[Amount, Amount]:
    """Return the parameters on a GPU of the fullest stage: those that replicas copy, and its experts'; no tables."""
    whole, own = _sum(layers.block, "parameters"), _sum(layers.block, "expert_parameters")
    first = _sum(layers.first, "parameters") - _sum(layers.first, "table_parameters")
    last = _sum(layers.last, "parameters")
    stages, (at_end, between) = np.asarray(parallelism.pipeline), stage_blocks(layers.num_blocks, parallelism)
    ends = np.where(stages > 1, np.maximum(first, last), first + last)
    is_between = (stages > 2) & (whole * between > whole * at_end + ends)
    blocks, beside = np.where(is_between, between, at_end), np.where(is_between, 0, ends)
    return whole * blocks + beside - own * blocks, own * blocks


def _gathered_bytes(layers: Layers, parallelism: Parallelism) -> Amount:
    """Return the weights that ZeRO 3 has gathered: those of one block, of the next, and of the output layer."""
    copied = _sum(layers.block, "parameters") - _sum(layers.block, "expert_parameters")
    gathered = 2 * copied + _sum(layers.last, "parameters")
    return np.where((np.asarray(parallelism.zero) == 3) & (parallelism.copies > 1), WEIGHT_BYTES * gathered, 0.0)


def _sum(part: Iterable[Layer], quantity: str) -> Amount:
    return sum(getattr(layer, quantity) for layer in part)


def _activations_bytes(layers: Layers, parallelism: Parallelism) -> Amount:
    stages, chunks = np.asarray(parallelism.pipeline), np.asarray(parallelism.interleave)
    kept_passes = stages + np.where(chunks > 1, (stages - 1) / chunks, 0)
    in_flight = np.minimum(parallelism.micro_batches, kept_passes)
    kept, working = _block_bytes(layers.block, parallelism.recompute, parallelism.offload)
    at_end, between = (kept * blocks for blocks in stage_blocks(layers.num_blocks, parallelism))
    first, last = (_sum(part, "activation_bytes") for part in (layers.first, layers.last))
    first_stage = in_flight * (at_end + first) + np.where(stages > 1, 0, last)
    second_stage = np.where(stages > 2, np.minimum(parallelism.micro_batches, kept_passes - 1) * between, 0)
    # Logits are the last thing kept; a micro-batch's own are counted with its loss.
    outputs = parallelism.widths.kept_logit / parallelism.widths.logit * _sum(layers.last[-1:], "activation_bytes")
    last_stage = at_end + last + np.where(stages > 1, outputs * (parallelism.micro_batches - 1), 0)
    # They are copied into one tensor once all else is gone.
    joined = np.where(stages > 1, 2 * outputs * parallelism.micro_batches, 0)
    return np.maximum(np.maximum(np.maximum(first_stage, second_stage), last_stage) + working, joined)


def _block_bytes(block: tuple[Layer, ...], recompute: Amount, offload: Amount) -> tuple[Amount, Amount]:
    """Return what a block keeps from forward to backward, and what recomputing it takes on top, once."""
    if not block:
        return 0.0, 0.0
    kind = np.asarray(recompute)
    everything = _sum(block, "activation_bytes")
    attention = _sum([layer for layer in block if layer.role == "attention"], "activation_bytes")
    # With all layers computed again, the first keeps exactly the block's input.
    entered = block[0].activation_bytes
    kept = np.where(kind == "selective", everything - attention, everything)
    kept = np.where(kind == "full", entered, kept)
    for name, share in (("elementwise", 0.0), ("alternate", 1.0)):
        given = sum(layer.output_bytes * (1 - share * layer.alternate) for layer in block)
        kept = np.where(kind == name, entered + given, kept)
    working = np.where(kind == "none", 0.0, np.where(kind == "selective", attention, everything))
    return (1 - np.asarray(offload)) * kept, working


def offloaded_bytes(layers: Layers, parallelism: Parallelism) -> Amount:
    """Return what a stage's blocks send to the host in each forward pass."""
    kept, _ = _block_bytes(layers.block, parallelism.recompute, 0.0)
    return parallelism.offload * kept * stage_blocks(layers.num_blocks, parallelism).middle
