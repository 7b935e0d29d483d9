"""Job arrays and the other ways to ask for GPUs, before a Slurm in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from test_slurm_agent import Bench, Killed

from ddlsched.real.slurm.commands import SlurmRefusalError
from ddlsched.real.slurm.following import MOST_A_LOOK, MOST_APART


def by_task(slurm: FakeSlurm) -> dict[int | None, str]:
    return {job.task: "HELD" if job.held and job.state == "PENDING" else job.state for job in slurm.jobs.values()}


def held_for_itself(slurm: FakeSlurm) -> list[str]:
    return [command[2] for command in slurm.commands if command[1] == "uhold"]


def test_each_task_of_an_array_is_placed_for_itself(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=2)
    slurm.submit_array(range(4), 3)
    bench = Bench(tmp_path, slurm)
    bench.turns(2)
    assert by_task(slurm) == {0: "RUNNING", 1: "RUNNING", 2: "HELD", 3: "HELD"}
    assert [command[2] for command in slurm.commands if command[1] == "release"] == ["1_0", "1_1"]
    slurm.end(next(job.job_id for job in slurm.jobs.values() if job.task == 1))
    bench.turns(2)
    assert by_task(slurm) == {0: "RUNNING", 1: "COMPLETED", 2: "RUNNING", 3: "HELD"}


def test_no_more_tasks_run_at_a_time_than_the_array_allows(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.submit_array(range(5), 1, limit=2)
    alone = slurm.submit(1)
    bench = Bench(tmp_path, slurm)
    most = 0
    for _ in range(12):
        bench.turns()
        running = [job for job in slurm.jobs.values() if job.array and job.state == "RUNNING"]
        most = max(most, len(running))
        if running:
            slurm.end(running[0].job_id)
    assert slurm.jobs[alone].state == "RUNNING"
    assert most == 2
    assert {job.state for job in slurm.jobs.values() if job.array} == {"COMPLETED"}


@pytest.mark.long
def test_of_a_large_array_some_tasks_wait_for_the_policies_and_the_others_together(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    slurm.submit_array(range(1000), 4)
    bench = Bench(tmp_path, slurm)
    bench.turns(3)
    assert len(slurm.jobs) == 1 + MOST_APART + 1  # those that wait together, those that wait apart, the one that runs
    assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 1


@pytest.mark.long
def test_many_arrays_are_taken_apart_over_several_looks(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    arrays = [slurm.submit_array(range(40), 4) for _ in range(3)]
    bench = Bench(tmp_path, slurm)
    for most in (MOST_A_LOOK, 120 - MOST_A_LOOK, 0):
        before = len(held_for_itself(slurm))
        bench.turns()
        assert len(held_for_itself(slurm)) - before == most
    assert set(held_for_itself(slurm)) == {f"{array}_{task}" for array in arrays for task in range(40)}


def test_tasks_that_slurm_refuses_to_hold_keep_no_others_back(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    refused = [slurm.submit_array(range(40), 4) for _ in range(2)]
    good = slurm.submit_array(range(2), 2)

    def refuse(command: tuple[str, ...]) -> None:
        if command[1] == "uhold" and int(command[2].partition("_")[0]) in refused:
            raise SlurmRefusalError(f"{command[2]}: Access/permission denied")

    slurm.before = refuse
    Bench(tmp_path, slurm).turns(3)
    assert {job.task: job.state for job in slurm.jobs.values() if job.array == good} == {0: "RUNNING", 1: "RUNNING"}


@pytest.mark.long
def test_an_arrays_limit_that_is_changed_holds_from_the_next_look(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=2)
    array = slurm.submit_array(range(100), 1, limit=1)
    bench = Bench(tmp_path, slurm)
    running = []
    for limit in (1, 3, 0):
        slurm.jobs[array].array_limit = limit
        bench.turns(2)
        running.append(sum(job.state == "RUNNING" for job in slurm.jobs.values()))
    assert running == [1, 3, 8]


def test_an_arrays_limit_outlives_its_agent(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=2)
    array = slurm.submit_array(range(4), 1, limit=2)
    bench = Bench(tmp_path, slurm)
    bench.turns(2)
    assert not any(job.tasks for job in slurm.jobs.values())
    slurm.jobs[array].array_limit = 0  # now that no tasks wait together, no row says it
    bench.journal.close()
    bench.again()
    bench.turns(3)
    assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2
    assert bench.journal.array_limits() == {array: 2}
    for job_id in list(slurm.jobs):
        del slurm.jobs[job_id]
    bench.turns()
    assert bench.journal.array_limits() == {}  # Slurm has forgotten it


def test_a_kill_while_an_array_is_taken_apart_loses_no_task(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.submit_array(range(6), 2)
    bench = Bench(tmp_path, slurm)
    asked = 0

    def third(command: tuple[str, ...]) -> None:
        nonlocal asked
        asked += command[1] == "uhold"
        if asked == 3:
            asked += 1
            raise Killed

    slurm.before = third
    with pytest.raises(Killed):
        bench.agent.look()
    bench.journal.close()
    bench.again()
    bench.turns(2)
    assert by_task(slurm) == dict.fromkeys(range(6), "RUNNING")
    assert {job.starts for job in slurm.jobs.values()} == {1}


def test_a_dry_run_takes_no_array_apart(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.submit_array(range(2), 1)
    bench = Bench(tmp_path, slurm, dry_run=True)
    bench.turns(2)
    assert slurm.commands == []
    assert [detail.split(":")[0] for _, detail in bench.said("take apart")] == ["task 1_0", "task 1_1"]


@pytest.mark.parametrize("placement", ["first-fit", "lwf", "random", "easy-backfill"])
def test_gpus_for_each_node_are_that_many_on_so_many_nodes(tmp_path: Path, placement: str) -> None:
    slurm = FakeSlurm(nodes=4)
    bench = Bench(tmp_path, slurm, {"placement": placement, "order": "fifo"})
    taken = slurm.submit(3, user="somebody", state="RUNNING", held=False, given={"n2": 3})
    even = slurm.submit(6, on_each=2, limit_minutes=5)
    last = slurm.submit(8, on_each=4, limit_minutes=5)
    bench.turns(2)
    assert sorted(slurm.jobs[even].given.values()) == [2, 2, 2]
    assert "n2" not in slurm.jobs[even].given
    assert slurm.states()[last] == "HELD"
    slurm.end(taken)
    slurm.end(even)
    bench.turns(2)
    assert list(slurm.jobs[last].given.values()) == [4, 4]


@pytest.mark.parametrize("on_each", [0, 2])
def test_gpus_of_a_kind_are_of_that_kind(tmp_path: Path, on_each: int) -> None:
    slurm = FakeSlurm(nodes=4, kinds=["v100", "a100", "v100", "a100"])
    bench = Bench(tmp_path, slurm)
    wanted, more, any_kind = (
        slurm.submit(4, kind="a100", on_each=on_each),
        slurm.submit(5, kind="a100"),
        slurm.submit(8),
    )
    bench.turns(2)
    assert set(slurm.jobs[wanted].given) <= {"n2", "n4"}
    assert sum(slurm.jobs[wanted].given.values()) == 4
    assert (slurm.states()[more], slurm.states()[any_kind]) == ("HELD", "RUNNING")
    slurm.end(wanted)
    slurm.end(any_kind)
    bench.turns(2)
    assert slurm.jobs[more].given == {"n2": 4, "n4": 1}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"gpus": 10, "on_each": 5}, "10 GPUs of 0 MB, 5 on each node; there are never so many"),
        ({"gpus": 1, "kind": "h100"}, "1 GPUs of kind h100 of 0 MB; there are never so many"),
        ({"gpus": 9, "kind": "a100"}, "9 GPUs of kind a100"),
    ],
)
def test_what_there_never_is_stays_held_with_what_was_asked_for(tmp_path: Path, values, why: str) -> None:
    slurm = FakeSlurm(nodes=4, kinds=["v100", "a100", "v100", "a100"])
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(**values)
    bench.turns(2)
    assert slurm.states() == {job: "HELD"}
    [(_, message)] = bench.said("refuse")
    assert why in message
