"""Rubick: GPUs to the jobs whose throughput gains the most by them, by their curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.allocation.kinds import Kinds, iteration_s
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class Rubick(Checked, who="rubick"):
    """First come, first served; a job that waits takes GPUs from those that lose less by it, spare ones go where most.

    A job's curve is its throughput by GPUs with the best plan of its training at each size: make it with ``ddlsched
    estimate``, whose training-time model stands for the paper's own. Gains and losses count relative to the job's
    throughput on its fewest GPUs.

    Assumed, as only part of the policy is known: GPUs are taken anywhere and not server by server; CPUs and bandwidth
    are no resources of their own; all jobs are alike guaranteed their fewest GPUs, so that none stops for another;
    restarts have no price in a decision (as in the earlier of its two versions); the size with the best throughput is
    the one asked for.

    Parameters
    ----------
    round_s
        At least so often spare GPUs are given out, seconds.
    spare_share
        They are, while more than this share of all GPUs is free.
    least_gain
        A GPU must add so much of the job's base throughput.

    References
    ----------
    Zhang et al., "Rubick: Exploiting Job Reconfigurability for Deep Learning Cluster Scheduling", MLSys 2025, arXiv
    2408.08586.
    """

    round_s: float = ranged(60.0, 0.001, 1e9)
    spare_share: float = ranged(0.5, 0.0, 1.0)
    least_gain: float = ranged(0.01, 0.0)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Rounds:
        """Return the rounds of a run."""
        return _Rounds(self)


@dataclass(frozen=True)
class Curve:
    """A job's throughput by GPUs over that on its fewest; ``values[0]`` is of ``least`` GPUs."""

    least: int
    values: tuple[float, ...]

    @property
    def best(self) -> int:
        """The fewest GPUs with the best throughput."""
        return self.least + self.values.index(max(self.values))

    def at(self, num_gpus: int) -> float:
        """Return the throughput on so many GPUs, 0 on too few."""
        return self.values[num_gpus - self.least] if num_gpus >= self.least else 0.0

    def step(self, num_gpus: int) -> float:
        """Return what the last of so many GPUs adds."""
        return self.at(num_gpus) - self.at(num_gpus - 1)


def shared(curves: Sequence[Curve], held: Sequence[int], gpus: int, policy: Rubick) -> list[int]:
    """Return the GPUs of each job, in the order of arrival, 0 for those that wait.

    Parameters
    ----------
    curves, held
        Of each job, and the GPUs that it has now.
    gpus
        In all.
    """
    counts = list(held)
    for j in range(len(curves)):
        if not counts[j]:
            _admit(j, curves, counts, gpus)
    while gpus - sum(counts) > policy.spare_share * gpus:
        steps = [
            (curves[j].step(count + 1), -j)
            for j, count in enumerate(counts)
            if 0 < count < curves[j].best and curves[j].step(count + 1) > policy.least_gain
        ]
        if not steps:
            break
        counts[-max(steps)[1]] += 1
    return counts


def _admit(j: int, curves: Sequence[Curve], counts: list[int], gpus: int) -> None:
    """Start a job that waits on its best size, with GPUs of those that lose less than it gains."""
    curve, free = curves[j], gpus - sum(counts)
    size = min(free, curve.best)
    if size < curve.least:
        plan = _shrunk(j, curves, counts, curve.least - size, curve.at(curve.least))
        if plan is None:
            return
        counts[:] = plan
        size = curve.least
    counts[j] = size
    while counts[j] < curve.best:
        plan = _shrunk(j, curves, counts, 1, curve.step(counts[j] + 1))
        if plan is None:
            return
        counts[:] = plan
        counts[j] += 1


def _shrunk(j: int, curves: Sequence[Curve], counts: Sequence[int], missing: int, gain: float) -> list[int] | None:
    """Return the counts after others gave up GPUs, those that lose least first; None if that is more than the gain."""
    plan, loss = list(counts), 0.0
    for _ in range(missing):
        losses = [(curves[v].step(count), v) for v, count in enumerate(plan) if v != j and count > curves[v].least]
        if not losses:
            return None
        least, victim = min(losses)
        loss += least
        plan[victim] -= 1
    return plan if gain - loss > 0 else None


class _Rounds:
    def __init__(self, policy: Rubick) -> None:
        self._policy = policy
        self._curves: dict[int, Curve] = {}
        self._there = False

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the GPUs of each job."""
        self._there = bool(jobs)
        curves = [self._curve(view, capacity) for view in jobs]
        held = [view.num_gpus if view.num_gpus >= view.job.min_gpus else 0 for view in jobs]
        counts = shared(curves, held, capacity.num_gpus, self._policy)
        return {view.job_id: Allocation(count) for view, count in zip(jobs, counts, strict=True) if count}

    def wake_s(self, now_s: float) -> float | None:
        """Return when the round ends."""
        return now_s + self._policy.round_s if self._there else None

    def _curve(self, view: ElasticJobView, capacity: CapacityView) -> Curve:
        if view.number not in self._curves:
            job, most = view.job, max(Kinds.of(capacity.cluster).gpus_per_server)
            sizes = range(job.min_gpus, job.max_gpus + 1)
            raw = [job.largest_batch(n) / iteration_s(view, n, 1.0, capacity, most) for n in sizes]
            self._curves[view.number] = Curve(job.min_gpus, tuple(value / raw[0] for value in raw))
        return self._curves[view.number]
