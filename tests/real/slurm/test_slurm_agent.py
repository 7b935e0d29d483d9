"""The agent before a Slurm in memory: what it does, what it leaves alone, and what it survives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm
from tiers import tried

from ddlsched.errors import InputError
from ddlsched.real.slurm.agent import AgentEvent, AgentSettings, SlurmAgent
from ddlsched.real.slurm.commands import SlurmBusyError
from ddlsched.real.slurm.journal import AgentJournal

FIFO = {"placement": "first-fit", "order": "fifo"}


class Bench:
    """An agent on a journal in a file, before a Slurm in memory; :meth:`again` starts another, as after a kill."""

    def __init__(self, folder: Path, slurm: FakeSlurm, policies: dict[str, Any] = FIFO, **settings: object) -> None:
        self.slurm, self.events = slurm, list[AgentEvent]()
        self.settings = AgentSettings(partition="gpus", user="me", policies=policies, **settings)  # type: ignore[arg-type]
        self.path = folder / "agent.sqlite"
        self.again()

    def again(self) -> None:
        self.journal = AgentJournal(self.path)
        self.agent = SlurmAgent(self.settings, self.journal, self.slurm, self.events.append, lambda: self.slurm.now_s)

    def turns(self, count: int = 1, *, start: bool = True) -> None:
        for _ in range(count):
            self.agent.look()
            if start:
                self.slurm.turn()
            self.slurm.now_s += 1.0

    def said(self, what: str) -> list[tuple[int, str]]:
        return [(event.job_id, event.detail) for event in self.events if event.what == what]


def starts_of(slurm: FakeSlurm) -> list[int]:
    return [int(command[2]) for command in slurm.commands if command[1] == "release"]


def test_held_jobs_start_where_the_policies_say_and_the_next_when_gpus_are_free(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=2)
    bench = Bench(tmp_path, slurm)
    first, second, third = slurm.submit(5), slurm.submit(2), slurm.submit(4)
    bench.turns(2)
    assert slurm.states() == {first: "RUNNING", second: "RUNNING", third: "HELD"}
    assert slurm.jobs[first].given == {"n1": 4, "n2": 1}
    assert slurm.jobs[second].given == {"n2": 2}
    slurm.end(first)
    bench.turns()
    assert slurm.jobs[third].wanted == ("n1",)
    assert starts_of(slurm) == [first, second, third]


def test_the_order_is_that_of_the_policy(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm, {"placement": "lwf", "order": "srsf"})
    long = slurm.submit(4, "ddlsched:iterations=100,forward_s=1")
    short = slurm.submit(4, "ddlsched:iterations=10,forward_s=1")
    bench.turns()
    assert slurm.states() == {long: "HELD", short: "RUNNING"}


@pytest.mark.long
def test_backfilling_plans_with_slurms_time_limits_also_after_a_restart(tmp_path: Path) -> None:
    """What backfilling remembers of running jobs is told to it anew: a long job would delay the first that waits."""
    slurm = FakeSlurm(nodes=2)
    policies = {"placement": "easy-backfill", "order": "fifo"}
    bench = Bench(tmp_path, slurm, policies)
    running = slurm.submit(6, limit_minutes=2)
    bench.turns(2)
    first, long, short = (
        slurm.submit(8, limit_minutes=5),
        slurm.submit(2, limit_minutes=60),
        slurm.submit(2, limit_minutes=1),
    )
    bench.again()
    bench.turns(2)
    assert slurm.states() == {running: "RUNNING", first: "HELD", long: "HELD", short: "RUNNING"}


def test_an_order_that_stops_jobs_has_them_requeued_and_a_job_that_resumes_goes_on(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm, {"placement": "first-fit", "order": "stopping-srtf"})
    long = slurm.submit(4, "ddlsched:iterations=1000,forward_s=1,resumes=true")
    bench.turns(21)
    short = slurm.submit(4, "ddlsched:iterations=5,forward_s=1")
    bench.turns(2)
    assert slurm.states() == {long: "HELD", short: "RUNNING"}
    assert bench.said("stop") == [(long, "after 20 iterations")]
    assert bench.journal.jobs()[long].iterations_done == 20
    slurm.end(short)
    bench.turns(2)
    assert slurm.states()[long] == "RUNNING"
    assert "StartTime=now+2" in slurm.commands[-2]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"comment": "ddlsched:iterations=ten"}, "iterations: 'ten' is not a whole number"),
        ({"comment": "ddlsched:iterations=5"}, "computes for less than 1 ns"),
        ({"comment": "ddlsched:iterations=5,forward=1"}, "Did you mean 'forward_s'"),
        ({"comment": "ddlsched:"}, "iterations is missing"),
        ({"comment": "ddlsched:5"}, "expected name=value"),
        ({"gpus": 0}, "expected --gpus=N"),
        ({"gpus": 9}, "there are never so many"),
    ],
)
def test_a_job_without_a_valid_description_stays_held_and_is_told_of_once(tmp_path: Path, values, why: str) -> None:
    slurm = FakeSlurm(nodes=2)
    bench = Bench(tmp_path, slurm)
    bad = slurm.submit(**({"gpus": 1} | values))
    good = slurm.submit(1)
    bench.turns(3)
    assert slurm.states() == {bad: "HELD", good: "RUNNING"}
    [(job_id, message)] = bench.said("refuse")
    assert job_id == bad
    assert why in message


@pytest.mark.parametrize(
    "values",
    [
        {"user": "somebody"},
        {"partition": "other"},
        {"comment": "my first run"},
        {"dependency": "afterok:7"},
        {"array": 1, "tasks": (0, 1), "comment": "my first array"},
        {"reason": "JobHeldAdmin"},
        {"held": False, "reason": "Resources"},
    ],
)
def test_what_is_not_the_agents_is_not_touched(tmp_path: Path, values) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm)
    slurm.submit(2, **values)
    bench.turns(3)
    assert slurm.commands == []


def test_gpus_of_others_and_of_nodes_that_are_drained_are_left_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=3)
    slurm.submit(3, user="somebody", state="RUNNING", held=False, given={"n1": 3})
    slurm.nodes["n2"] = "draining"
    bench = Bench(tmp_path, slurm)
    job, too_large = slurm.submit(5), slurm.submit(1)
    bench.turns(2)
    assert slurm.jobs[job].given == {"n1": 1, "n3": 4}
    assert slurm.states()[too_large] == "HELD"


def test_a_dry_run_says_what_it_would_do_once_and_does_nothing(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm, dry_run=True)
    job = slurm.submit(5)
    bench.turns(3)
    assert slurm.commands == []
    assert bench.said("start") == [(job, "4 on n1, 1 on n2")]


def test_a_job_that_slurm_does_not_start_is_taken_back_and_given_up_after_three_times(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm, start_s=5.0)
    job = slurm.submit(1)
    bench.turns(40, start=False)
    assert starts_of(slurm) == [job] * 3
    assert slurm.states() == {job: "HELD"}
    assert bench.said("refuse") == [(job, "could not be started 3 times; it stays held")]


def test_a_job_whose_nodes_slurm_gave_to_another_is_taken_back_at_once(tmp_path: Path) -> None:
    """Between decision and start a job ended on n1: Slurm gives the first more of n1, and nothing is left there."""
    slurm = FakeSlurm(nodes=3)
    bench = Bench(tmp_path, slurm)
    ends, stays = slurm.submit(2), slurm.submit(1)
    bench.turns(2)
    first, second = slurm.submit(5), slurm.submit(4)
    bench.turns(start=False)
    assert slurm.jobs[first].wanted == ("n1", "n2")
    assert slurm.jobs[second].wanted == ("n3",)
    slurm.nodes["n3"], slurm.jobs[stays].given = "idle", {"n1": 1, "n3": 1}
    slurm.end(ends)
    bench.turns(4)
    assert bench.said("take back")[0] == (second, "did not start on n3 (None)")
    assert slurm.states() == {ends: "COMPLETED", stays: "RUNNING", first: "RUNNING", second: "RUNNING"}


def test_a_job_whose_node_dies_is_taken_back_and_starts_elsewhere(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=2)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(4)
    bench.turns(2)
    assert slurm.jobs[job].given == {"n1": 4}
    slurm.nodes["n1"] = "down"
    slurm.jobs[job].state, slurm.jobs[job].given, slurm.jobs[job].restarts = "PENDING", {}, 1  # Slurm requeues it
    bench.turns(2)
    assert slurm.jobs[job].given == {"n2": 4}


@pytest.mark.parametrize("comment", ["ddlsched:iterations=none", "my best run"])
def test_a_comment_that_is_changed_while_a_job_runs_ends_no_agent(tmp_path: Path, comment: str) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(4)
    bench.turns(2)
    slurm.jobs[job].comment = comment
    bench.turns(2)
    slurm.jobs[job].state, slurm.jobs[job].given, slurm.jobs[job].restarts = "PENDING", {}, 1  # Slurm requeues it
    bench.turns(2)
    bench.again()
    bench.turns(2)
    assert slurm.jobs[job].restarts == 1
    assert {what for what, _ in ((event.what, event) for event in bench.events)} <= {
        "start",
        "take back",
        "refuse",
        "end",
    }


def test_a_job_that_its_user_cancels_frees_its_gpus(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm)
    first, waiting, last = slurm.submit(4), slurm.submit(4), slurm.submit(4)
    bench.turns(2)
    slurm.end(waiting, "CANCELLED")
    slurm.end(first, "CANCELLED")
    bench.turns(2)
    assert slurm.states() == {first: "CANCELLED", waiting: "CANCELLED", last: "RUNNING"}
    assert bench.said("end") == [(first, "cancelled"), (waiting, "cancelled")]


def test_a_job_that_may_not_be_touched_is_given_up_and_others_go_on(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    slurm.forbidden.add(1)
    bench = Bench(tmp_path, slurm)
    forbidden, other = slurm.submit(4), slurm.submit(4)
    bench.turns(8)
    assert slurm.states() == {forbidden: "HELD", other: "RUNNING"}
    assert len(bench.said("refuse")) == 1
    assert bench.said("fail") == [(forbidden, "scontrol update: Access/permission denied for job 1")]
    denied = ("start", forbidden, "n1", "scontrol update: Access/permission denied for job 1")
    assert {row[1:] for row in bench.journal.decisions()} == {denied, ("start", other, "n1", "done")}


def test_while_slurm_is_out_of_reach_questions_become_seldom_and_then_end(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm, give_up_s=100.0)
    slurm.down = True
    waits_s: list[float] = []

    def sleep(seconds: float) -> None:
        waits_s.append(seconds)
        slurm.now_s += seconds

    with pytest.raises(SlurmBusyError, match="Unable to contact"):
        bench.agent.run(lambda: False, sleep)
    assert waits_s == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert slurm.commands == []


def test_a_controller_that_restarts_in_the_middle_of_a_start_leaves_no_job_behind(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(1)

    def fail_release(command: tuple[str, ...]) -> None:
        slurm.down = command[1:2] == ("release",)

    slurm.before = fail_release
    with pytest.raises(SlurmBusyError):
        bench.agent.look()
    slurm.before, slurm.down = lambda command: None, False
    bench.turns(2)
    assert slurm.states() == {job: "RUNNING"}


def test_a_partition_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm)
    agent = SlurmAgent(AgentSettings(partition="gpu", user="me"), bench.journal, slurm, bench.events.append)
    with pytest.raises(InputError, match="partition 'gpu' does not exist; Slurm has gpus"):
        agent.look()


def test_an_answer_that_slurm_wrote_without_its_controller_is_no_empty_queue(tmp_path: Path) -> None:
    """Slurm 22.05 writes an empty list and ends well: jobs would be forgotten."""
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm)
    slurm.submit(1)
    bench.turns(2)

    def unreachable(command) -> str:
        if command[0] == "sinfo":
            return slurm(command)
        return '{"errors": [{"description": "Failed while looking for jobs"}], "jobs": []}'

    agent = SlurmAgent(bench.settings, bench.journal, unreachable, bench.events.append, lambda: slurm.now_s)
    with pytest.raises(SlurmBusyError, match="Failed while looking for jobs"):
        agent.look()
    assert bench.journal.jobs()[1].state == "running"


class Killed(BaseException):
    """The agent ends here and now, as by SIGKILL."""


@pytest.mark.long
@pytest.mark.parametrize("seed", tried(range(2), lambda place: place == 0))
@pytest.mark.parametrize("order", tried(["fifo", "stopping-srtf"], lambda place: place == 1))
def test_a_kill_before_any_command_neither_loses_nor_doubles_a_job(tmp_path: Path, seed: int, order: str) -> None:
    rng = random.Random(seed)
    slurm = FakeSlurm(nodes=3)
    bench = Bench(tmp_path, slurm, {"placement": "first-fit", "order": order})
    ends_s: dict[int, float] = {}
    kills = 0

    def perhaps(command: tuple[str, ...]) -> None:
        if rng.random() < 0.1:
            raise Killed

    slurm.before = perhaps
    for turn in range(250):
        if turn < 30:
            slurm.submit(rng.randint(1, 9), f"ddlsched:iterations={rng.randint(1, 9)},forward_s=1")
        try:
            bench.agent.look()
        except Killed:
            kills += 1
            bench.journal.close()
            bench.again()
        slurm.turn()
        slurm.now_s += 1.0
        for job in slurm.jobs.values():
            if job.state == "RUNNING" and slurm.now_s >= ends_s.setdefault(job.job_id, slurm.now_s + rng.randint(1, 9)):
                slurm.end(job.job_id)
    assert kills > 20
    assert set(slurm.states().values()) == {"COMPLETED"}
    stops = {job.job_id: job.restarts for job in slurm.jobs.values()}
    assert {job.job_id: job.starts for job in slurm.jobs.values()} == {job: 1 + count for job, count in stops.items()}
