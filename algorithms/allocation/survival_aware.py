"""Allocation of idle nodes by how long they are likely to stay: learnt while running, from the past only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from algorithms.allocation.count_programme import best_counts
from algorithms.allocation.sharing import Sharing, check_fields
from ddlsched.cluster import Cluster
from ddlsched.elastic.survival import Survival
from ddlsched.elastic.trainers import Numbers, Trainer
from ddlsched.elastic.views import CapacityView, ElasticJobView
from ddlsched.policies import Allocation
from ddlsched.views import GpuId

__all__ = ["SurvivalAware"]


@dataclass(frozen=True, kw_only=True)
class SurvivalAware:
    """The optimum over counts in which a node counts for as long as one of its age is likely to stay.

    A job's gain at a size is its rate there, times the mean useful time of its nodes, less what the change costs and
    what nodes that leave will cost. Nodes that came together tend to leave together, and a job pays once for all that
    leave at an instant: so a job that grows takes whole groups of those that came together.

    Parameters
    ----------
    horizon_s
        Useful time ends here at the latest, since sizes are decided again later.
    most_jobs, scale_up_s, scale_down_s
        As of :class:`~algorithms.allocation.count_programme.CountProgramme`.
    """

    horizon_s: float = 300.0
    most_jobs: int = 10
    scale_up_s: float = 18.0
    scale_down_s: float = 12.0

    def __post_init__(self) -> None:
        times = {"scale_up_s": self.scale_up_s, "scale_down_s": self.scale_down_s}
        check_fields("malleable-survival", self.most_jobs, horizon_s=self.horizon_s, **times)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _SurvivalRun:
        """Return what is asked during a run."""
        return _SurvivalRun(self, Survival())


@dataclass
class _SurvivalRun:
    """Remembers since when each node is there and for how long those that left had been."""

    policy: SurvivalAware
    survival: Survival
    since_s: dict[GpuId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = self.policy
        self._sharing = Sharing(
            None, most_jobs=policy.most_jobs, scale_up_s=policy.scale_up_s, scale_down_s=policy.scale_down_s
        )

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the nodes of each job, by name."""
        served = jobs[: self.policy.most_jobs]
        self._observe([*capacity.free_gpus, *(gpu for view in served for gpu in view.gpus)], now_s)
        useful_s = self._useful_s(now_s)
        free = sorted(capacity.free_gpus, key=lambda gpu: (-useful_s[gpu], gpu))
        trainers = [self._sharing.trainer(view) for view in served]
        gains = [
            self._gains(trainer, [useful_s[gpu] for gpu in view.gpus], [useful_s[gpu] for gpu in free])
            for trainer, view in zip(trainers, served, strict=True)
        ]
        counts = best_counts(gains, capacity.num_gpus, [trainer.nodes for trainer in trainers])
        gpus = self._choose(served, counts, free, useful_s)
        return {
            view.job_id: Allocation(num_gpus=len(gpus[view.number]), gpus=gpus[view.number])
            for view in served
            if gpus[view.number]
        }

    def _observe(self, nodes: Iterable[GpuId], now_s: float) -> None:
        there = set(nodes)
        for gone in self.since_s.keys() - there:
            self.survival.saw(now_s - self.since_s.pop(gone))
        for gpu in there:
            self.since_s.setdefault(gpu, now_s)

    def _useful_s(self, now_s: float) -> dict[GpuId, float]:
        """Return for how long each node is likely to be of use, up to the horizon."""
        horizon_s = self.policy.horizon_s
        by_since = {since: self.survival.useful_s(now_s - since, horizon_s) for since in set(self.since_s.values())}
        return {gpu: by_since[since] for gpu, since in self.since_s.items()}

    def _gains(self, trainer: Trainer, own: Sequence[float], free: Sequence[float]) -> Numbers:
        """Return the samples that a job is likely to train on its best 0, 1, ... nodes, less what the change costs."""
        pool = np.concatenate([np.sort(own)[::-1], free])[: trainer.max_nodes]
        gains = np.full(len(trainer.rates), -np.inf)
        sizes = np.arange(len(pool) + 1)
        mean_s = np.append(0.0, pool.cumsum() / np.maximum(sizes[1:], 1))
        change_s = np.where(sizes > trainer.nodes, trainer.scale_up_s, trainer.scale_down_s * (sizes < trainer.nodes))
        gains[: len(sizes)] = mean_s * trainer.rates[sizes] - trainer.rate * change_s
        return np.where(trainer.allowed(), gains, -np.inf)

    def _choose(
        self,
        served: Sequence[ElasticJobView],
        counts: Sequence[int],
        free: Sequence[GpuId],
        useful_s: Mapping[GpuId, float],
    ) -> dict[int, tuple[GpuId, ...]]:
        """Return each job's nodes: one that shrinks keeps those likely to stay, one that grows adds whole groups."""
        chosen, pool = {}, set(free)
        for view, count in zip(served, counts, strict=True):
            kept = sorted(view.gpus, key=lambda gpu: (-useful_s[gpu], self.since_s[gpu], gpu))[:count]
            pool.update(set(view.gpus).difference(kept))
            chosen[view.number] = kept
        growing = sorted(
            zip(served, counts, strict=True), key=lambda each: (each[0].num_gpus - each[1], each[0].number)
        )
        for view, count in growing:
            added = self._whole_groups(pool, count - len(chosen[view.number]), chosen[view.number])
            pool.difference_update(added)
            chosen[view.number] += added
        return {number: tuple(sorted(gpus)) for number, gpus in chosen.items()}

    def _whole_groups(self, pool: Iterable[GpuId], count: int, own: Sequence[GpuId]) -> list[GpuId]:
        """Return ``count`` nodes of the pool: of groups that are already the job's, then of the largest that fit whole."""
        groups: dict[float, list[GpuId]] = {}
        for gpu in sorted(pool):
            groups.setdefault(self.since_s[gpu], []).append(gpu)
        mine = {self.since_s[gpu] for gpu in own}
        added: list[GpuId] = []
        while len(added) < count:
            left = count - len(added)
            since = min(groups, key=lambda s: (s not in mine, len(groups[s]) > left, abs(len(groups[s]) - left), s))
            added += groups.pop(since)[:left]
        return added
