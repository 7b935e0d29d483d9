"""Sampled runs: a component is simulated for a stretch, leaps on at its rates, and again."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.skipping.leaps import (
    forget_stretch,
    leap,
    longest_leap_ns,
    may_be_measured,
    measure,
    until_keys_cross_ns,
)
from ddlsched.engine.loop.skipping.quiet import quiet_until_ns
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import Stretch
from ddlsched.engine.records.layout import State

STRETCH = 48
"""A component is simulated exactly for so many iterations of each of its jobs, on average."""
FIRST = 512
"""The first stretch has no more iterations than these, of all jobs; each later one has twice as many as that before."""
REACH = 120
"""So many times as long as the stretch was, the component goes on at the stretch's rates."""
LEAST = 0.05
"""Shorter parts of a stretch are simulated rather than leapt over."""


@njit
def sample(s: State, root: int) -> None:
    """As many iterations have begun as were waited for: begin or end a stretch, or go on leaping."""
    run = s.run[0]
    job = s.jobs[root]
    size = job.component_size
    job.stretch_left = size
    if job.ahead_ns > run.now_ns or run.now_ns <= s.jobs[job.component_anchor].resting_until_ns:
        return
    if job.stretch == Stretch.NONE:
        begin_stretch(s, root)
        return
    if job.stretch == Stretch.EXACT:
        job.stretch_ns = run.now_ns - job.stretch_from_ns
        measure(s, root)
        job.stretch = Stretch.MEASURED
        job.leap_left_ns = np.int64(min(REACH * np.float64(job.stretch_ns), 4e18))
    go_on_leaping(s, root)


@njit
def begin_stretch(s: State, root: int) -> None:
    job = s.jobs[root]
    if may_be_measured(s, root):
        most = STRETCH * job.component_size
        job.stretch_iterations = min(max(2 * job.stretch_iterations, FIRST), most)
        job.stretch, job.stretch_left, job.stretch_from_ns = Stretch.EXACT, job.stretch_iterations, s.run[0].now_ns
        forget_stretch(s, root)
        measure(s, root)


@njit
def go_on_leaping(s: State, root: int) -> None:
    """Leap as far as is left of it and nothing comes between; then another stretch begins."""
    run = s.run[0]
    job = s.jobs[root]
    least_ns = max(np.int64(LEAST * job.stretch_ns), 1)
    if run.now_ns <= job.leap_rest_ns or job.stretch_ns <= 0:
        return
    leap_ns = longest_leap_ns(s, root, job.stretch_ns, job.leap_left_ns)
    if leap_ns < min(least_ns, job.leap_left_ns):
        return
    quiet_ns = quiet_until_ns(s, root)
    if quiet_ns - run.now_ns < min(least_ns, job.leap_left_ns):
        job.leap_rest_ns = quiet_ns
        return
    leap_ns = min(leap_ns, quiet_ns - run.now_ns)
    leap_ns = min(max(until_keys_cross_ns(s, root, job.stretch_ns, leap_ns), least_ns), leap_ns)
    leap(s, root, leap_ns, job.stretch_ns)
    job.leap_left_ns -= leap_ns
    s.jobs[job.component_anchor].window = 0  # what recurs is looked for anew
    if job.leap_left_ns < least_ns:
        job.stretch, job.stretch_left = Stretch.NONE, 1
