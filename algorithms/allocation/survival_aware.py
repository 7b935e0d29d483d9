"""Allocation of idle nodes by how long they are likely to stay, as learnt so far, and by what a change costs now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from algorithms.allocation.count_programme import CountProgramme, best_counts
from algorithms.allocation.sharing import Sharing, SharingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import GpuId
from ddlsched.ranges import ranged
from ddlsched.workload.malleable.trainers import Survival, Trainer, gains

__all__ = ["SurvivalAware", "SurvivalRun"]


@dataclass(frozen=True, kw_only=True)
class SurvivalAware(SharingPolicy):
    """The optimum over counts with three changes, all from what has been seen so far.

    The look-ahead is for how long the nodes that are there are likely to stay, up to the horizon. A change costs
    what it costs now: a job that has to stop anyway, since it lost nodes or an earlier change is under way, loses only
    the difference. And nodes are not interchangeable: the job that trains the most keeps and adds those that are the
    likeliest to stay, as the loss of a node costs its whole job; one not worth a change is not taken.

    Parameters
    ----------
    horizon_s
        Useful time ends here at the latest, since sizes are decided again later.
    """

    horizon_s: float = ranged(150.0, 0.0)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> SurvivalRun:
        """Return what is asked during a run."""
        return SurvivalRun(self, Survival())


@dataclass
class SurvivalRun:
    """Remembers since when each node is there and for how long those that left had been."""

    policy: SurvivalAware
    survival: Survival
    since_s: dict[GpuId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sharing = Sharing(CountProgramme(), self.policy)

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the nodes of each job, by name."""
        served = jobs[: self.policy.most_jobs]
        held = [gpu for view in served for gpu in view.gpus]
        self._observe([*capacity.free_gpus, *held], now_s)
        useful_s = self.useful_s(now_s)
        worth_s = self.policy.scale_up_s + self.policy.scale_down_s
        free = [gpu for gpu in capacity.free_gpus if useful_s[gpu] >= min(worth_s, self.policy.horizon_s)]
        trainers = [self._trainer(view) for view in served]
        lookahead_s = float(np.mean([useful_s[gpu] for gpu in (*free, *held)] or [0.0]))
        terms = [gains(trainer, lookahead_s) for trainer in trainers]
        counts = best_counts(terms, len(free) + len(held), [trainer.nodes for trainer in trainers])
        chosen = self._choose(served, counts, free, useful_s)
        return {view.job_id: Allocation(num_gpus=len(gpus), gpus=gpus) for view, gpus in chosen if gpus}

    def _observe(self, nodes: Iterable[GpuId], now_s: float) -> None:
        there = set(nodes)
        for gone in self.since_s.keys() - there:
            self.survival.saw(now_s - self.since_s.pop(gone))
        for gpu in there:
            self.since_s.setdefault(gpu, now_s)

    def useful_s(self, now_s: float) -> dict[GpuId, float]:
        """Return for how long each node is likely to stay, up to the horizon."""
        horizon_s = self.policy.horizon_s
        by_since = {since: self.survival.useful_s(now_s - since, horizon_s) for since in set(self.since_s.values())}
        return {gpu: by_since[since] for gpu, since in self.since_s.items()}

    def _trainer(self, view: ElasticJobView) -> Trainer:
        """Return a job with what a change costs beyond the time that it does not train anyway."""
        trainer = self._sharing.trainer(view)
        stopped_s = max(view.rescaling_left_s, trainer.scale_down_s if view.lost_gpus else 0.0)
        return replace(
            trainer,
            scale_up_s=max(trainer.scale_up_s - stopped_s, 0.0),
            scale_down_s=max(trainer.scale_down_s - stopped_s, 0.0),
        )

    def _choose(
        self,
        served: Sequence[ElasticJobView],
        counts: Sequence[int],
        free: Sequence[GpuId],
        useful_s: Mapping[GpuId, float],
    ) -> list[tuple[ElasticJobView, tuple[GpuId, ...]]]:
        """Return each job's nodes: shrinking ones keep the likeliest to stay, then the largest choose first."""

        def staying_first(gpus: Iterable[GpuId]) -> list[GpuId]:
            return sorted(gpus, key=lambda gpu: (-useful_s[gpu], self.since_s[gpu], gpu))

        kept = [staying_first(view.gpus)[:count] for view, count in zip(served, counts, strict=True)]
        pool = set(free).union(*(view.gpus for view in served)).difference(*kept)
        for j in sorted(range(len(served)), key=lambda j: (-counts[j], j)):
            added = staying_first(pool)[: counts[j] - len(kept[j])]
            pool.difference_update(added)
            kept[j] += added
        return [(view, tuple(sorted(gpus))) for view, gpus in zip(served, kept, strict=True)]
