"""Job arrays: every task is a job of its own, and no more of an array run at a time than its user said.

Tasks that wait share one number in Slurm, and one line in its queue. Held each for itself, each gets a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ddlsched.real.slurm.answers import SlurmJob

__all__ = ["MOST_APART", "MOST_A_LOOK", "limits_of", "to_take_apart", "within_limits"]

MOST_APART = 64
"""So many tasks of an array wait for the policies at most, lest a large one fill Slurm's table of jobs."""
MOST_A_LOOK = 64
"""So many tasks of all arrays are taken apart at one look at most: each takes a command, and others wait meanwhile."""


def to_take_apart(jobs: Sequence[SlurmJob]) -> list[str]:
    """Return the tasks that are to be held each for itself, as commands call them.

    Parameters
    ----------
    jobs
        All that an agent may touch.
    """
    apart = Counter(job.array_id for job in jobs if job.array_task is not None and job.is_held)
    together = [job for job in jobs if job.array_tasks and job.is_held]
    chosen = ((job, job.array_tasks[: max(MOST_APART - apart[job.array_id], 0)]) for job in together)
    return [f"{job.array_id}_{task}" for job, tasks in chosen for task in tasks]


def limits_of(jobs: Sequence[SlurmJob], before: Mapping[int, int]) -> dict[int, int]:
    """Return how many tasks of each array in the queue may run at a time; 0 if its user set no limit.

    What stands for several tasks says its array's limit, also that there is none; other rows may leave it out, so that
    what was known before holds.
    """
    said = {job.array_id: job.array_limit for job in jobs if job.array_limit or job.array_tasks}
    there = {job.array_id for job in jobs}
    return {array: limit for array, limit in {**before, **said}.items() if array in there}


def within_limits(
    queued: Iterable[SlurmJob], active: Iterable[SlurmJob], limits: Mapping[int, int]
) -> dict[int, SlurmJob]:
    """Return those of the jobs that wait which the limits of their arrays let start, by number.

    Parameters
    ----------
    queued, active
        Who waits, in order, and who starts, runs or stops.
    limits
        How many tasks may run at a time, by array; arrays that have none are left out, or have 0.
    """
    running = Counter(job.array_id for job in active)
    allowed = {}
    for job in queued:
        running[job.array_id] += 1
        if running[job.array_id] <= (limits.get(job.array_id) or running[job.array_id]):
            allowed[job.job_id] = job
    return allowed
