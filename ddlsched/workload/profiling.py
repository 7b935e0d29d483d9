"""Speeds of jobs from what they report: a monitor learns them, an advisor fills in missing ones by short runs.

An allocator by what has been measured has both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

import numpy as np

from ddlsched.errors import InputError
from ddlsched.ranges import check_fields, ranged
from ddlsched.units import is_whole
from ddlsched.workload.trainers import NodeAllocator, Numbers, Trainer, rates_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An admitted job, as the advisor sees it.

    Attributes
    ----------
    job_id
        Its name.
    nodes
        How many it has now.
    min_nodes, max_nodes
        Fewest and most on which it runs.
    measured
        Sizes at which its speed is known.
    settled
        Whether no change of its size is still under way.
    """

    job_id: str
    nodes: int
    min_nodes: int
    max_nodes: int
    measured: frozenset[int]
    settled: bool


@dataclass
class ProfilingAdvisor:
    """Pins one job at a time to one size after another, the largest first, for a short hold each.

    After one expensive step up every further step is a cheap one down. A profile begins only if no running job would
    have to stop for it: each keeps its fewest nodes. A size that has become too large for what is there is left out.

    Parameters
    ----------
    scales
        Sizes to measure.
    hold_s
        How long a size is held once the job trains at it, seconds.

    References
    ----------
    arXiv 2404.15668 (MalleTrain): the Job Profiling Advisor.
    """

    scales: tuple[int, ...] = (4, 3, 2, 1)
    hold_s: float = ranged(20.0, 0.0, above=True)
    pinned: tuple[str, int] | None = field(default=None, init=False)
    held_since_s: float | None = field(default=None, init=False)
    _tried: dict[str, set[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.scales or not all(is_whole(scale, 1) for scale in self.scales):
            raise InputError(f"profiling: scales are {self.scales}; expected whole numbers from 1")
        check_fields(self, "profiling")

    def advise(self, jobs: Sequence[Candidate], num_nodes: int, now_s: float) -> Mapping[str, int]:
        """Return the size to which a job is pinned now, by its name; nothing if no profile is to run.

        Asked whenever nodes are shared out, and at :meth:`wake_s`. A job is measured by whoever asks.
        """
        there = {job.job_id: job for job in jobs}
        self._go_on(there, num_nodes, now_s)
        if self.pinned is None:
            self._begin(jobs, num_nodes)
        return {} if self.pinned is None else dict([self.pinned])

    def wake_s(self) -> float | None:
        """Return when the hold under way ends, or None."""
        return None if self.held_since_s is None else self.held_since_s + self.hold_s

    def is_done(self, job: Candidate) -> bool:
        """Return whether there is nothing left to measure of a job."""
        return not self._missing(job)

    def _go_on(self, there: Mapping[str, Candidate], num_nodes: int, now_s: float) -> None:
        """End a hold that is over, whose job has gone, or whose size no longer fits."""
        if self.pinned is None:
            return
        job_id, size = self.pinned
        job = there.get(job_id)
        if job is None or not self._fits(job, size, there.values(), num_nodes):
            self._end()
        elif job.nodes == size and job.settled:
            if self.held_since_s is None:
                self.held_since_s = now_s
            elif now_s >= self.held_since_s + self.hold_s - 1e-6:
                self._end()
                self._pin(job, self._fitting(job, there.values(), num_nodes), size)

    def _begin(self, jobs: Sequence[Candidate], num_nodes: int) -> None:
        for job in jobs:
            self._pin(job, self._fitting(job, jobs, num_nodes), None)
            if self.pinned is not None:
                return

    def _pin(self, job: Candidate, sizes: Sequence[int], after: int | None) -> None:
        """Let the largest of some sizes be measured next that is below another, if there is one."""
        size = max((size for size in sizes if after is None or size < after), default=None)
        if size is not None:
            self.pinned, self.held_since_s = (job.job_id, size), None
            self._tried.setdefault(job.job_id, set()).add(size)

    def _end(self) -> None:
        self.pinned = self.held_since_s = None

    def _fitting(self, job: Candidate, jobs: Iterable[Candidate], num_nodes: int) -> list[int]:
        return [size for size in self._missing(job) if self._fits(job, size, jobs, num_nodes)]

    def _missing(self, job: Candidate) -> list[int]:
        known = job.measured | self._tried.get(job.job_id, set())
        return [size for size in self.scales if size not in known and job.min_nodes <= size <= job.max_nodes]

    @staticmethod
    def _fits(job: Candidate, size: int, jobs: Iterable[Candidate], num_nodes: int) -> bool:
        others = sum(other.min_nodes for other in jobs if other.nodes and other.job_id != job.job_id)
        return size + others <= num_nodes


def extrapolated(measured: Mapping[int, float], max_nodes: int) -> Numbers:
    """Return believed rates at 0, 1, ..., ``max_nodes``: linear between the measured, a power law beyond the largest.

    The power is that between the two largest measured sizes, from 0 to 1; with one size measured, 1.
    """
    rates = rates_at(list(measured.items()), max_nodes)
    largest = max(measured)
    power = 1.0
    if len(measured) > 1:
        before = sorted(measured)[-2]
        power = np.log(measured[largest] / measured[before]) / np.log(largest / before)
    beyond = np.arange(largest, max_nodes + 1)
    rates[largest:] = measured[largest] * (beyond / largest) ** float(np.clip(power, 0.0, 1.0))
    return rates


_Told: TypeAlias = tuple[float, int, float]
"""When a job had trained how many steps and samples."""


@dataclass
class _Stretch:
    """Messages since a job has its size; the first ``warm_up`` steps are not kept."""

    nodes: int
    first_step: int
    counted: _Told | None = None
    last: _Told | None = None
    is_over: bool = False


@dataclass
class _Known:
    rates: dict[int, float] = field(default_factory=dict)
    up_s: list[float] = field(default_factory=list)
    down_s: list[float] = field(default_factory=list)
    stretch: _Stretch | None = None
    change: tuple[bool, float, float] | None = None
    """Of the change before this stretch: whether it grew, its gap in seconds, the samples trained within that."""


@dataclass
class JobMonitor:
    """Learns from (time, step, samples, nodes) of running jobs.

    A size's speed is that of the stretch at that size which is the latest; the first steps after a change are
    dropped, and fewer than ``least_steps`` tell nothing. A change costs the gap across it, less the time that what was
    trained meanwhile takes at the new speed.

    Parameters
    ----------
    warm_up_steps
        Steps after a change that are dropped.
    least_steps
        Steps beyond those from which a speed is taken.
    supplied
        Of jobs whose users say how they scale: samples/s at each size that they may have. These are believed.

    References
    ----------
    arXiv 2404.15668 (MalleTrain): the Job Monitor, and fewer than ten messages ignored.
    """

    warm_up_steps: int = 10
    least_steps: int = 10
    supplied: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    _jobs: dict[str, _Known] = field(default_factory=dict, repr=False)

    def progress(self, job_id: str, *, time_s: float, step: int, samples: float, nodes: int) -> None:
        """Take in that a job had trained so many samples in so many steps, at a time, on so many nodes."""
        known = self._jobs.setdefault(job_id, _Known())
        stretch = known.stretch
        if stretch is None or stretch.is_over or stretch.nodes != nodes:
            self._begin(known, time_s, step, samples, nodes)
            return
        if step < stretch.first_step + self.warm_up_steps:
            return
        stretch.last = time_s, step, samples
        if stretch.counted is None:
            stretch.counted = stretch.last
        self._measure(known, stretch.nodes, stretch.counted, stretch.last)

    def interrupted(self, job_id: str) -> None:
        """Take note that a job does not train at present: what follows is another stretch, also at the same size."""
        known = self._jobs.get(job_id)
        if known is not None and known.stretch is not None:
            known.stretch.is_over = True

    def _begin(self, known: _Known, time_s: float, step: int, samples: float, nodes: int) -> None:
        before, known.change = known.stretch, None
        if before is not None and before.nodes != nodes and before.last is not None:
            last_s, _, last_samples = before.last
            known.change = nodes > before.nodes, time_s - last_s, samples - last_samples
        now = time_s, step, samples
        known.stretch = _Stretch(nodes, step, now if self.warm_up_steps == 0 else None, now)

    def _measure(self, known: _Known, nodes: int, first: _Told, last: _Told) -> None:
        (from_s, from_step, from_samples), (to_s, to_step, to_samples) = first, last
        if to_step - from_step < self.least_steps or to_s <= from_s:
            return
        rate = (to_samples - from_samples) / (to_s - from_s)
        if not 0 < rate < math.inf:  # Reports may say what cannot be.
            return
        known.rates[nodes] = rate
        if known.change is not None:
            grew, gap_s, samples = known.change
            cost_s = max(gap_s - samples / rate, 0.0)
            if math.isfinite(cost_s):
                (known.up_s if grew else known.down_s).append(cost_s)
            known.change = None

    def rates(self, job_id: str) -> dict[int, float]:
        """Return the samples/s supplied, or measured at each size, by nodes."""
        if job_id in self.supplied:
            return dict(self.supplied[job_id])
        known = self._jobs.get(job_id)
        return dict(known.rates) if known else {}

    def rescale_s(self, job_id: str, default: tuple[float, float]) -> tuple[float, float]:
        """Return the median cost of growing and of shrinking, seconds; of what was never seen, the default."""
        known = self._jobs.get(job_id) or _Known()
        return median(known.up_s or [default[0]]), median(known.down_s or [default[1]])

    def forget(self, job_id: str) -> None:
        """Drop a job that has ended."""
        self._jobs.pop(job_id, None)


_UNKNOWN = 1.0
"""Samples/s on a node of a job of which nothing is known and nothing else either."""


@dataclass
class ProfiledAllocator:
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
