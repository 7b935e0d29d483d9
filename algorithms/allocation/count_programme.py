"""The exact allocation of interchangeable nodes: a multiple-choice knapsack over counts.

Nodes are interchangeable, and a job only adds or only loses nodes. So the objective depends on how many nodes each job
has, any counts that fit can be reached (who shrinks gives back what it likes, who grows takes what is free), and the
best counts are the best map of nodes to jobs (:mod:`algorithms.allocation.node_milp`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from algorithms.allocation.sharing import Sharing, SharingPolicy, counts_of, filled_knapsack, rates_of
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import GpuId
from ddlsched.ranges import ranged
from ddlsched.workload.trainers import Numbers, Survival, Trainer, gains

_BITS = 57
_CHANGE = 1 << 12
"""Units of gain that a change of a job's size must be worth: more than the roundings of thousands of jobs."""
_NEVER = -(1 << 60)


@dataclass(frozen=True, kw_only=True)
class CountProgramme(SharingPolicy):
    """The most samples within the look-ahead, less what changes cost: FreeTrain's and MalleTrain's optimum, exactly.

    Parameters
    ----------
    lookahead_s
        T_fwd, for how long an allocation is thought to last.
    believes
        ``curve``: the job's own, which its owner has supplied; ``linear``: that every node adds the speed of the first.

    References
    ----------
    Liu et al., arXiv 2106.12091 (BFTrainer, there solved as a node-level MILP); arXiv 2404.15668 (MalleTrain).
    """

    lookahead_s: float = ranged(10.0, 0.0)
    believes: Literal["curve", "linear"] = "curve"

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Sharing:
        """Return what is asked during a run."""
        return Sharing(self, self, is_linear=self.believes == "linear")

    def counts(self, trainers: Sequence[Trainer], num_nodes: int) -> list[int]:
        """Return the best size of each trainer; of equally good ones those with the fewest changes."""
        now = [trainer.nodes for trainer in trainers]
        return best_counts([gains(trainer, self.lookahead_s) for trainer in trainers], num_nodes, now)


def best_counts(gains: Sequence[npt.NDArray[np.float64]], nodes: int, now: Sequence[int]) -> list[int]:
    """Return the sizes with the greatest sum of gains; among those, with the fewest jobs changed.

    V_j(k) = max_n V_{j-1}(k - n) + gain_j(n), in O(jobs x nodes x sizes), over whole numbers: a unit is about 2^-57 of
    the sum of the largest gains, and sums within 2^-45 of it are ties, whatever the order of additions: it is to equal
    the MILP and to change as few jobs as can be, which elastic scaling's
    :func:`algorithms.allocation.elastic_scaling.best_counts` does not ask for.

    Parameters
    ----------
    gains
        Of each job, at 0, 1, ..., its most nodes; -inf where it may not be.
    nodes
        How many there are.
    now
        Each job's present size, which breaks ties.

    Raises
    ------
    InputError
        The jobs' least sizes need more nodes than there are.
    """
    best, chosen = filled_knapsack(_whole_gains(gains, now), nodes, _NEVER)
    most = int(best.argmax())
    if best[most] <= _NEVER // 2:
        raise InputError(f"allocation: the jobs' least sizes need more than the {nodes} nodes that there are")
    return counts_of(chosen, most)


def _whole_gains(gains: Sequence[npt.NDArray[np.float64]], now: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Return gains in whole units, less what every change must be worth."""
    largest = sum(np.abs(gain[np.isfinite(gain)]).max(initial=0.0) for gain in gains)
    scale = 0.0 if largest == 0 else 2.0 ** (_BITS - np.ceil(np.log2(largest)))
    return [_whole(gain, float(scale), size) for gain, size in zip(gains, now, strict=True)]


def _whole(gain: npt.NDArray[np.float64], scale: float, now: int) -> npt.NDArray[np.int64]:
    can = np.isfinite(gain)
    whole = np.full(len(gain), _NEVER)
    whole[can] = np.rint(gain[can] * scale).astype(np.int64) - _CHANGE * (np.flatnonzero(can) != now)
    return whole


@dataclass(frozen=True, kw_only=True)
class LinkAware(SharingPolicy):
    """As :class:`~algorithms.allocation.count_programme.CountProgramme`, for jobs whose gradients cross the network.

    A job's rates hold its all-reduce, alone on its links. Jobs that grow add, the largest first, the free nodes whose
    ring meets the fewest rings of other jobs on any link, and of those the ones whose ring has the fewest links.

    Parameters
    ----------
    lookahead_s
        T_fwd, for how long an allocation is thought to last, seconds.
    """

    lookahead_s: float = ranged(10.0, 0.0)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _LinkAwareRun:
        """Return what is asked during a run."""
        return _LinkAwareRun(self, Sharing(CountProgramme(), self))


@dataclass
class _LinkAwareRun:
    policy: LinkAware
    sharing: Sharing
    rates: dict[int, Numbers] = field(default_factory=dict)

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the nodes of each job, by name."""
        served = jobs[: self.policy.most_jobs]
        trainers = [replace(self.sharing.trainer(view), rates=self._rates(view, capacity)) for view in served]
        counts = CountProgramme(lookahead_s=self.policy.lookahead_s).counts(trainers, capacity.num_gpus)
        chosen = self._choose(served, counts, capacity)
        return {view.job_id: Allocation(num_gpus=len(gpus), gpus=gpus) for view, gpus in chosen if gpus}

    def _rates(self, view: ElasticJobView, capacity: CapacityView) -> Numbers:
        """Return a job's rates with its all-reduce on as many servers, samples/s."""
        if view.number not in self.rates:
            job = view.job
            self.rates[view.number] = rates_of(job, lambda n: capacity.all_reduce_s(job.message_bytes, n))
        return self.rates[view.number]

    def _choose(
        self, served: Sequence[ElasticJobView], counts: Sequence[int], capacity: CapacityView
    ) -> list[tuple[ElasticJobView, tuple[GpuId, ...]]]:
        kept = [list(view.gpus[:count]) for view, count in zip(served, counts, strict=True)]
        pool = set(capacity.free_gpus).union(*(view.gpus for view in served)).difference(*kept)
        rings = [self._links(gpus, capacity) for gpus in kept]
        for j in sorted(range(len(served)), key=lambda j: (-counts[j], j)):
            others = Counter(link for k, ring in enumerate(rings) if k != j for link in ring)
            if counts[j] > len(kept[j]) and not kept[j]:
                kept[j].append(self._best(pool, [], others, capacity)[0])
            kept[j] += self._best(pool.difference(kept[j]), kept[j], others, capacity)[: counts[j] - len(kept[j])]
            pool.difference_update(kept[j])
            rings[j] = self._links(kept[j], capacity)
        return [(view, tuple(sorted(gpus))) for view, gpus in zip(served, kept, strict=True)]

    def _best(
        self, pool: set[GpuId], mine: Sequence[GpuId], others: Counter[int], capacity: CapacityView
    ) -> list[GpuId]:
        """Return the pool's nodes, those first that would meet the fewest other rings."""

        def harm(gpu: GpuId) -> tuple[int, int, GpuId]:
            links = self._links([*mine, gpu], capacity)
            return max((others[link] for link in links), default=0), len(links), gpu

        return sorted(pool, key=harm)

    @staticmethod
    def _links(gpus: Sequence[GpuId], capacity: CapacityView) -> tuple[int, ...]:
        servers = tuple(sorted({capacity.server_of(gpu) for gpu in gpus}))
        return tuple(capacity.network.ring(servers).links) if capacity.network and len(servers) > 1 else ()


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
