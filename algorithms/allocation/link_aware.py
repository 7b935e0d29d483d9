"""The optimum over counts, on nodes chosen by what their rings do to shared links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from algorithms.allocation.count_programme import CountProgramme
from algorithms.allocation.sharing import Sharing, SharingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import GpuId
from ddlsched.ranges import ranged
from ddlsched.workload.malleable.trainers import Numbers

__all__ = ["LinkAware"]


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
            job, rates = view.job, np.zeros(view.job.max_gpus + 1)
            for n in range(job.min_gpus, job.max_gpus + 1):
                batch = job.largest_batch(n)
                reduce_s = capacity.all_reduce_s(job.message_bytes, n)
                rates[n] = batch / (job.curve.iteration_s(n, batch) + reduce_s)
            self.rates[view.number] = rates
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
