"""How far a run is: what it has simulated, how fast, and how long the rest may take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from ddlsched.engine.field_values import JobState
from ddlsched.engine.run_state import RunState

_ENDS_A_SECOND = 5e6
"""That the loop carries out on a core where jobs contend (benchmarks/engine.py); a slow policy in Python is slower."""
_LONG_S = 60.0
_PAUSE_S = 0.5
_REMEMBERED = 40
"""So many times told: 20 s. What a run skips over at its start says nothing of the rest."""


class RunProgress(NamedTuple):
    """How far a run is.

    ``share`` is that of the jobs' iterations that are done, weighted by their task and transfer ends (of elastic jobs,
    whose iterations are not fixed: of the jobs). ``events_per_s`` are such ends, also those skipped over, a second of
    wall time, and ``left_s`` is the wall time of the rest (NaN if nothing moves), both at the speed of the last 20 s.
    The counts of iterations are those of the whole run so far, ``jumped_iterations`` a part of the contended ones;
    what runs, shares a link or GPU, queues, sends and waits to send is what does now.
    """

    now_s: float
    jobs_done: int
    jobs: int
    share: float
    events_per_s: float
    left_s: float
    skipped_iterations: int = 0
    contended_iterations: int = 0
    jumped_iterations: int = 0
    running_jobs: int = 0
    sharing_jobs: int = 0
    queued_jobs: int = 0
    active_transfers: int = 0
    waiting_transfers: int = 0

    def text(self) -> str:
        """Return it in a line: 31 %, 120 of 500 jobs done, 86,400 s simulated, 2.1 M events/s, 3 min left."""
        speed = f"{self.events_per_s / 1e6:.1f} M events/s"
        jobs = f"{self.jobs_done:,} of {self.jobs:,} jobs done"
        left = "" if self.left_s != self.left_s else f", {duration_text(self.left_s)} left"
        return f"{100 * self.share:.0f} %, {jobs}, {self.now_s:,.0f} s simulated, {speed}{left}"


def long_run_remark(task_ends: int) -> str | None:
    """Return how long a run of so many task and transfer ends may take and what makes it shorter, if it is long."""
    most_s = task_ends / _ENDS_A_SECOND
    if most_s < _LONG_S:
        return None
    return (
        f"{task_ends / 1e9:.1f} billion task ends a run, up to {duration_text(most_s)} of one core where jobs meet all "
        "the time (what nobody meets is skipped over); shorter: 'workload import --scale 0.1' or a generator's scale="
    )


def duration_text(seconds: float) -> str:
    """Return a duration as people say it, in s, min or h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


RunWatcher: TypeAlias = Callable[[RunProgress], None]
"""Is told how far a run is, at most twice a second."""


class ProgressTeller:
    """Tells a watcher how far a run is whenever the event loop visits Python, if enough time has passed."""

    def __init__(self, state: RunState, watch: RunWatcher) -> None:
        self._state, self._watch = state, watch
        jobs = state.jobs
        self._ends = (jobs.num_tasks - jobs.num_transfers) * jobs.num_gpus + jobs.num_transfers
        self._told_s = time.perf_counter()
        self._past = deque([(self._told_s, 0.0, 0)], maxlen=_REMEMBERED)

    def tell(self) -> None:
        """Tell it, unless the watcher was told a moment ago."""
        now_s = time.perf_counter()
        if now_s - self._told_s >= _PAUSE_S:
            self._told_s = now_s
            self._watch(self._progress(now_s))

    def _progress(self, wall_s: float) -> RunProgress:
        state, jobs = self._state, self._state.jobs
        jobs_done = int(np.count_nonzero(jobs.state == JobState.FINISHED))
        num_jobs = len(state.workload)
        share = jobs_done / num_jobs if jobs.elastic.any() else self._share()
        events = state.now.events.item(0)
        then_s, then_share, then_events = self._past[0]
        self._past.append((wall_s, share, events))
        passed_s, moved = wall_s - then_s, share - then_share
        left_s = passed_s * (1 - share) / moved if moved > 0 else float("nan")
        speed = (events - then_events) / passed_s
        return RunProgress(state.now_s, jobs_done, num_jobs, share, speed, left_s, **self._counts())

    def _counts(self) -> dict[str, int]:
        jobs, now = self._state.jobs, self._state.now
        running = jobs.state == JobState.RUNNING
        sharing = running & ((jobs.shared_gpus > 0) | (jobs.shared_links > 0))
        return {
            "skipped_iterations": now.skipped_iterations.item(0),
            "contended_iterations": now.contended_iterations.item(0),
            "jumped_iterations": now.jumped_iterations.item(0),
            "running_jobs": now.num_running.item(0),
            "sharing_jobs": int(np.count_nonzero(sharing)),
            "queued_jobs": now.num_queued.item(0),
            "active_transfers": now.num_active.item(0),
            "waiting_transfers": now.num_waiting.item(0),
        }

    def _share(self) -> float:
        jobs, now_ns = self._state.jobs, self._state.now_ns
        passed_ns = np.where(jobs.dormant == 1, now_ns - jobs.dormant_since_ns, 0)
        left = jobs.iterations_left - passed_ns // np.maximum(jobs.period_ns, 1)
        done = np.where(jobs.state == JobState.FINISHED, jobs.iterations, jobs.iterations - left)
        ends = self._ends.astype(float)
        return float((ends * done).sum() / max((ends * jobs.iterations).sum(), 1.0))
