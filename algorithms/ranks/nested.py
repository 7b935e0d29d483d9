"""Usual orders of ranks: groups of one kind on neighbouring GPUs, those of the next kind around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView

__all__ = ["Nested", "nested_order", "tp_dp_pp", "tp_pp_dp"]

Tuples = Iterable[Sequence[Sequence[int]]]


@dataclass(frozen=True, kw_only=True)
class Nested:
    """Workers of one tuple next to each other on ascending GPUs, tuples of the first kind of group innermost.

    Parameters
    ----------
    kinds
        First words of groups' names from the innermost on, with a dash between; those that a job does not have count
        for nothing. What no group joins keeps the order of workers.
    """

    kinds: str = "tensor-context-expert-data-on"

    def __post_init__(self) -> None:
        if not all(self.kinds.split("-")):
            raise InputError(f"nested: kinds is {self.kinds!r}; expected names of groups with a dash between")

    def order(self, job: JobView, gpus: Sequence[GpuId], cluster: ClusterView) -> Sequence[GpuId]:
        """Return the GPUs in the order of the job's workers."""
        placed = np.empty(job.num_gpus, np.int64)
        placed[nested_order(by_kind(job), self.kinds.split("-"), job.num_gpus)] = sorted(gpus)
        answer: list[GpuId] = placed.tolist()
        return answer


def by_kind(job: JobView) -> dict[str, list[Sequence[Sequence[int]]]]:
    """Return the groups of a job by the first word of their names."""
    kinds: dict[str, list[Sequence[Sequence[int]]]] = {}
    for name, tuples in job.dag.groups.items():
        kinds.setdefault(name.split()[0], []).append(tuples)
    return kinds


def nested_order(groups: Mapping[str, Tuples], kinds: Sequence[str], num_gpus: int) -> np.ndarray:
    """Return the workers, those that the first kinds join next to each other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    joined, keys = [np.zeros((2, 0), np.int64)], [np.arange(num_gpus)]
    for kind in kinds:
        for tuples in groups.get(kind, ()):
            members = np.array(tuples)
            joined.append(np.stack([members[:, :-1].ravel(), members[:, 1:].ravel()]))
        ends = np.concatenate(joined, axis=1)
        graph = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), (num_gpus, num_gpus))
        _, part = connected_components(graph, directed=False)
        keys.append(np.unique(part, return_index=True)[1][part])
    order: np.ndarray = np.lexsort(keys)
    return order


def tp_dp_pp() -> Nested:
    """Return tensor, context and expert groups innermost, then data, then pipeline: Megatron's usual order."""
    return Nested()


def tp_pp_dp() -> Nested:
    """Return tensor, context and expert groups innermost, then pipelines, then data."""
    return Nested(kinds="tensor-context-expert-on-data")
