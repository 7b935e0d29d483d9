"""MalleTrain: the exact allocation with speeds that are measured while jobs run, not supplied by their owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from algorithms.allocation.count_programme import CountProgramme
from algorithms.allocation.sharing import SharingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.ranges import ranged
from ddlsched.workload.profiling import Candidate, JobMonitor, ProfiledAllocator, ProfilingAdvisor

_TICK_S = 1e-3


@dataclass(frozen=True, kw_only=True)
class MalleTrain(SharingPolicy):
    """FreeTrain's allocation by speeds that the Job Profiling Advisor and the Job Monitor have measured.

    A job of which nothing is known has one node at most until its turn to be profiled.

    Parameters
    ----------
    lookahead_s
        T_fwd, for how long an allocation is thought to last, seconds.
    most_scale
        Sizes ``most_scale``, ..., 2, 1 are profiled.
    hold_s
        How long each is held.

    References
    ----------
    arXiv 2404.15668 (MalleTrain).
    """

    lookahead_s: float = ranged(120.0, 0.0)
    most_scale: int = 4
    hold_s: float = ranged(20.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.advisor()

    def advisor(self) -> ProfilingAdvisor:
        """Return who decides what is measured next."""
        return ProfilingAdvisor(scales=tuple(range(self.most_scale, 0, -1)), hold_s=self.hold_s)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _MalleTrainRun:
        """Return what is asked during a run."""
        allocator = CountProgramme(lookahead_s=self.lookahead_s)
        costs = self.scale_up_s, self.scale_down_s
        return _MalleTrainRun(
            self.most_jobs, ProfiledAllocator(allocator, self.advisor(), JobMonitor(warm_up_steps=0), costs)
        )


@dataclass
class _MalleTrainRun:
    """Passes a run's jobs on to the monitor, as progress messages would."""

    most_jobs: int
    profiled: ProfiledAllocator
    steps: dict[int, int] = field(default_factory=dict)
    settles_s: float | None = None

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the nodes of each job."""
        served = jobs[: self.most_jobs]
        for view in served:
            self._report(view, now_s)
        counts = self.profiled.counts([self._candidate(view) for view in served], capacity.num_gpus, now_s)
        self._expect(served, now_s)
        return {view.job_id: Allocation(num_gpus=n) for view, n in zip(served, counts, strict=True) if n}

    def _report(self, view: ElasticJobView, now_s: float) -> None:
        """Tell the monitor where a job is; while a change is under way it sends nothing."""
        if not view.gpus or view.lost_gpus or view.rescaling_left_s > 0:
            self.profiled.monitor.interrupted(view.job_id)
            return
        trained = view.job.samples - view.samples_left
        step = trained // view.batch
        self.profiled.monitor.progress(view.job_id, time_s=now_s, step=step, samples=trained, nodes=view.num_gpus)

    def _candidate(self, view: ElasticJobView) -> Candidate:
        return Candidate(
            job_id=view.job_id,
            nodes=view.num_gpus,
            min_nodes=view.job.min_gpus,
            max_nodes=view.job.max_gpus,
            measured=frozenset(self.profiled.monitor.rates(view.job_id)),
            settled=view.rescaling_left_s <= 0,
        )

    def _expect(self, served: Sequence[ElasticJobView], now_s: float) -> None:
        """Set the time to ask again: when the pinned job has settled at its size, or has held it long enough."""
        advisor = self.profiled.advisor
        self.settles_s = advisor.wake_s()
        if advisor.pinned is not None and self.settles_s is None:
            pinned = next(view for view in served if view.job_id == advisor.pinned[0])
            left_s = pinned.rescaling_left_s if pinned.num_gpus == advisor.pinned[1] else max(self.profiled.costs_s)
            self.settles_s = now_s + left_s + _TICK_S

    def wake_s(self, now_s: float) -> float | None:
        """Return when a profile is to go on."""
        return self.settles_s
