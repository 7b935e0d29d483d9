"""What learned policies see of jobs that wait, worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.engine.records import Columns, make_records
from ddlsched.policies.choosing import Choosing, job_features, log_share, log_shares
from ddlsched.policies.job_view import JobView
from ddlsched.testing import cluster_view, job_queue, job_view


def test_a_share_of_time_goes_from_0_to_1_by_its_logarithm() -> None:
    expected = {
        -1.0: 0.0,
        0.0: 0.0,
        math.e - 1.0: 1 / 25,
        7.0: math.log(8.0) / 25,
        1e10: math.log1p(1e10) / 25,
        1e11: 1.0,
    }
    assert [log_share(value) for value in expected] == pytest.approx([*expected.values()], rel=1e-12)
    assert log_shares(np.array([*expected][1:])) == pytest.approx([*expected.values()][1:], rel=1e-12)


def test_what_is_seen_of_a_job_that_waits() -> None:
    """One of 2 GPUs on 8: 30 s of each are left, 5 MB; one of 8, for which no server of 4 has room: 3 s, 1 MB."""
    needed, eligible, most = np.array([2, 8]), np.array([6, 8]), np.array([4, 4])
    service_ns, message_bytes, waited_ns = np.array([60e9, 24e9]), np.array([5e6, 1e6]), np.array([0.0, 7e9])
    seen = job_features((needed, eligible, most, 8), service_ns, message_bytes, waited_ns, log_shares)
    first = [0.25, 0.75, 1.0, math.log(31.0) / 25, math.log(6.0) / 25, 0.0]
    second = [1.0, 1.0, 0.0, math.log(4.0) / 25, math.log(2.0) / 25, math.log(8.0) / 25]
    assert np.column_stack(seen) == pytest.approx(np.array([first, second]), rel=1e-9)
    alone = job_features((4, 4, 4, 8), 60e9, 5e6, 7e9, log_share)
    assert alone == pytest.approx(
        (0.5, 0.5, 1.0, math.log(16.0) / 25, math.log(6.0) / 25, math.log(8.0) / 25), rel=1e-9
    )


def chosen(
    jobs: list[Any], *places: int, free_mb: float = 32768.0, busy: bool = True, slots: int = 2, **given: Any
) -> Any:
    """Return who starts, and what was asked, where these places of the queue are chosen one after the other."""
    asked: list[Any] = []
    answers = [*places]

    def choose(features: np.ndarray, allowed: np.ndarray, now_s: float) -> int:
        asked.append((features[:, 0].tolist(), allowed.tolist(), now_s))
        return answers.pop(0)

    placement = given.pop("placement", SimpleNamespace(place=lambda job, cluster: [job.number]))
    residents = {15: [job_view(number=99)]} if busy else {}
    cluster = cluster_view(free_memory_mb=free_mb, now_s=4.0, residents=residents)
    told: list[int] = []
    policy = Choosing(placement, slots, choose, lambda job: told.append(job.number))
    started = [(job.number, gpus) for job, gpus in policy.place_round(job_queue(*jobs), cluster)]
    assert told == [number for number, _ in started]
    assert not answers
    return started, asked


def test_behind_who_starts_the_next_of_the_queue_is_seen() -> None:
    """Jobs 0 to 3 need 1 to 4 of 16 GPUs; two are seen at a time."""
    jobs = waiting(1, 2, 3, 4)
    started, asked = chosen(jobs, 1, 0, 1, 2)
    assert started == [(1, [1]), (0, [0]), (3, [3])]
    assert [features for features, _, _ in asked] == [
        [1 / 16, 2 / 16],
        [1 / 16, 3 / 16],
        [3 / 16, 4 / 16],
        [3 / 16, 0.0],
    ]
    assert [allowed for _, allowed, _ in asked] == [[True, True, True]] * 3 + [[True, False, True]]
    assert {now_s for _, _, now_s in asked} == {4.0}


def test_a_job_that_the_placement_refuses_is_not_offered_again() -> None:
    placement = SimpleNamespace(place=lambda job, cluster: None if job.number == 0 else [job.number])
    started, asked = chosen(waiting(1, 2), 0, 1, placement=placement)
    assert started == [(1, [1])]
    assert [allowed for _, allowed, _ in asked] == [[True, True, True], [False, True, True]]


def test_on_an_idle_cluster_somebody_starts_and_one_choice_is_none() -> None:
    started, asked = chosen(waiting(1), busy=False)
    assert (started, asked) == ([(0, [0])], [])
    assert chosen(waiting(1), free_mb=0.0) == ([], [])
    started, asked = chosen(waiting(1, 2), 0, busy=False)
    assert [allowed for _, allowed, _ in asked] == [[True, True, False]]
    assert started == [(0, [0]), (1, [1])]


@pytest.mark.parametrize("wakes", [True, False])
def test_choosing_asks_to_be_woken_where_the_placement_does(wakes: bool) -> None:
    placement = SimpleNamespace(**({"wake_s": lambda now_s: now_s + 1.0} if wakes else {}))
    assert Choosing(placement, 2, lambda *_: 0).wake_s(2.0) == (3.0 if wakes else None)


def waiting(*gpus: int) -> list[Any]:
    """Return jobs that wait, whose numbers are read from one table."""
    records = make_records("job", len(gpus))
    records.num_gpus, records.memory_bytes, records.remaining_service_ns = gpus, 10**6, 10**9
    columns = Columns(records)
    jobs = [job_view(number=number, num_gpus=count)._job for number, count in enumerate(gpus)]
    return [JobView(job, place, columns, place) for place, job in enumerate(jobs)]
