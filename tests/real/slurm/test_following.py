"""What follows from what Slurm says of jobs, arrays and nodes, at the edges and by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ddlsched.real.slurm.board import Demand
from ddlsched.real.slurm.commands import SlurmJob
from ddlsched.real.slurm.following import (
    Next,
    blocked,
    demand_of,
    followed,
    gpus_of_others,
    limits_of,
    seats_as_given,
    to_take_apart,
    within_limits,
)
from ddlsched.real.slurm.journal import KnownJob

SEATS = {"n1": [0, 1], "n2": [3]}


def slurm_job(job_id: int, **more: Any) -> SlurmJob:
    usual: dict[str, Any] = {
        "name": "a", "user": "me", "comment": "", "partition": "p", "state": "PENDING", "is_held": False,
        "reason": "None", "array_id": 0, "array_task": None, "array_tasks": (), "array_limit": 0, "num_gpus": 1,
        "gpus_per_node": 0, "gpu_kind": "", "gpus_on": {}, "submit_s": 1.0, "restarts": 0, "has_dependency": False,
        "own_nodes": "", "own_choice": "", "time_limit_s": 60.0,
    }  # fmt: skip
    return SlurmJob(job_id=job_id, **usual | more)


def runs(job_id: int, state: str = "RUNNING", **gpus_on: int) -> SlurmJob:
    return slurm_job(job_id, state=state, gpus_on=gpus_on)


def known(job_id: int, state: str = "starting", **more: Any) -> KnownJob:
    usual: dict[str, Any] = {"number": job_id, "seen_s": 1.0, "since_s": 5.0, "iterations_done": 4, "failed_starts": 2}
    return KnownJob(job_id=job_id, state=state, **usual | {"seats": SEATS} | more)


@pytest.mark.parametrize(
    ("state", "job", "now_s", "what", "after"),
    [
        ("starting", {}, 8.0, Next.KEEP, {}),
        ("starting", {}, 8.001, Next.TAKE_BACK, {"state": "queued", "seats": {}, "failed_starts": 3}),
        ("running", {}, 6.0, Next.TAKE_BACK, {"state": "queued", "seats": {}}),
        ("stopping", {}, 6.0, Next.TAKE_BACK, {"state": "queued", "seats": {}}),
        ("queued", {}, 6.0, Next.FORGET, {}),
        ("refused", {}, 6.0, Next.FORGET, {}),
        ("starting", {"is_held": True}, 6.0, Next.KEEP, {"state": "queued", "seats": {}}),
        ("queued", {"is_held": True}, 6.0, Next.KEEP, {}),
        ("refused", {"is_held": True}, 6.0, Next.KEEP, {}),
        ("starting", {"is_held": True, "reason": "JobHeldAdmin"}, 6.0, Next.FORGET, {}),
        ("starting", {"state": "CANCELLED"}, 6.0, Next.FORGET, {}),
        ("starting", {"state": "RUNNING"}, 9.0, Next.KEEP, {"state": "running", "since_s": 9.0, "failed_starts": 0}),
        ("refused", {"state": "RUNNING"}, 9.0, Next.KEEP, {"state": "running", "since_s": 9.0, "failed_starts": 0}),
        ("running", {"state": "RUNNING"}, 9.0, Next.KEEP, {}),
        ("stopping", {"state": "COMPLETING"}, 9.0, Next.KEEP, {}),
    ],
)
def test_what_is_known_of_a_job_changes_in_these_values_only(
    state: str, job: dict[str, Any], now_s: float, what: Next, after: dict[str, Any]
) -> None:
    """It may take three seconds to start, since five."""
    assert followed(known(7, state), slurm_job(7, **job), now_s, 3.0) == (what, known(7, **{"state": state} | after))


@pytest.mark.parametrize(
    ("gpus_on", "taken", "given"),
    [
        ({"n1": 2, "n2": 1}, {"n1": [0, 1]}, SEATS),
        ({"n1": 3, "n2": 1}, {}, {"n1": [0, 1, 2], "n2": [3]}),
        ({"n1": 3, "n2": 1}, {"n1": [2], "n2": [0]}, {"n1": [0, 1, 3], "n2": [3]}),
        ({"n1": 1, "n2": 2}, {"n2": [0]}, {"n1": [0], "n2": [1, 3]}),
        ({"n3": 2}, {"n3": [0]}, {"n3": [1]}),
        ({"n3": 1}, {"n1": [0]}, {"n3": [0]}),
        ({"elsewhere": 1}, {}, {"elsewhere": []}),
    ],
)
def test_seats_are_those_promised_then_the_first_free_ones(gpus_on: Any, taken: Any, given: Any) -> None:
    assert seats_as_given(SEATS, gpus_on, {"n1": 4, "n2": 4, "n3": 2}, taken) == given


def test_of_each_array_64_tasks_are_apart_at_most_and_only_held_ones_count() -> None:
    def together(array: int, tasks: int, **more: Any) -> SlurmJob:
        held = {"is_held": True} | more
        return slurm_job(array, array_id=array, array_tasks=tuple(range(tasks)), **held)

    def apart(array: int, tasks: int, **more: Any) -> list[SlurmJob]:
        held = {"is_held": True} | more
        return [slurm_job(100 * array + task, array_id=array, array_task=task, **held) for task in range(tasks)]

    def counts(*jobs: SlurmJob) -> list[int]:
        taken = to_take_apart(jobs)
        return [sum(name.startswith(f"{array}_") for name in taken) for array in (5, 6)]

    assert to_take_apart([together(5, 2), slurm_job(3, is_held=True), *apart(6, 1)]) == ["5_0", "5_1"]
    assert counts(together(5, 64), together(6, 65)) == [64, 64]
    assert counts(together(5, 99), *apart(5, 63)) == [1, 0]
    assert counts(together(5, 99), *apart(5, 64)) == [0, 0]
    assert counts(together(5, 99), *apart(5, 66), together(6, 1)) == [0, 1]
    assert counts(together(5, 99), *apart(5, 64, is_held=False)) == [64, 0]
    assert counts(together(5, 99, is_held=False)) == [0, 0]


def test_an_arrays_limit_is_what_was_said_last_of_an_array_that_is_there() -> None:
    tells, ends = slurm_job(5, array_id=5, array_tasks=(1, 2)), slurm_job(9, array_id=6, array_task=1)
    assert limits_of([tells, ends], {5: 3, 6: 2, 7: 1}) == {5: 0, 6: 2}
    assert limits_of([slurm_job(9, array_id=6, array_task=1, array_limit=4)], {6: 2}) == {6: 4}
    assert limits_of([], {6: 2}) == {}


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({}, [1, 2, 3, 4]),
        ({5: 0}, [1, 2, 3, 4]),
        ({5: 1}, [4]),
        ({5: 2}, [1, 4]),
        ({5: 3}, [1, 2, 4]),
        ({0: 1}, [1, 2, 3]),
    ],
)
def test_tasks_start_up_to_the_limit_with_one_that_runs(limits: dict[int, int], allowed: list[int]) -> None:
    queued = [*(slurm_job(task, array_id=5, array_task=task) for task in (1, 2, 3)), slurm_job(4)]
    active = [slurm_job(9, array_id=5, array_task=9), slurm_job(8)]
    assert within_limits(queued, active, limits) == {job.job_id: job for job in queued if job.job_id in allowed}


@pytest.mark.parametrize(
    ("others", "is_blocked"),
    [
        ([], False),
        ([runs(9, n1=2, n2=3)], False),  # as many as it needs are left, on each node one at least
        ([runs(9, n1=3, n2=2)], False),
        ([runs(9, n1=3, n2=3)], True),  # one too few
        ([runs(9, n2=4)], True),  # nothing is left on a node
        ([runs(9, n2=3), runs(10, n1=2)], False),
        ([runs(9, n2=3), runs(10, n1=2), runs(11, n1=1)], True),
        ([runs(9, "COMPLETING", n2=4)], True),
        ([runs(9, "PENDING", n2=4)], False),
        ([runs(8, n2=4)], False),  # it stops
        ([runs(9, n3=9)], False),
    ],
)
def test_a_start_is_blocked_once_its_nodes_have_too_few_gpus_left(others: list[SlurmJob], is_blocked: bool) -> None:
    """It wants two GPUs of n1 and one of n2, of four each."""
    starts, stops = known(7), known(8, "stopping", seats={"n2": [0, 1, 2, 3]})
    quiet = [known(1, "queued", seats={}), known(2, "running"), known(3, seats={})]
    found = blocked([*quiet, starts, stops], others, {"n1": 4, "n2": 4})
    assert found == ([starts] if is_blocked else [])


def test_a_start_on_a_node_that_is_gone_is_blocked() -> None:
    assert blocked([known(7)], [], {"n1": 4}) == [known(7)]


def test_gpus_of_others_are_those_of_jobs_that_hold_them_and_are_not_followed() -> None:
    jobs = [runs(1, n1=2), runs(2, n1=1, n2=1), runs(3, n1=1), runs(4, "PENDING", n1=1), runs(5, "COMPLETING", n2=2)]
    followed_ones = {2: known(2, "refused"), 3: known(3, "running")}
    assert gpus_of_others(jobs, followed_ones) == {"n1": 3, "n2": 3}
    assert gpus_of_others([], {}) == {}


def test_a_demand_is_of_so_many_on_each_node_of_a_kind() -> None:
    assert demand_of(slurm_job(1, gpus_per_node=2, gpu_kind="a")) == Demand(gpus_per_node=2, kind="a")
    assert demand_of(slurm_job(1)) == Demand() == Demand(gpus_per_node=0, kind="")
