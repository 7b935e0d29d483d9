"""The idle nodes as a cluster whose servers come and go, in the simulator's one engine.

Two sets of rules. ``live``: a change keeps a job from training for R_up or R_down, whatever its sizes, and a job's end
is noticed at once. ``published``: those of :mod:`replay` (the rate *before* counts; ends are noticed at the next
change).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from replay import TrainingJob

from algorithms.allocation.sharing import Sharing
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, Rescale, ThroughputCurve
from ddlsched.workload.job import Workload

ITERATION_S = 0.5
"""Of one node: a job that loses a node loses the iteration under way, as one does that is resized."""


class Row(NamedTuple):
    """What came of a run; losses as shares of all samples to train, U as in the published replays."""

    makespan_h: float
    rescale_lost: float
    preempt_lost: float
    rescales: int
    u: float


@dataclass
class Tally:
    """A rescale cost that counts, in samples, what changes lose: by choice, and by nodes that left."""

    jobs: Mapping[str, TrainingJob] = field(repr=False)
    published: bool
    rescale_lost: float = 0.0
    preempt_lost: float = 0.0
    rescales: int = 0
    debts: dict[str, float] = field(default_factory=dict)
    """Samples that stopping cost jobs that have no nodes now; published rules have them pay when they go on."""

    def stopped(self, view: ElasticJobView) -> None:
        """Take note of a job that has no nodes from now on."""
        job = self.jobs[view.job_id]
        before, kept = job.rates[view.num_gpus + view.lost_gpus], job.rates[view.num_gpus]
        lost, chosen = before * job.scale_down_s * bool(view.lost_gpus), kept * job.scale_down_s
        self.debts[view.job_id] = self.debts.get(view.job_id, 0.0) + view.rescaling_left_s * before + lost + chosen
        self.preempt_lost += lost
        self.rescale_lost += chosen
        self.rescales += view.num_gpus > 0

    def __call__(self, change: Rescale) -> float:
        """Return for how long the job does not train, seconds."""
        job = self.jobs[change.job_id]
        kept = change.from_gpus - change.lost_gpus
        chosen_s = 0.0 if change.to_gpus == kept else job.scale_up_s if change.to_gpus > kept else job.scale_down_s
        lost_s = job.scale_down_s if change.lost_gpus else 0.0
        self.rescales += change.to_gpus != kept
        before, after = job.rates[change.from_gpus], job.rates[change.to_gpus]
        if self.published:
            chosen, lost = chosen_s * job.rates[kept], lost_s * before
            hold_s = (change.pending_s * before + chosen + lost + self.debts.pop(change.job_id, 0.0)) / after
        else:
            hold_s = max(chosen_s if kept else 0.0, lost_s, change.pending_s)
            lost = after * (lost_s if lost_s >= chosen_s else 0.0)
            chosen = after * hold_s - lost
        self.rescale_lost += chosen
        self.preempt_lost += lost
        return float(hold_s)


@dataclass(frozen=True, kw_only=True)
class AtChanges:
    """Asks ``policy`` only when the set of idle nodes has changed, as the published replayer does."""

    policy: Any
    tally: Tally = field(repr=False)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _AtChanges:
        """Return what is asked during a run."""
        return _AtChanges(self.policy.begin(cluster, rng), self.tally)


@dataclass
class _AtChanges:
    asked: Sharing
    tally: Tally
    nodes: frozenset[int] = field(default_factory=frozenset)

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        nodes = frozenset(capacity.free_gpus).union(*(view.gpus for view in jobs if view.gpus))
        if nodes != self.nodes:
            self.nodes = nodes
            answer = self.asked.allocate(jobs, capacity, now_s)
            for view in jobs:
                if view.num_gpus + view.lost_gpus and view.job_id not in answer:
                    self.tally.stopped(view)
            return answer
        return {view.job_id: Allocation(num_gpus=view.num_gpus) for view in jobs if view.gpus}


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Passes questions on to ``policy`` and keeps what had been trained at the last of them, and when that was."""

    policy: Any
    seen: dict[str, float] = field(default_factory=dict)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Watched:
        """Return what is asked during a run."""
        return _Watched(self.policy.begin(cluster, rng), self.seen)


@dataclass
class _Watched:
    asked: Any
    seen: dict[str, float]
    done: dict[int, int] = field(default_factory=dict)

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        there = {view.number: view for view in jobs if view.start_s is not None}
        for number in self.done.keys() - there.keys():
            self.seen["finished"] = self.seen.get("finished", 0.0) + self.done.pop(number)
        for number, view in there.items():
            self.done[number] = view.job.samples
        under_way = sum(view.job.samples - view.samples_left for view in there.values())
        self.seen["trained"], self.seen["until_s"] = self.seen.get("finished", 0.0) + under_way, now_s
        return self.asked.allocate(jobs, capacity, now_s)

    def wake_s(self, now_s: float) -> float | None:
        return self.asked.wake_s(now_s) if hasattr(self.asked, "wake_s") else None


def elastic_job(job: TrainingJob) -> ElasticJob:
    """Return a job whose iterations are about ``ITERATION_S`` long, and whose curve holds its communication."""
    sizes = tuple(range(1, len(job.rates)))
    return ElasticJob(
        job_id=job.job_id,
        arrival_s=job.submit_s,
        samples=round(job.samples),
        curve=ThroughputCurve(num_gpus=sizes, samples_per_s=tuple(job.rates[1:].tolist())),
        gpu_batch=max(round(job.rates[1] * ITERATION_S), 1),
        min_gpus=job.min_nodes,
        max_gpus=sizes[-1],
        rescale_cost=ConstantRescaleCost(up_s=job.scale_up_s, down_s=job.scale_down_s),
    )


def simulated(
    idle: IdleTrace, jobs: Sequence[TrainingJob], policy: Any, *, published: bool = False, until_s: float | None = None
) -> tuple[Result, Tally]:
    """Return a run of all jobs on the idle nodes, and the tally of what changes lost."""
    tally = Tally({job.job_id: job for job in jobs}, published)
    elastic = [replace(elastic_job(job), rescale_cost=None) for job in jobs]
    result = simulate(
        Workload(elastic),
        Cluster(num_servers=int(idle.node.max()) + 1, gpus_per_server=1),
        allocation=AtChanges(policy=policy, tally=tally) if published else policy,
        rescale_cost=tally,
        capacity=idle.capacity(),
        until_s=until_s,
    )
    return result, tally
