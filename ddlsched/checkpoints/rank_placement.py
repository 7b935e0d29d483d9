"""On which devices the ranks of a resized job find most of their state: who stays where.

A plan moves what a host lacks; how much that is depends on which new rank is put where. Ranks packed in their order, as
launchers put them, often land on devices with another stage's state (Megatron numbers data-parallel neighbours before
stages, so doubling dp shifts every later stage).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.checkpoints.collection import StoredRegion, TensorCollection
from ddlsched.checkpoints.division import divided
from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["staying"]

_DEVICE_BONUS = 1e-3
"""What a byte that need not leave its device counts, beside one that need not leave its host."""


def staying(old: TensorCollection, new: TensorCollection, lost: Collection[int] = ()) -> TensorCollection:
    """Return the new collection with its ranks on the same devices, but so that most of their state is there already.

    Tensor-parallel groups stay whole: they exchange places with each other, on blocks of devices as ``new`` has them,
    and within a block ranks keep their order. The assignment is the best one for groups that need their state apart;
    that groups on one host may share what they fetch is left out of account.

    Parameters
    ----------
    old
        The job as it runs.
    new
        The resized job, on the devices that it may use.
    lost
        Old ranks whose state is gone.

    Raises
    ------
    InputError
        The collections do not hold the same tensors.
    """
    from scipy.optimize import linear_sum_assignment

    tp = new.parallelism.tp
    blocks = [range(first, first + tp) for first in range(0, new.num_ranks, tp)]
    on_device, on_host = _present_bytes(old, new, frozenset(lost))
    gains = np.array([[_gain(new, group, block, on_device, on_host) for block in blocks] for group in blocks])
    groups, chosen = linear_sum_assignment(gains, maximize=True)
    places = [0] * new.num_ranks
    for group, block in zip(groups.tolist(), chosen.tolist(), strict=True):
        for rank, place in zip(blocks[group], blocks[block], strict=True):
            places[rank] = place
    allocation = StoredRegion(
        devices=tuple(new.allocation.devices[place] for place in places),
        hosts=tuple(new.allocation.hosts[place] for place in places),
    )
    return new.resized(new.parallelism, stages=new.stages, allocation=allocation)


def _gain(new: TensorCollection, group: Sequence[int], block: Sequence[int], on_device: Any, on_host: Any) -> float:
    """Return what putting a group's ranks on a block's devices saves, bytes."""
    devices, hosts = new.allocation.devices, new.allocation.hosts
    near = sum(on_host[hosts[place]][rank] for rank, place in zip(group, block, strict=True))
    same = sum(on_device[devices[place]][rank] for rank, place in zip(group, block, strict=True))
    return float(near + _DEVICE_BONUS * same)


def _present_bytes(
    old: TensorCollection, new: TensorCollection, lost: frozenset[int]
) -> tuple[dict[int, NDArray[np.float64]], dict[int, NDArray[np.float64]]]:
    """Return, by device and by host, how many bytes of each new rank's state are there."""
    zeros = np.zeros(new.num_ranks)
    on_device: dict[int, NDArray[np.float64]] = defaultdict(zeros.copy)
    on_host: dict[int, NDArray[np.float64]] = defaultdict(zeros.copy)
    for tensor in new.tensors:
        if tensor.name not in old.by_name:
            raise InputError(f"tensor {tensor.name}: is not in the old collection; expected the same tensors")
        before, after = old.shards(old.by_name[tensor.name]), new.shards(tensor)
        for cell in divided(tuple(shard.layout for shard in before), tuple(shard.layout for shard in after)):
            size = cell.box.num_elements * DTYPE_BYTES[tensor.dtype]
            wanted = sorted({rank for holding in cell.new for rank in after[holding.shard].ranks})
            sources = {rank for holding in cell.old for rank in before[holding.shard].ranks} - lost
            for rank in sources:
                on_device[old.allocation.devices[rank]][wanted] += size
            for host in {old.allocation.hosts[rank] for rank in sources}:
                on_host[host][wanted] += size
    return on_device, on_host
