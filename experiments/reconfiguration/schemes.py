"""Ways to move a job's state, as bytes over cables: ours, the published one, and through one central host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from published_plan import first_replica_plan

from ddlsched.checkpoints.change_cost import Site, reconfiguration_s, staying
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.plan import ReshardPlan, plan
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Tensor


def collection(tensors: Sequence[Tensor], parallelism: StoredParallelism, gpus_per_host: int) -> TensorCollection:
    """Return a job on consecutive GPUs."""
    allocation = StoredRegion.packed(parallelism.num_ranks, gpus_per_host)
    return TensorCollection(tensors=tuple(tensors), parallelism=parallelism, allocation=allocation)


def stored_bytes(job: TensorCollection) -> list[int]:
    """Return the bytes that each rank holds."""
    held = [0] * job.num_ranks
    for tensor in job.tensors:
        for layout, ranks in job.shards(tensor):
            for rank in ranks:
                held[rank] += layout.num_elements * DTYPE_BYTES[tensor.dtype]
    return held


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What one scheme moves in a change, and how long its busiest cable or host is busy."""

    scheme: str
    network_bytes: int
    not_kept_bytes: int
    all_bytes: int
    lower_bound_bytes: int
    transfer_s: float


def moved(old: TensorCollection, new: TensorCollection, site: Site) -> list[Moved]:
    """Return what the published scheme, our plan, and our plan with ranks where their state is, move."""
    found = [("published", first_replica_plan(old, new)), ("plan", plan(old, new))]
    found.append(("plan, staying", plan(old, staying(old, new))))
    return [_moved(name, change, site) for name, change in found]


def _moved(name: str, change: ReshardPlan, site: Site) -> Moved:
    ways = change.bytes_by_way
    return Moved(
        scheme=name,
        network_bytes=ways["network"],
        not_kept_bytes=sum(ways.values()) - ways["kept"],
        all_bytes=sum(ways.values()),
        lower_bound_bytes=sum(change.lower_bound_bytes.values()),
        transfer_s=reconfiguration_s(change, site).transfer_s,
    )


def central_s(old: TensorCollection, new: TensorCollection, nic_bytes_per_s: float) -> float:
    """Return the seconds in which host 0 gathers every old rank's state and then sends every new rank's.

    Both pass its one card, one after the other; what its own GPUs hold or need does not.
    """
    inward = sum(held for held, host in zip(stored_bytes(old), old.allocation.hosts, strict=True) if host)
    outward = sum(held for held, host in zip(stored_bytes(new), new.allocation.hosts, strict=True) if host)
    return (inward + outward) / nic_bytes_per_s


def lost_with(job: TensorCollection, failed_hosts: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that are lost with some hosts."""
    return tuple(rank for rank, host in enumerate(job.allocation.hosts) if host in failed_hosts)
