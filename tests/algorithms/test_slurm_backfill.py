"""Slurm's backfilling: cases worked out by hand on single GPUs, of which first-fit chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from algorithms.placement.slurm_backfill import SlurmBackfill
from ddlsched.testing import cluster_view, job_queue, job_view

EXACT: dict[str, Any] = {"resolution_s": 1e-9}


def starts(gpus: int, asked: list[tuple[int, float]], **options: Any) -> dict[int, list[int]]:
    """Return who starts where, of jobs of some GPUs and time limits."""
    view = cluster_view(num_servers=gpus, gpus_per_server=1, exclusive=True)
    policy = SlurmBackfill(**options).begin(view._cluster, np.random.default_rng(0))
    jobs = [job_view(number=number, num_gpus=count, time_limit_s=s) for number, (count, s) in enumerate(asked)]
    return {job.number: list(chosen) for job, chosen in policy.place_round(job_queue(*jobs), view)}


# Job 0 runs on GPUs 0 and 1 of four until 100 s; job 1 waits for three, and 0 to 2 are reserved for it from then on.
RUNS, WAITS = (2, 100.0), (3, 50.0)


@pytest.mark.parametrize(
    ("asked", "options", "where"),
    [
        ([(1, 100.0)], EXACT, {2: [3]}),  # as long as the reservation is away is too long for GPU 2
        ([(1, 99.0)], EXACT, {2: [2]}),
        ([(1, 200.0), (1, 200.0)], EXACT, {2: [3]}),
        ([(1, 60.0)], {}, {2: [3]}),  # it is reserved from a full minute on
        ([(1, 59.0)], {}, {2: [2]}),
        ([(1, 200.0)], {"horizon_s": 99.0}, {2: [2]}),
        ([(1, 200.0)], {"horizon_s": 100.0}, {2: [3]}),
        ([(1, 59.0)], {"depth": 2}, {}),
        ([(3, 50.0), (1, 200.0)], EXACT, {3: [3]}),  # job 2 has them from 150 s on
        ([(4, 50.0), (1, 100.0), (1, 99.0)], EXACT, {3: [3], 4: [2]}),  # and here all: what ends by then may start
        ([(4, 50.0), (1, 200.0), (1, 149.0)], EXACT, {4: [3]}),
    ],
)
def test_who_starts_beside_reservations(
    asked: list[tuple[int, float]], options: dict[str, Any], where: dict[int, list[int]]
) -> None:
    assert starts(4, [RUNS, WAITS, *asked], **options) == {0: [0, 1], **where}


@pytest.mark.parametrize(("end_s", "where"), [(60.0, {3: [2]}), (61.0, {})])
def test_who_ends_within_half_a_minute_of_the_next_full_one_goes_with_the_first(
    end_s: float, where: dict[int, list[int]]
) -> None:
    """Job 2 gets GPUs 0 and 2 when job 0 has ended, at 10 s; or 0 and 1, if job 1 is counted as ended with it."""
    assert starts(3, [(1, 10.0), (1, end_s), (2, 50.0), (1, 200.0)], **EXACT) == {0: [0], 1: [1], **where}


def test_reservations_are_told() -> None:
    view = cluster_view(num_servers=4, gpus_per_server=1, exclusive=True)
    policy = SlurmBackfill(**EXACT).begin(view._cluster, np.random.default_rng(0))
    asked = [RUNS, WAITS, (3, 50.0), (1, 200.0)]
    jobs = [job_view(number=number, num_gpus=count, time_limit_s=s) for number, (count, s) in enumerate(asked)]
    assert [job.number for job, _ in policy.place_round(job_queue(*jobs), view)] == [0, 3]
    assert policy.reservations_ns() == {1: 100 * 10**9, 2: 150 * 10**9}


@pytest.mark.parametrize(("limit_s", "where"), [(100.0, {}), (99.0, {3: ([0, 1], [0])})])
def test_others_give_way_only_on_gpus_that_are_not_reserved(limit_s: float, where: dict[int, Any]) -> None:
    """Jobs 0 and 1 run on two GPUs each until 100 s; job 2 waits for all four, and job 0 may give way to job 3."""
    asked = [(2, 100.0), (2, 100.0), (4, 50.0), (2, limit_s)]
    jobs = [job_view(number=number, num_gpus=count, time_limit_s=s) for number, (count, s) in enumerate(asked)]
    view = cluster_view(num_servers=4, gpus_per_server=1, exclusive=True)
    policy = SlurmBackfill(**EXACT).begin(view._cluster, np.random.default_rng(0))
    for job, gpus in policy.place_round(job_queue(*jobs[:2]), view):
        job._placed(tuple(gpus), tuple(gpus))
    residents = {gpu: [jobs[gpu // 2]] for gpu in range(4)}
    view = cluster_view(num_servers=4, gpus_per_server=1, exclusive=True, residents=residents)

    def victims(job: Any, place: Any) -> list[Any]:
        return jobs[:1] if job is jobs[3] and place(job, jobs[:1]) is not None else []

    rounds = policy.start_round(job_queue(*jobs[2:]), view, victims)
    assert {job.number: (list(gpus), [each.number for each in gone]) for job, gpus, gone in rounds} == where
    assert policy.reservations_ns()[2] == 100 * 10**9


@pytest.mark.parametrize(("end_s", "where"), [(1050.0, {3: [2]}), (1051.0, {})])
def test_as_few_go_together_when_the_first_ends_late(end_s: float, where: dict[int, list[int]]) -> None:
    """Job 2 gets GPUs 0 and 2 when job 0 has ended, at 1000 s; or 0 and 1, if job 1 is counted as ended with it."""
    assert starts(3, [(1, 1000.0), (1, end_s), (2, 50.0), (1, 2000.0)], **EXACT) == {0: [0], 1: [1], **where}
