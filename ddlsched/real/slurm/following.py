"""What becomes of a known job, by what Slurm says of it; pure, so that every case is a line of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

from ddlsched.real.slurm.answers import SlurmJob
from ddlsched.real.slurm.journal import KnownJob, Seats

__all__ = ["Next", "followed", "seats_as_given"]


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
        return Next.KEEP, _holding(known, now_s)
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


def _holding(known: KnownJob, now_s: float) -> KnownJob:
    if known.state in ("running", "stopping"):
        return known
    return replace(known, state="running", since_s=now_s, failed_starts=0)


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
