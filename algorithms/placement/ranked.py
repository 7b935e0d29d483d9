"""The GPUs of another placement, with the job's ranks on them in an order: groups of one kind near, or fewest bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from algorithms.placement.backfilling import OfAnother, PlacesOthers
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, label
from ddlsched.network.collectives import ROUNDS
from ddlsched.plugins.names import resolve
from ddlsched.policies.doors import PlacementPolicy, RankOrder
from ddlsched.policies.views import ClusterView, GpuId, JobView, as_list
from ddlsched.workload.tasks import CollectiveTask


class _Ranked(PlacesOthers):
    def __init__(self, policy: Ranked, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__(policy, cluster, rng)
        self._ranks: RankOrder = resolve("ranks", policy.ranks)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs in the order of the job's workers."""
        chosen = self._other.place(job, cluster)
        if chosen is None:
            return None
        gpus = list(self._ranks.order(job, chosen, cluster))
        if sorted(gpus) != sorted(chosen):
            given = f"expected the {len(chosen)} GPUs that it was given, each once"
            raise InputError(f"ranks {label(self._ranks)} answered {gpus[:8]}; {given}")
        return gpus


@dataclass(frozen=True, kw_only=True)
class Ranked(OfAnother):
    """Another placement chooses the GPUs, an order of ranks which worker gets which: what crosses the slow links.

    Parameters
    ----------
    placement
        Chooses the GPUs.
    ranks
        Orders them.
    """

    placement: PlacementPolicy | str = "levels"
    ranks: RankOrder | str = "least-bytes"
    asked = _Ranked

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve("ranks", self.ranks)


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
        return placed.tolist()


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
    return np.lexsort(keys)


def tp_dp_pp() -> Nested:
    """Return tensor, context and expert groups innermost, then data, then pipeline: Megatron's usual order."""
    return Nested()


def tp_pp_dp() -> Nested:
    """Return tensor, context and expert groups innermost, then pipelines, then data."""
    return Nested(kinds="tensor-context-expert-on-data")


@dataclass(frozen=True, kw_only=True)
class LeastBytes:
    """Of the order in which a placement gave the GPUs and all orders of nested groups, the one with the least bytes.

    First those that leave units of the widest level count, as networks are narrowest at the top; of equal ones those of
    the next level, down to servers. Collectives are counted as rings over units, all-to-alls and sends as they go.
    """

    def order(self, job: JobView, gpus: Sequence[GpuId], cluster: ClusterView) -> Sequence[GpuId]:
        """Return the GPUs in the order of the job's workers."""
        groups, sent = by_kind(job), _sent(job)
        used = {t.group.split()[0] for t in job.dag.tasks if isinstance(t, CollectiveTask) and t.group is not None}
        kinds = sorted(used - {"back"})  # which pairs as the sends on do
        candidates = [np.array(gpus)]
        for order in permutations(kinds):
            candidates.append(np.empty(job.num_gpus, np.int64))
            candidates[-1][nested_order(groups, order, job.num_gpus)] = sorted(gpus)
        levels = [cluster.units(name) for name in reversed(cluster.network.levels)]
        return as_list(min(candidates, key=lambda placed: _crossing(sent, [of[placed] for of in levels])))


def _sent(job: JobView) -> list[tuple[str, np.ndarray, float]]:
    """Return kind, tuples and bytes of what an iteration sends; what is alike is added up."""
    sent: dict[tuple[str, str], float] = {}
    for task in job.dag.tasks:
        if isinstance(task, CollectiveTask) and task.group is not None:
            sent[task.kind, task.group] = sent.get((task.kind, task.group), 0.0) + task.message_bytes
    return [(kind, np.array(job.dag.groups[group]), total) for (kind, group), total in sent.items()]


def _crossing(sent: Sequence[tuple[str, np.ndarray, float]], units: Sequence[np.ndarray]) -> list[float]:
    """Return the bytes that leave units; ``units`` has at each level those of the workers."""
    return [sum(total * _share(kind, of_worker[tuples]) for kind, tuples, total in sent) for of_worker in units]


def _share(kind: str, units: np.ndarray) -> float:
    """Return how often the message of a collective leaves a unit, all tuples together; a row of units a tuple."""
    units, size = np.sort(units, axis=1), int(units.shape[1])
    spans: np.ndarray = 1 + (units[:, 1:] != units[:, :-1]).sum(axis=1)
    if kind == "all-to-all":
        return sum(int((units != units[:, [place]]).sum()) for place in range(size)) / size
    if kind not in ROUNDS:
        return float(np.sum(spans - 1))
    return ROUNDS[kind] * (size - 1) / size * float(np.sum(spans[spans > 1]))
