"""Which components of jobs that share GPUs or links are looked at before the next instant, and why.

A component is left alone until something comes to it from outside.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import Due, Stretch
from ddlsched.engine.loop.tasks import uneven_ns
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import Records, State


@njit
def make_due(s: State, number: int, why: int) -> None:
    """Have a component's anchor, or its first job, looked at before the next instant."""
    job = s.jobs[number]
    job.due, job.next_due = why, s.run[0].first_due
    s.run[0].first_due = number


@njit
def count_iteration(s: State, job: Records) -> None:
    """A job of a sampled component begins an iteration; after so many the next step is due."""
    first, now_ns = s.jobs[job.root], s.run[0].now_ns
    first.stretch_left -= 1
    if first.stretch == Stretch.EXACT and job.whole_from_ns >= 0:
        job.whole_iterations += 1
        job.whole_ns = now_ns - job.whole_from_ns
    elif first.stretch == Stretch.EXACT:
        job.whole_from_ns = now_ns
    if first.stretch_left <= 0 and first.due == 0:
        make_due(s, job.root, Due.GOES_ON.value)


@njit
def note_change(s: State, number: int) -> None:
    """Have the component that a job was in found anew, as a job comes to it or leaves it."""
    s.jobs[s.jobs[number].root].changed = s.run[0].num_finds


@njit
def quiet_until_ns(s: State, root: int) -> int:
    """Until when nothing comes from outside of the component of ``root``, and nothing looks at it."""
    return min(calm_until_ns(s, root), s.run[0].next_sample_ns)


@njit
def calm_until_ns(s: State, root: int) -> int:
    """Until when nothing comes from outside of the component of ``root``, samples apart."""
    run = s.run[0]
    limit_ns = min(run.pause_ns, np.int64(4e18), run.next_capacity_ns - 1)
    if run.record == 1:
        limit_ns = min(limit_ns, run.record_from_ns)
    if run.next_arrival < len(s.arrivals):
        limit_ns = min(limit_ns, s.jobs[s.arrivals[run.next_arrival]].arrival_ns - 1)
    if run.wake_placement_ns >= 0:
        limit_ns = min(limit_ns, run.wake_placement_ns - 1)
    if run.wake_communication_ns >= 0:
        limit_ns = min(limit_ns, run.wake_communication_ns - 1)
    if run.num_queued > 0 or run.asks_moves == 1:
        for place in range(run.num_running):
            number = s.running[place]
            if s.jobs[number].root != root:
                limit_ns = min(limit_ns, earliest_finish_ns(s, number) - 1)
    return limit_ns


@njit
def earliest_finish_ns(s: State, number: int) -> int:
    """A time before which a job surely does not finish."""
    run = s.run[0]
    job = s.jobs[number]
    if job.dormant == 1:
        return s.end_ns[s.position[run.num_gpus + len(s.transfers) + number]]
    iteration_ns = job.compute_ns
    if job.uneven == 1:
        iteration_ns = np.int64(0)
        for task in range(job.num_tasks):
            record = s.tasks[job.first_task + task]
            ours = job.grouped == 0 or record.worker == job.first_worker
            if ours and record.transfer < 0:
                iteration_ns += uneven_ns(s, job.first_worker, task)
    from_ns = max(run.now_ns, job.ahead_ns)
    most_iterations = (np.int64(4e18) - from_ns) // max(iteration_ns, 1)
    return from_ns + min(job.iterations_left - 1, most_iterations) * iteration_ns
