"""What single environments ask, let wait and count: small cases whose answers are worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.engine.records import Columns, make_records
from ddlsched.envs.scheduling_env import JobSeconds
from ddlsched.envs.single_envs import (
    AllocationEnv,
    CommunicationEnv,
    OrderEnv,
    PlacementEnv,
    _AskedAdmission,
    _AskedAllocation,
    _AskedPlacement,
    _features,
    _Noting,
)
from ddlsched.policies.choosing import log_share
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.job_view import JobView
from ddlsched.testing import cluster_view, job_view, network_view, transfer_view

SERVERS = 3
FOUR_GPUS = Cluster(num_servers=2, gpus_per_server=2)


class Asked:
    """Gives prepared answers, and keeps what it was asked."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.decisions = list(answers), list[Any]()

    def __call__(self, decision: Any) -> int:
        self.decisions.append(decision)
        return self.answers.pop(0)


class Seconds:
    """Keeps who started, and how many jobs were there."""

    def __init__(self) -> None:
        self.begun, self.num_there = list[Any](), list[int]()

    def started(self, job: Any) -> None:
        self.begun.append(job)

    def there(self, num_jobs: int) -> None:
        self.num_there.append(num_jobs)


def arriving(*arrivals_s: float) -> Workload:
    iteration = DataParallelIteration(forward_s=1.0, backward_s=0.0, message_bytes=1e6)
    given: dict[str, Any] = {"num_gpus": 1, "iterations": 1, "iteration": iteration, "gpu_memory_mb": 1.0}
    return Workload.of(Job(job_id=f"j{at}", arrival_s=at, **given) for at in arrivals_s)


def running(*iterations_left: int) -> tuple[Any, list[JobView]]:
    """Return the records of running jobs and their views."""
    records = make_records("job", len(iterations_left))
    records.iterations_left = iterations_left
    columns = Columns(records)
    jobs = arriving(*map(float, range(len(records))))
    return records, [JobView(job, place, columns, place) for place, job in enumerate(jobs)]


def test_jobs_count_from_their_arrival_to_the_first_decision_after_their_end() -> None:
    records, (one, two) = running(9, 9)
    seconds = JobSeconds(arriving(3.0, 1.0, 10.0))
    assert seconds.since(1.0) == 0.0
    assert seconds.since(5.0) == 4.0 + 2.0
    seconds.started(one)
    assert seconds.since(5.0) == 0.0
    seconds.started(two)
    records.iterations_left = 0, 9
    assert seconds.since(7.0) == 2 * 2.0  # the end of one is seen now
    assert seconds.since(8.0) == 1.0
    records.iterations_left = 0, 0
    assert seconds.since(12.0) == 4.0 + 2.0
    assert seconds.since(20.0) == 8.0
    assert seconds.rest(30.0) == 30.0 - (6.0 + 4.0 + 1.0 + 6.0 + 8.0)


def test_jobs_that_end_between_decisions_of_an_instant_count_no_longer() -> None:
    records, (one, two) = running(9, 9)
    seconds = JobSeconds(arriving(0.0, 0.5))
    assert seconds.since(0.0) == 0.0
    seconds.started(one)
    seconds.started(two)
    assert seconds.since(2.0) == 2.0 + 1.5
    records.iterations_left = 9, 0
    assert seconds.since(2.0) == 0.0
    assert seconds.since(5.0) == 3.0


def test_the_jobs_that_are_said_to_be_there_are_counted() -> None:
    seconds = JobSeconds(arriving(0.0, 1.0, 2.0))
    seconds.there(2)
    assert seconds.since(2.0) == 2.0 + 1.0 + 0.0
    assert seconds.since(4.0) == 2 * 2.0
    seconds.there(0)
    assert seconds.since(5.0) == 2.0
    assert seconds.since(9.0) == 0.0


@pytest.mark.parametrize("gpus", [None, [], [3, 1]])
def test_a_job_that_is_placed_is_noted(gpus: list[int] | None) -> None:
    seconds = Seconds()
    noting = _Noting(SimpleNamespace(place=lambda job, cluster: gpus), seconds)  # type: ignore[arg-type]
    job = job_view()
    assert noting.place(job, cluster_view()) == gpus
    assert seconds.begun == ([] if gpus is None else [job])


def test_a_placement_says_when_it_wants_to_be_asked_again_if_it_does() -> None:
    waking = SimpleNamespace(wake_s=lambda now_s: now_s + 2.0)
    assert _Noting(waking, Seconds()).wake_s(3.0) == 5.0  # type: ignore[arg-type]
    assert _Noting(SimpleNamespace(), Seconds()).wake_s(3.0) is None  # type: ignore[arg-type]


def placed(asked: Asked, num_gpus: int, seconds: Seconds | None = None, **cluster: Any) -> Any:
    policy = _AskedPlacement(asked, seconds or Seconds(), 2)  # type: ignore[arg-type]
    given: dict[str, Any] = {"num_servers": SERVERS, "gpus_per_server": 2, "now_s": 7.0} | cluster
    return policy.place(job_view(num_gpus=num_gpus, gpu_memory_mb=1000.0), cluster_view(**given))


def test_a_job_takes_the_least_loaded_gpus_of_the_servers_that_are_chosen() -> None:
    asked, seconds = Asked(2, 0), Seconds()
    load_s = [5.0, 3.0, 0.0, 0.0, 1.0, 0.5]
    free_mb = [32768.0, 32768.0, 0.0, 2000.0, 32768.0, 32768.0]
    busy = {2: [job_view(number=9)]}
    gpus = placed(asked, 3, seconds, load_s=load_s, free_memory_mb=free_mb, residents=busy)
    assert gpus == [5, 4, 1]
    assert len(seconds.begun) == 1
    first, second = asked.decisions
    assert (first.now_s, first.mask.tolist(), second.mask.tolist()) == (
        7.0, [True, True, True, True], [True, True, False, False],
    )  # fmt: skip
    shares = [log_share(3.0), log_share(0.0), log_share(0.5)]
    expected = [[1.0, 0.0, shares[0]], [0.5, 0.0, shares[1]], [1.0, 0.0, shares[2]]]
    assert first.observation["servers"] == pytest.approx(np.array(expected), rel=1e-6)
    expected[2] = [0.0, 1.0, 0.0]
    assert second.observation["servers"] == pytest.approx(np.array(expected), rel=1e-6)
    assert first.observation["job"][0] == 3 / 6


def test_a_job_takes_no_more_gpus_than_it_needs() -> None:
    asked = Asked(1, 2)
    assert placed(asked, 3) == [2, 3, 4]
    assert asked.decisions[1].observation["servers"][:, 1].tolist() == [0.0, 1.0, 0.0]


def test_a_job_may_wait_before_the_first_server_unless_the_cluster_is_idle() -> None:
    busy, seconds = {0: [job_view(number=9)]}, Seconds()
    assert placed(Asked(SERVERS), 1, seconds, residents=busy) is None
    assert seconds.begun == []
    asked = Asked(1)
    assert placed(asked, 1) == [2]
    assert asked.decisions[0].mask.tolist() == [True, True, True, False]


def test_what_leaves_no_choice_is_not_asked() -> None:
    free_mb = [0.0, 0.0, 2000.0, 2000.0, 0.0, 0.0]
    assert placed(Asked(), 2, free_memory_mb=free_mb) == [2, 3]
    assert placed(Asked(), 1, free_memory_mb=0.0, residents={0: [job_view(number=9)]}) is None


def elastic(number: int, least: int = 1, most: int = 4, held: int = 0, **others: Any) -> Any:
    job: Any = SimpleNamespace(job_id=f"e{number}", min_gpus=least, max_gpus=most, arrival_s=2.0)
    return ElasticJobView(job=job, number=number, samples_left=50, gpus=tuple(range(held)), **others)


def test_the_features_of_an_elastic_job_are_shares_and_times() -> None:
    job = elastic(0, 2, 9, held=3, rescaling_left_s=6.0)
    assert _features(job, 8, 12.0) == (3 / 8, 2 / 8, 1.0, log_share(50), log_share(10.0), log_share(6.0))


def allocated(asked: Asked, jobs: list[Any], num_gpus: int = 4, seconds: Seconds | None = None) -> Any:
    capacity = CapacityView(num_gpus=num_gpus, free_gpus=(), cluster=cluster_view(num_servers=2, gpus_per_server=2))
    return _AskedAllocation(asked, seconds or Seconds()).allocate(jobs, capacity, 12.0)  # type: ignore[arg-type]


def test_each_job_is_asked_for_with_what_is_left() -> None:
    asked, seconds = Asked(3, 0, 1), Seconds()
    jobs = [elastic(0, 2, 3), elastic(1, 1, 9), elastic(2, 1, 9)]
    assert allocated(asked, jobs, seconds=seconds) == {"e0": Allocation(3), "e2": Allocation(1)}
    assert seconds.num_there == [3]
    assert [decision.now_s for decision in asked.decisions] == [12.0] * 3
    assert [np.flatnonzero(decision.mask).tolist() for decision in asked.decisions] == [[0, 2, 3], [0, 1], [0, 1]]
    assert {len(decision.mask) for decision in asked.decisions} == {5}
    sums = [decision.observation["cluster"].tolist() for decision in asked.decisions]
    assert sums == [
        pytest.approx([left / 4, log_share(after), log_share(3)]) for left, after in ((4, 2), (1, 1), (1, 0))
    ]
    assert asked.decisions[0].observation["job"] == pytest.approx(np.array(_features(jobs[0], 4, 12.0)))


def test_the_last_job_gets_some_where_nobody_else_has_any() -> None:
    asked = Asked(0, 2)
    assert allocated(asked, [elastic(0), elastic(1, 2, 4)]) == {"e1": Allocation(2)}
    assert np.flatnonzero(asked.decisions[1].mask).tolist() == [2, 3, 4]
    assert allocated(Asked(), [elastic(0, 3, 3)]) == {"e0": Allocation(3)}


def test_a_job_that_needs_more_than_is_left_gets_none() -> None:
    assert allocated(Asked(3, 0), [elastic(0, 1, 3), elastic(1, 2, 4), elastic(2, 1, 1)]) == {"e0": Allocation(3)}
    assert allocated(Asked(), [elastic(0, 5, 6)]) == {}


def admitted(asked: Asked, met: int) -> list[bool]:
    """Return what is answered at the instants 0 and 1 s to a transfer that would meet some."""
    job = job_view(num_gpus=2, servers=(0, 1), compute_s=1.0, iterations=6)
    others = [
        transfer_view(job_view(number=2 + number, num_gpus=4, servers=(1, 2)), bytes_left=number * 1e6)
        for number in range(met)
    ]
    network = network_view(active=others)
    policy = _AskedAdmission(asked, 8)
    return [policy.admit(transfer_view(job, bytes_left=3e6), network)]


def test_a_transfer_that_meets_nobody_is_not_asked_for() -> None:
    assert admitted(Asked(), 0) == [True]


@pytest.mark.parametrize(("met", "answer"), [(1, 0), (4, 1), (6, 1)])
def test_a_transfer_is_asked_for_beside_the_first_four_that_it_meets(met: int, answer: int) -> None:
    asked = Asked(answer)
    assert admitted(asked, met) == [bool(answer)]
    (decision,) = asked.decisions
    rows = decision.observation["transfers"]
    assert rows.shape == (5, 4)
    assert rows[0] == pytest.approx(np.array([log_share(3.0), log_share(6.0), 0.25, 1.0]))
    shown = min(met, 4)
    assert rows[1 : 1 + shown] == pytest.approx(
        np.array([[log_share(number), log_share(10.0), 0.5, 1.0] for number in range(shown)])
    )
    assert not rows[1 + shown :].any()
    assert decision.observation["most"] == pytest.approx(np.array([log_share(met)]))
    assert decision.mask.tolist() == [True, True]


@pytest.mark.parametrize(
    ("env", "shapes", "actions"),
    [
        (lambda: PlacementEnv(arriving(0.0), cluster=FOUR_GPUS), {"job": (7,), "servers": (2, 3)}, 3),
        (lambda: OrderEnv(arriving(0.0), cluster=FOUR_GPUS), {"queue": (16, 7)}, 17),
        (lambda: OrderEnv(arriving(0.0), cluster=FOUR_GPUS, slots=1), {"queue": (1, 7)}, 2),
        (lambda: AllocationEnv(arriving(0.0), cluster=FOUR_GPUS), {"job": (6,), "cluster": (3,)}, 5),
        (lambda: CommunicationEnv(arriving(0.0), cluster=FOUR_GPUS), {"transfers": (5, 4), "most": (1,)}, 2),
    ],
)
def test_the_spaces_have_the_size_of_what_is_seen(env: Any, shapes: dict[str, tuple[int, ...]], actions: int) -> None:
    made = env()
    boxes = dict(made.observation_space)
    assert {name: box.shape for name, box in boxes.items()} == {**shapes, "action_mask": (actions,)}
    assert made.action_space.n == actions
    assert {(float(box.low.min()), float(box.high.max())) for box in boxes.values()} == {(0.0, 1.0)}
