"""What follows from how a model is spread over GPUs, and the rules that a combination must keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.estimate import RECOMPUTE, Amount, Degrees

MOST = 10**12
"""Of GPUs or samples: beyond it, products would leave 64 bits."""


class Rule(NamedTuple):
    """Something that must hold, by configuration, and how it reads."""

    holds: Amount
    text: str


@dataclass(frozen=True, kw_only=True)
class Parallelism(Degrees):
    """Degrees of parallelism that are in range, with what follows from them and the rules that they must keep."""

    def __post_init__(self) -> None:
        for kind in {self.recompute} if isinstance(self.recompute, str) else set(np.unique(self.recompute).tolist()):
            if kind not in RECOMPUTE:
                raise InputError(f"recompute is {kind!r}; expected one of {', '.join(RECOMPUTE)}")
        for name in (*_DEGREES, "shards", "zero"):
            if np.any(np.asarray(getattr(self, name)) > MOST):
                raise InputError(f"{name} is {getattr(self, name)}; expected at most {MOST:,}")

    @property
    def num_gpus(self) -> Amount:
        """Tensor x pipeline x data x context."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def micro_batches(self) -> Amount:
        """Micro-batches of a step on each pipeline."""
        return self.global_batch / np.maximum(self.data * self.micro_batch, 1)

    @property
    def replicas(self) -> Amount:
        """GPUs that hold copies of the same experts."""
        return self.copies * np.where(self.own_experts, self.tensor, 1) / np.asarray(self.expert)

    @property
    def expert_load(self) -> Amount:
        """Tokens that the experts of the busiest GPU compute, over the mean; all others wait for it."""
        skew, capacity = np.asarray(self.expert_skew), np.asarray(self.expert_capacity)
        return np.where(capacity > 0, np.minimum(skew, capacity), skew)

    @property
    def copies(self) -> Amount:
        """GPUs that hold the same weights: data x context."""
        return np.asarray(self.data) * self.context

    @property
    def spread_over(self) -> Amount:
        """GPUs over which ZeRO spreads what copies hold."""
        return np.where(np.asarray(self.shards) > 0, self.shards, self.copies)

    @property
    def overlapped_passes(self) -> Amount:
        """Micro-batches whose backward hides data parallelism's communication, if any does: with ZeRO 2 and 3 all."""
        if_overlapped = np.where(np.asarray(self.zero) >= 2, self.micro_batches, 1)
        return np.where(np.asarray(self.overlap), if_overlapped, 0)

    @property
    def norm_shards(self) -> Amount:
        """GPUs over which norms and dropouts are split."""
        return np.where(np.asarray(self.sequence_parallel), self.tensor, 1)

    def rules(self, num_gpus: Amount | None = None) -> list[Rule]:
        """Return the rules that hold for every model; ``num_gpus`` is the size of the cluster."""
        degrees = {name: getattr(self, name) for name in _DEGREES}
        least = "expected a whole number from 1"
        rules = [Rule(np.asarray(value) >= 1, f"{name} is {value}; {least}") for name, value in degrees.items()]
        zero = np.asarray(self.zero)
        rules.append(Rule((zero >= 0) & (zero <= 3), f"ZeRO stage is {self.zero}; expected 0, 1, 2 or 3"))
        text = (
            f"shards {self.shards} do not divide the {self.copies} GPUs that hold the same weights; expected a divisor"
        )
        rules.append(Rule(_divides(self.spread_over, self.copies), text))
        offload = np.asarray(self.offload)
        rules.append(Rule((offload >= 0) & (offload <= 1), f"offload is {self.offload}; expected a share from 0 to 1"))
        skew, capacity = np.asarray(self.expert_skew), np.asarray(self.expert_capacity)
        good = (skew >= 1) & (skew <= np.maximum(self.expert, 1))
        text = f"expert skew is {self.expert_skew}; expected a number from 1 to the {self.expert} GPUs of the experts"
        rules.append(Rule(good, text))
        text = f"expert capacity is {self.expert_capacity}; expected a number from 1, or 0 for no bound"
        rules.append(Rule((capacity == 0) | (capacity >= 1), text))
        if num_gpus is not None:
            product = f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data} is {self.num_gpus} GPUs"
            text = f"{product}; expected their product to be the {num_gpus} GPUs of the cluster"
            rules.append(Rule(self.num_gpus == num_gpus, text))
        return [*rules, *self._batch_rules()]

    def _batch_rules(self) -> list[Rule]:
        pass_size = self.data * self.micro_batch
        text = (
            f"global batch {self.global_batch} is not divisible by data {self.data} x micro-batch {self.micro_batch}; "
            "expected every pipeline to get whole micro-batches"
        )
        whole = Rule(_divides(pass_size, self.global_batch), text)
        interleaved = np.asarray(self.interleave) > 1
        text = (
            f"interleave {self.interleave} with pipeline {self.pipeline} and {self.micro_batches:g} micro-batches; "
            "expected a pipeline of at least 2 stages that divides the micro-batches"
            if np.ndim(self.micro_batches) == 0
            else ""
        )
        dealt = (np.asarray(self.pipeline) > 1) & _divides(self.pipeline, self.micro_batches)
        experts = Rule(
            _divides(self.expert, self.copies * np.where(self.own_experts, self.tensor, 1)),
            f"expert {self.expert} does not divide data {self.data}; expected experts on whole groups of replicas",
        )
        return [whole, Rule(~interleaved | dealt, text), experts]


_DEGREES = ("tensor", "data", "pipeline", "expert", "context", "interleave", "micro_batch", "global_batch")


def _divides(divisor: Amount, number: Amount) -> Amount:
    return np.mod(number, np.maximum(divisor, 1)) == 0


class StageBlocks(NamedTuple):
    """How many of a model's blocks the first and the last pipeline stage hold each, and how many one between them."""

    end: Amount
    middle: Amount


def stage_blocks(num_blocks: Amount, parallelism: Parallelism) -> StageBlocks:
    """Return the blocks of pipeline stages: as many on each or, where that does not divide, one fewer at both ends.

    The embedding and the output layer then count as a block each, as Llama 3 was split: 126 layers on 16 stages are
    7 at the ends and 8 between (Dubey et al. 2024; Megatron-core's ``account_for_embedding_in_pipeline_split``).
    """
    chunks = np.maximum(parallelism.pipeline * parallelism.interleave, 1)
    lacking = np.where(np.mod(num_blocks, chunks) == 0, 0, 2)
    middle = (num_blocks + lacking) / np.maximum(parallelism.pipeline, 1)
    return StageBlocks(middle - lacking // 2, middle)


def refuse_broken(rules: Iterable[Rule]) -> None:
    """Raise InputError with the first rule that a single configuration breaks."""
    for rule in rules:
        if not np.all(rule.holds):
            raise InputError(rule.text)
