"""The process groups of a rank, and the collectives that a tensor-parallel layer differentiates through.

Sums over ranks are made from all parts in the order of ranks, not by an all-reduce: the same bits on every rank and in
every run, and, where ranks share the samples evenly in powers of two, under every number of data-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ddlsched.checkpoints.collection import StoredParallelism


class Groups:
    """The groups of one rank: tensor-parallel and data-parallel neighbours, and the stages that share tied weights."""

    def __init__(self, parallelism: StoredParallelism, rank: int) -> None:
        self.parallelism, self.rank, self.place = parallelism, rank, parallelism.coordinates(rank)
        tensors, datas, stages = (range(degree) for degree in (parallelism.tp, parallelism.dp, parallelism.pp))
        number = parallelism.rank
        self.tensor = _mine([[number(t, d, s) for t in tensors] for s in stages for d in datas], rank)
        self.data = _mine([[number(t, d, s) for d in datas] for s in stages for t in tensors], rank)
        ends = sorted({0, parallelism.pp - 1})
        self.ends = _mine([[number(t, d, s) for s in ends] for d in datas for t in tensors], rank)

    @property
    def first(self) -> bool:
        """Whether this is the first pipeline stage."""
        return self.place.stage == 0

    @property
    def last(self) -> bool:
        """Whether this is the last pipeline stage."""
        return self.place.stage == self.parallelism.pp - 1

    def neighbour(self, step: int) -> int:
        """Return the rank at the same place of a later or earlier stage."""
        return self.parallelism.rank(self.place.tensor, self.place.data, self.place.stage + step)


def _mine(groups: Sequence[Sequence[int]], rank: int) -> Any:
    """Make all groups, as every process must, and return the one with this rank; None if it is alone or in none."""
    made = [(group, dist.new_group(list(group))) for group in groups if len(group) > 1]
    return next((group for ranks, group in made if rank in ranks), None)


class PairwiseSum:
    """Adds tensors up in pairs, pairs of pairs, ...: the sum of 2^k parts does not depend on who added which 2^j."""

    def __init__(self) -> None:
        self._sums: list[tuple[int, Tensor]] = []

    def add(self, value: Tensor) -> None:
        """Take in the next part."""
        count = 1
        while self._sums and self._sums[-1][0] == count:
            value = self._sums.pop()[1] + value
            count *= 2
        self._sums.append((count, value))

    def total(self, empty: Tensor) -> Tensor:
        """Return the sum; ``empty`` if there was no part."""
        result = None
        for _, value in reversed(self._sums):
            result = value if result is None else value + result
        return empty if result is None else result


def summed(value: Tensor, group: Any) -> Tensor:
    """Return the sum of all ranks' tensors, the same bits on each."""
    if group is None:
        return value
    pairwise = PairwiseSum()
    for part in gathered(value, group):
        pairwise.add(part)
    return pairwise.total(value)


def gathered(value: Tensor, group: Any) -> list[Tensor]:
    """Return all ranks' tensors, in the order of ranks."""
    parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, value.contiguous(), group=group)
    return parts


class _Enter(Function):
    @staticmethod
    def forward(context: Any, value: Tensor, group: Any) -> Tensor:
        context.group = group
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return summed(gradient, context.group), None


class _Leave(Function):
    @staticmethod
    def forward(_context: Any, value: Tensor, group: Any) -> Tensor:
        return summed(value, group).view_as(value)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GatherLast(Function):
    @staticmethod
    def forward(context: Any, value: Tensor, group: Any) -> Tensor:
        context.group, context.size = group, value.shape[-1]
        return value.view_as(value) if group is None else torch.cat(gathered(value, group), dim=-1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        first = 0 if context.group is None else context.group.rank() * context.size
        return gradient.narrow(-1, first, context.size), None


def enter(value: Tensor, group: Any) -> Tensor:
    """Return the value; its gradient is summed over the ranks. Where a replicated activation enters sharded weights."""
    return _Enter.apply(value, group)


def leave(value: Tensor, group: Any) -> Tensor:
    """Return the sum over the ranks; its gradient is each one's. Where partial activations become a replicated one."""
    return _Leave.apply(value, group)


def gather_last(value: Tensor, group: Any) -> Tensor:
    """Return all ranks' columns, one behind the other; each has its own columns' gradient."""
    return _GatherLast.apply(value, group)
