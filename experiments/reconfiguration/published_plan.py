"""The published scheme's plan, for comparison: each rank reads all it needs from data-parallel replica 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ddlsched.checkpoints.collection import Shard, TensorCollection
from ddlsched.checkpoints.division import Holding
from ddlsched.checkpoints.plan import Move, ReshardPlan, TensorPlan, plan


def first_replica_plan(old: TensorCollection, new: TensorCollection) -> ReshardPlan:
    """Return the moves from one collection to another; raises InputError as :func:`~ddlsched.checkpoints.plan.plan`."""
    best = plan(old, new)
    tensors = (each._replace(moves=tuple(_from_first(each, old, new))) for each in best.tensors)
    return dataclasses.replace(best, tensors=tuple(tensors))


def _from_first(tensor: TensorPlan, old: TensorCollection, new: TensorCollection) -> Iterator[Move]:
    for index, cell in enumerate(tensor.cells):
        source = min(_ranks(tensor.old, cell.old), key=lambda rank: (old.parallelism.coordinates(rank).data, rank))
        for target in sorted(_ranks(tensor.new, cell.new)):
            same = old.allocation.hosts[source] == new.allocation.hosts[target]
            yield Move(index, source, target, "host" if same else "network")


def _ranks(shards: Sequence[Shard], holdings: Sequence[Holding]) -> set[int]:
    return {rank for holding in holdings for rank in shards[holding.shard].ranks}
