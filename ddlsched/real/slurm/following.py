"""What becomes of known jobs and of arrays, by what Slurm says of them; pure, so that every case is a line of a test.

Tasks of an array that wait share one number in Slurm, and one line in its queue. Held apart, each gets a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from ddlsched.real.slurm.board import Demand
from ddlsched.real.slurm.commands import SlurmJob
from ddlsched.real.slurm.journal import KnownJob, Seats


class Next(Enum):
    """What an agent does about a job."""

    KEEP = "keep"
    TAKE_BACK = "take back"
    """Hold it again, and let it wait."""
    FORGET = "forget"
    """It is nobody's that an agent places."""


def followed(known: KnownJob, job: SlurmJob, now_s: float, start_s: float) -> tuple[Next, KnownJob]:
    """Return what is known of a job from now on, and what to do about it.

    Parameters
    ----------
    known, job
        What the journal says of it, and what Slurm does.
    now_s, start_s
        The time, and how long a released job may take to start, seconds.
    """
    if job.holds:
        is_settled = known.state in ("running", "stopping")
        return Next.KEEP, known if is_settled else replace(known, state="running", since_s=now_s, failed_starts=0)
    if job.state != "PENDING" or job.reason == "JobHeldAdmin":
        return Next.FORGET, known
    if job.is_held:
        is_settled = known.state in ("queued", "refused")
        return Next.KEEP, known if is_settled else replace(known, state="queued", seats={})
    if known.state == "starting" and now_s - known.since_s <= start_s:
        return Next.KEEP, known
    if known.state == "starting":
        return Next.TAKE_BACK, replace(known, state="queued", seats={}, failed_starts=known.failed_starts + 1)
    if known.state in ("running", "stopping"):  # Slurm requeued it: its node died, or it was preempted
        return Next.TAKE_BACK, replace(known, state="queued", seats={})
    return Next.FORGET, known  # somebody else released it


def seats_as_given(seats: Seats, gpus_on: Mapping[str, int], sizes: Mapping[str, int], taken: Seats) -> Seats:
    """Return seats in the numbers that Slurm gave on each node: those promised first, then free ones.

    Parameters
    ----------
    seats
        Promised.
    gpus_on
        Given by Slurm.
    sizes
        GPUs of each node; others' nodes are left out.
    taken
        Seats of other jobs.
    """
    if {node: len(gpus) for node, gpus in seats.items()} == dict(gpus_on):
        return seats
    given: dict[str, Sequence[int]] = {}
    for node, count in gpus_on.items():
        promised = list(seats.get(node, ()))
        free = [gpu for gpu in range(sizes.get(node, 0)) if gpu not in promised and gpu not in taken.get(node, ())]
        given[node] = sorted((promised + free)[:count])
    return given


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


def blocked(known: Sequence[KnownJob], jobs: Sequence[SlurmJob], sizes: Mapping[str, int]) -> list[KnownJob]:
    """Return the jobs that are to start on nodes where others have their GPUs by now.

    Parameters
    ----------
    known, jobs
        What the journal says of jobs, and what Slurm does.
    sizes
        GPUs of each node.
    """
    free = dict(sizes)
    stopping = {one.job_id for one in known if one.state == "stopping"}
    for job in jobs:
        for node, count in job.gpus_on.items() if job.holds and job.job_id not in stopping else ():
            free[node] = free.get(node, 0) - count
    found = []
    for one in known:
        on = [free.get(node, 0) for node in one.seats] if one.state == "starting" else []
        if on and (min(on) < 1 or sum(on) < sum(map(len, one.seats.values()))):
            found.append(one)
    return found


def gpus_of_others(jobs: Sequence[SlurmJob], known: Mapping[int, KnownJob]) -> dict[str, int]:
    """Return how many GPUs on each node jobs have that are not the agent's; ``known`` are those that may be."""
    others: Counter[str] = Counter()
    for job in jobs:
        if job.holds and (job.job_id not in known or known[job.job_id].state == "refused"):
            others.update(job.gpus_on)
    return dict(others)


def demand_of(job: SlurmJob) -> Demand:
    """Return what a job asks for beyond a number of GPUs."""
    return Demand(job.gpus_per_node, job.gpu_kind)
