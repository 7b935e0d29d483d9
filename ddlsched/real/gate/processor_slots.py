"""A processor slot a GPU: compute tasks of jobs that share one go one after the other, in the run's order."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.real.gate.live_jobs import LiveJob, LiveRank
from ddlsched.units import s_from_ns

__all__ = ["ProcessorSlots"]


@dataclass(frozen=True)
class _Ready:
    job: LiveJob
    rank: LiveRank
    task: int


@dataclass
class ProcessorSlots:
    """Who computes on each GPU, and who waits to."""

    policies: CheckedPolicies
    running: dict[int, _Ready] = field(default_factory=dict)
    ready: dict[int, list[_Ready]] = field(default_factory=dict)

    def wants(self, job: LiveJob, rank: LiveRank, task: int, gpu: int) -> None:
        """Note that a task is ready on a GPU."""
        self.ready.setdefault(gpu, []).append(_Ready(job, rank, task))

    def ended(self, gpu: int) -> None:
        """Note that what computed on a GPU has ended."""
        self.running.pop(gpu, None)

    def decide(self, now_ns: int) -> None:
        """Let every idle GPU take the ready task of the smallest key; ties go to the lower job, then task."""
        for gpu, waiting in self.ready.items():
            if gpu in self.running or not waiting:
                continue
            first = self.policies.in_order((one.job.view for one in waiting), s_from_ns(now_ns))[0]
            chosen = min((one for one in waiting if one.job.number == first), key=lambda one: one.task)
            waiting.remove(chosen)
            self.running[gpu] = chosen
            chosen.rank.send({"do": "compute", "task": chosen.task, "gpu": gpu})
