"""What progress messages tell: a job's speed at each size, and what changes of its size cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

__all__ = ["JobMonitor"]


@dataclass
class _Stretch:
    """Messages since a job has its size; the first ``warm_up`` steps are not kept."""

    nodes: int
    first_step: int
    counted: tuple[float, int, float] | None = None
    last: tuple[float, int, float] | None = None
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
        if stretch.counted is None:
            stretch.counted = time_s, step, samples
        stretch.last = time_s, step, samples
        self._measure(known, stretch)

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

    def _measure(self, known: _Known, stretch: _Stretch) -> None:
        if stretch.counted is None or stretch.last is None:
            return
        (from_s, from_step, from_samples), (to_s, to_step, to_samples) = stretch.counted, stretch.last
        if to_step - from_step < self.least_steps or to_s <= from_s:
            return
        rate = (to_samples - from_samples) / (to_s - from_s)
        if not 0 < rate < math.inf:  # Reports may say what cannot be.
            return
        known.rates[stretch.nodes] = rate
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
