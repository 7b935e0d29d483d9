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

STRETCH = 32
"""For so many iterations of its most urgent job a component is simulated exactly."""
FIRST_SHARED = 256
"""The first stretch of a component with more than eight jobs is shorter: its jobs share so many iterations."""
SHORTEST = 1
"""No stretch has fewer iterations; the next ones are twice as long each, up to ``STRETCH``."""
REACH = 100
"""So many times as long as the stretch was, it goes on at the stretch's rates."""
LEAST = 0.25
"""Shorter parts of a stretch are simulated rather than leapt over."""


@njit
def sample(s: State, anchor: int) -> None:
    """At the start of an iteration of a component's most urgent job: begin or end a stretch, or go on leaping."""
    run = s.run[0]
    job = s.jobs[anchor]
    if job.stretch == Stretch.NONE:
        begin_stretch(s, anchor)
    elif job.stretch == Stretch.EXACT:
        job.stretch_left -= 1
        if job.stretch_left <= 0:
            job.stretch_ns = run.now_ns - job.stretch_from_ns
            measure(s, job.root)
            job.stretch = Stretch.MEASURED
            job.leap_left_ns = np.int64(min(REACH * np.float64(job.stretch_ns), 4e18))
            go_on_leaping(s, anchor)
    else:
        go_on_leaping(s, anchor)


@njit
def begin_stretch(s: State, anchor: int) -> None:
    job = s.jobs[anchor]
    if may_be_measured(s, job.root):
        if job.stretch_iterations == 0:
            job.stretch_iterations = max(FIRST_SHARED // s.jobs[job.root].component_size, SHORTEST)
        job.stretch_iterations = min(job.stretch_iterations, STRETCH)
        job.stretch, job.stretch_left, job.stretch_from_ns = Stretch.EXACT, job.stretch_iterations, s.run[0].now_ns
        job.stretch_iterations *= 2
        forget_stretch(s, job.root)
        measure(s, job.root)


@njit
def go_on_leaping(s: State, anchor: int) -> None:
    """Leap as far as is left of it and nothing comes between; then another stretch begins."""
    run = s.run[0]
    job = s.jobs[anchor]
    least_ns = max(np.int64(LEAST * job.stretch_ns), 1)
    if run.now_ns <= job.leap_rest_ns or job.stretch_ns <= 0:
        return
    leap_ns = longest_leap_ns(s, job.root, job.stretch_ns, job.leap_left_ns)
    if leap_ns < min(least_ns, job.leap_left_ns):
        return
    quiet_ns = quiet_until_ns(s, job.root)
    if quiet_ns - run.now_ns < min(least_ns, job.leap_left_ns):
        job.leap_rest_ns = quiet_ns
        return
    leap_ns = min(leap_ns, quiet_ns - run.now_ns)
    leap_ns = min(max(until_keys_cross_ns(s, job.root, job.stretch_ns, leap_ns), least_ns), leap_ns)
    leap(s, job.root, leap_ns, job.stretch_ns)
    job.leap_left_ns -= leap_ns
    job.window = 0  # what recurs is looked for anew
    if job.leap_left_ns < least_ns:
        job.stretch = Stretch.NONE
