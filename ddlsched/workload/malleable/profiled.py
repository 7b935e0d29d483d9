"""An allocator by what has been measured: the Job Monitor's speeds, and the Profiling Advisor's pins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.workload.malleable.job_monitor import JobMonitor
from ddlsched.workload.malleable.profiling_advisor import Candidate, ProfilingAdvisor, extrapolated
from ddlsched.workload.malleable.trainers import NodeAllocator, Trainer

__all__ = ["Profiled"]

_UNKNOWN = 1.0
"""Samples/s on a node of a job of which nothing is known and nothing else either."""


@dataclass
class Profiled:
    """An allocator that believes what a monitor has measured, and lets an advisor pin a job; for live managers too."""

    allocator: NodeAllocator
    advisor: ProfilingAdvisor
    monitor: JobMonitor
    costs_s: tuple[float, float]

    def counts(self, jobs: Sequence[Candidate], num_nodes: int, now_s: float) -> list[int]:
        """Return how many nodes each job is to have now."""
        pinned = self.advisor.advise(jobs, num_nodes, now_s)
        typical = self._typical(jobs)
        trainers = [self._trainer(job, typical, pinned) for job in jobs]
        return self.allocator.counts(trainers, num_nodes)

    def _typical(self, jobs: Sequence[Candidate]) -> float:
        """Return the mean measured speed of one node, for jobs of which nothing is known."""
        known = [min(rates.items()) for job in jobs if (rates := self.monitor.rates(job.job_id))]
        return float(np.mean([rate / nodes for nodes, rate in known])) if known else _UNKNOWN

    def _trainer(self, job: Candidate, typical: float, pinned: Mapping[str, int]) -> Trainer:
        measured = self.monitor.rates(job.job_id)
        rates = extrapolated(measured, job.max_nodes) if measured else typical * np.arange(job.max_nodes + 1.0)
        up_s, down_s = self.monitor.rescale_s(job.job_id, self.costs_s)
        least, most = 0, None if measured else max(job.min_nodes, 1)
        if job.job_id in pinned:
            least = most = pinned[job.job_id]
        elif pinned and job.nodes:
            least = job.min_nodes
        most = most if most is None else max(most, least)
        return Trainer(
            nodes=job.nodes,
            rates=np.maximum(rates, 0.0),
            min_nodes=job.min_nodes,
            scale_up_s=up_s,
            scale_down_s=down_s,
            least=least,
            most=most,
        )
