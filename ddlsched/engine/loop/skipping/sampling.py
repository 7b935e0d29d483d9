"""Sampled runs: a component is simulated for a stretch, leaps on at its rates, and again."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import Contention, Due, Stretch
from ddlsched.engine.loop.skipping.due import calm_until_ns, quiet_until_ns
from ddlsched.engine.loop.skipping.foreseen import settle_samples
from ddlsched.engine.loop.skipping.leaps import leap, longest_leap_ns, until_keys_cross_ns
from ddlsched.engine.loop.skipping.measuring import (
    forget_links,
    forget_stretch,
    holds_back,
    list_links,
    may_be_measured,
    measure,
    note_work,
)
from ddlsched.engine.native.jit import called_by_address, njit
from ddlsched.engine.records import State

FIRST, FIRST_HELD_BACK = 128, 512
"""So many iterations, of all its jobs, a stretch of a component has; more where transfers are held back."""
STRETCH, STRETCH_OF_GROUPS, SHORTEST = 24, 8, 2
"""Of a small component a stretch has at most so many iterations a job, on average; of jobs of groups that meet others
as often in an iteration, by the transfers that are simulated, fewer if no transfer is held back."""
SETTLING, LONGEST_SETTLING, MANY, MANY_TRANSFERS = 16, 512, 48, 4096
"""So many iterations a job, but no more of all, pass before the first stretch where no transfer is held back; of more
jobs than ``MANY``, each of which one that comes or goes touches less, one a job. None where links are filled max-min
and no job is of groups: there errors are the same without, while shares by count let jobs drift for long.

Where jobs of groups have more than ``MANY_TRANSFERS`` in an iteration, which takes long to simulate, one iteration a
job passes and a stretch has ``SHORTEST`` for each of those. If all are, it has a whole one of each, by which they are
measured, and is the last until a job comes or goes; ``llm_steps.py sampled`` prints their errors."""
REACH, REACH_HELD_BACK = 120.0, 60.0
"""So many times as long as its stretches were together, the component goes on at its rates before the next one."""
LEAST = 0.05
"""Shorter parts of a stretch are simulated rather than leapt over."""


@njit
def is_time_for_a_step(s: State, root: int, due: int) -> bool:
    """Return whether a component's sampling goes on: a leap is at its end, or so many iterations have begun."""
    job = s.jobs[root]
    arrived = due == Due.GOES_ON and job.stretch == Stretch.MEASURED and job.ahead_ns <= s.run[0].now_ns
    return bool(job.stretch_left <= 0 or arrived)


@called_by_address("sample_address")
def take_step(s: State, root: int) -> None:
    """Take the next step of a component's sampling, which only sampled runs compile."""
    if s.jobs[root].stretch_left <= 0:
        sample(s, root)
    else:
        go_on_leaping(s, root)


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
        if is_too_short(s, root):
            job.stretch_iterations += 1
            job.stretch_left = 1
            return
        end_stretch(s, root)
    go_on_leaping(s, root)


@njit
def begin_sampling(s: State, root: int, anchor: int) -> None:
    """Have the iterations of a component counted; after a few its first stretch begins."""
    job = s.jobs[root]
    job.leap_rest_ns, job.component_anchor = 0, anchor
    list_links(s, root)
    forget_stretch(s, root)  # a change may reach all of the jobs
    number = root
    while number >= 0:
        s.jobs[number].counts = 1
        note_work(s, s.jobs[number])
        number = s.jobs[number].next_member
    job.stretch_left = settling(s, root)


@njit
def transfers_of_groups(s: State, root: int) -> int:
    """How many transfers of jobs of groups are simulated in an iteration of each."""
    transfers, number = 0, root
    while number >= 0:
        transfers += s.jobs[number].grouped * s.jobs[number].num_transfers
        number = s.jobs[number].next_member
    return transfers


@njit
def settling(s: State, root: int) -> int:
    """How many iterations of a component pass before its first stretch.

    What a newcomer does to others takes a while to show; transfers that are held back vary more than that.
    """
    run, size = s.run[0], np.int64(s.jobs[root].component_size)
    if holds_back(s, root):
        return min(size, FIRST_HELD_BACK // 4)
    transfers = transfers_of_groups(s, root)
    if transfers == 0 and run.contention == Contention.SHARES and run.weights_are_fixed == 1:
        return np.int64(0)
    long = size > MANY or transfers > MANY_TRANSFERS
    return size if long else min(SETTLING * size, LONGEST_SETTLING)


@njit
def stretch_iterations(s: State, root: int) -> int:
    return np.int64(FIRST_HELD_BACK if holds_back(s, root) else FIRST)


@njit
def enough_iterations(s: State, root: int) -> int:
    held_back, iterations, number = holds_back(s, root), 0, root
    of_groups = SHORTEST if transfers_of_groups(s, root) > MANY_TRANSFERS else STRETCH_OF_GROUPS
    while number >= 0:
        many = s.jobs[number].grouped == 1 and s.jobs[number].num_transfers >= STRETCH_OF_GROUPS
        iterations += of_groups if many and not held_back else STRETCH
        number = s.jobs[number].next_member
    return iterations


@njit
def one_stretch_suffices(s: State, root: int) -> bool:
    """Whether a component of jobs of groups takes too long to simulate for a second stretch, or to stop at samples."""
    if transfers_of_groups(s, root) <= MANY_TRANSFERS or holds_back(s, root):
        return False
    number = root
    while number >= 0:
        if s.jobs[number].grouped == 0:
            return False
        number = s.jobs[number].next_member
    return True


@njit
def begin_stretch(s: State, root: int) -> None:
    job = s.jobs[root]
    if may_be_measured(s, root):
        if job.stretches_ns == 0:
            forget_links(s, root)
        job.stretch_iterations = min(stretch_iterations(s, root), enough_iterations(s, root))
        number = root
        while number >= 0:
            s.jobs[number].whole_iterations, s.jobs[number].whole_from_ns = 0, -1
            number = s.jobs[number].next_member
        job.stretch, job.stretch_left, job.stretch_from_ns = Stretch.EXACT, job.stretch_iterations, s.run[0].now_ns
        measure(s, root)


@njit
def is_too_short(s: State, root: int) -> bool:
    """Whether a stretch that is to suffice has no whole iteration of some job yet, unless one takes very long."""
    job = s.jobs[root]
    if job.stretch_iterations >= STRETCH_OF_GROUPS * job.component_size or not one_stretch_suffices(s, root):
        return False
    number = root
    while number >= 0:
        if s.jobs[number].whole_iterations == 0:
            return True
        number = s.jobs[number].next_member
    return False


@njit
def count_whole_iterations(s: State, root: int) -> None:
    """Let jobs be as fast as in their whole iterations: parts of one are not all as fast."""
    number = root
    while number >= 0:
        job = s.jobs[number]
        if job.whole_iterations > 0:
            job.stretch_work = -job.iteration_work * job.whole_iterations * (job.measured_ns / job.whole_ns)
        number = job.next_member


@njit
def end_stretch(s: State, root: int) -> None:
    """Let the component leap the farther the more has been measured of it."""
    job = s.jobs[root]
    job.stretch_ns = s.run[0].now_ns - job.stretch_from_ns
    job.stretches_ns += job.stretch_ns
    measure(s, root)
    if one_stretch_suffices(s, root):
        count_whole_iterations(s, root)
    job.stretch = Stretch.MEASURED
    reach = REACH_HELD_BACK if holds_back(s, root) else REACH
    job.leap_left_ns = np.int64(min(reach * np.float64(job.stretches_ns), 4e18))
    if one_stretch_suffices(s, root):
        job.leap_left_ns = np.int64(4e18)


@njit
def go_on_leaping(s: State, root: int) -> None:
    """Leap as far as is left of it and nothing comes between; then another stretch begins."""
    run = s.run[0]
    job = s.jobs[root]
    least_ns = max(np.int64(LEAST * job.stretch_ns), 1)
    if run.now_ns <= job.leap_rest_ns or job.stretch_ns <= 0:
        return
    leap_ns = longest_leap_ns(s, root, job.leap_left_ns)
    if leap_ns < min(least_ns, job.leap_left_ns):
        return
    quiet_ns = calm_until_ns(s, root) if one_stretch_suffices(s, root) else quiet_until_ns(s, root)
    if quiet_ns - run.now_ns < min(least_ns, job.leap_left_ns):
        job.leap_rest_ns = quiet_ns
        return
    leap_ns = min(leap_ns, quiet_ns - run.now_ns)
    in_order_ns = max(until_keys_cross_ns(s, root, leap_ns), least_ns)
    crossed = in_order_ns < leap_ns
    leap_ns = min(in_order_ns, leap_ns)
    settle_samples(s, run.now_ns + leap_ns)
    leap(s, root, leap_ns, job.stretch_ns)
    job.leap_left_ns -= leap_ns
    s.jobs[job.component_anchor].window = 0  # what recurs is looked for anew
    job.stretch_left = 1  # what a change from outside has cut short goes on at once
    if crossed or job.leap_left_ns < least_ns:
        job.stretch = Stretch.NONE
