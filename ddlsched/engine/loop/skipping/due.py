"""Which components are looked at before the next instant, and why."""

from __future__ import annotations

from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import Due
from ddlsched.engine.records.layout import State


@njit
def make_due(s: State, number: int, why: int) -> None:
    """Have a component's anchor, or its first job, looked at before the next instant."""
    job = s.jobs[number]
    job.due, job.next_due = why, s.run[0].first_due
    s.run[0].first_due = number


@njit
def count_iteration(s: State, root: int) -> None:
    """A job of a sampled component begins an iteration; after so many the next step is due."""
    first = s.jobs[root]
    first.stretch_left -= 1
    if first.stretch_left <= 0 and first.due == 0:
        make_due(s, root, Due.GOES_ON.value)


@njit
def note_change(s: State, number: int) -> None:
    """Have the component that a job was in found anew, as a job comes to it or leaves it."""
    s.jobs[s.jobs[number].root].changed = s.run[0].num_finds
