"""What an agent says and asks at each look, to the word and the second, before a Slurm in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm
from test_slurm_agent import Bench, starts_of

from ddlsched.errors import InputError
from ddlsched.real.slurm.commands import SlurmBusyError, SlurmRefusalError

DENIED = "scontrol {}: Access/permission denied for job {}"
RESUMES = "ddlsched:iterations=1000,forward_s=1,resumes=true"


def told(bench: Bench) -> list[tuple[str, int, str]]:
    """Return what was said since the last question."""
    said = [(event.what, event.job_id, event.detail) for event in bench.events]
    bench.events.clear()
    return said


def requeue(slurm: FakeSlurm, job: int) -> None:
    """Let Slurm take a job off its nodes, as one of them died."""
    slurm.jobs[job].state, slurm.jobs[job].given, slurm.jobs[job].restarts = "PENDING", {}, 1


def test_once_slurm_answers_patience_begins_anew_and_looks_are_at_whole_steps(tmp_path: Path) -> None:
    slurm, waits_s = FakeSlurm(), list[float]()
    slurm.now_s = 100.25
    bench = Bench(tmp_path, slurm, every_s=2.0, give_up_s=6.0)
    downs = iter([True, False, True, True, True])

    def sleep(seconds: float) -> None:
        waits_s.append(seconds)
        slurm.now_s += seconds
        slurm.down = next(downs)

    with pytest.raises(SlurmBusyError):
        bench.agent.run(lambda: False, sleep)
    assert waits_s == [1.75, 4.0, 2.0, 4.0, 8.0]
    assert slurm.now_s == 120.0  # it was reached at 106; at 112, six seconds later, it was not yet given up
    unable = "sinfo: Unable to contact slurm controller (connect failure); asked again in {} s"
    assert [(event.time_s, event.job_id, event.detail) for event in bench.events] == [
        (102.0, 0, unable.format(4)),
        (112.0, 0, unable.format(8)),
    ]


def test_an_agent_looks_until_it_is_told_to_end(tmp_path: Path) -> None:
    slurm, asked = FakeSlurm(), list[str]()
    slurm.before = lambda command: asked.append(command[0])
    answers = iter([False, False, True])
    Bench(tmp_path, slurm).agent.run(lambda: next(answers), lambda _: None)
    assert asked == ["sinfo", "squeue"] * 2


def with_nodes(slurm: FakeSlurm, *nodes: tuple[str, str, str]) -> Any:
    """Return a Slurm that says other nodes: name, GPUs, partition."""
    rows = [{"name": n, "gres": g, "partitions": [p], "state": "idle", "state_flags": []} for n, g, p in nodes]

    def answers(command: Sequence[str]) -> str:
        return json.dumps({"errors": [], "nodes": rows}) if command[0] == "sinfo" else slurm(command)

    return answers


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "does not exist; Slurm has none"),
        ([("n1", "gpu:4", "z"), ("n2", "gpu:4", "a"), ("n3", "", "a")], "does not exist; Slurm has a, z"),
        ([("n1", "", "gpus"), ("n2", "gpu:4", "all")], "has no nodes with GPUs; Slurm has all, gpus"),
    ],
)
def test_a_partition_without_gpus_is_named_with_all_that_there_are(tmp_path: Path, nodes: Any, said: str) -> None:
    bench = Bench(tmp_path, FakeSlurm())
    bench.agent._run = with_nodes(bench.slurm, *nodes)
    with pytest.raises(InputError) as refused:
        bench.agent.look()
    assert str(refused.value) == f"partition 'gpus' {said}"


def test_only_nodes_of_the_partition_that_have_gpus_are_chosen(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeSlurm(nodes=3))
    bench.agent._run = with_nodes(bench.slurm, ("n1", "gpu:4", "all"), ("n2", "", "gpus"), ("n3", "gpu:4", "gpus"))
    job, too_large = bench.slurm.submit(1), bench.slurm.submit(5)
    bench.agent.look()
    assert bench.slurm.jobs[job].wanted == ("n3",)
    refused = "it asks for 5 GPUs of 0 MB; there are never so many; it stays held"
    assert told(bench) == [("refuse", too_large, refused), ("start", job, "1 on n3")]


def test_a_job_that_was_too_large_starts_once_there_is_a_node_more(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(8)
    bench.turns(2)
    assert starts_of(slurm) == []
    slurm.nodes["n2"] = "idle"
    bench.turns()
    assert starts_of(slurm) == [job]


class Asked:
    """Starts nothing, notes when it was asked about which job, and wants to be asked at 103 s."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def place(self, job: Any, cluster: Any) -> None:
        self.asked.append((cluster.now_s, job.number))

    def wake_s(self, now_s: float) -> float | None:
        return 103.0 if now_s < 103.0 else None


def test_policies_are_asked_again_when_something_changes_or_they_want_to_be(tmp_path: Path) -> None:
    slurm, policy = FakeSlurm(nodes=2), Asked()
    bench = Bench(tmp_path, slurm, {"placement": policy, "order": "fifo"})
    slurm.submit(1)
    bench.turns(6)
    assert policy.asked == [(100.0, 1), (103.0, 1)]
    policy.asked.clear()
    slurm.nodes["n2"] = "drained"
    bench.turns(2)
    other = slurm.submit(1, user="somebody", state="RUNNING", held=False, given={"n1": 1})
    bench.turns(2)
    slurm.submit(2)
    bench.turns(2)
    slurm.end(other)
    bench.turns(2)
    assert policy.asked == [(106.0, 1), (108.0, 1), (110.0, 1), (110.0, 2), (112.0, 1), (112.0, 2)]


def test_tasks_that_cannot_be_taken_apart_are_told_of_once_of_no_job(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.submit_array(range(2), 1)

    def refuse(command: tuple[str, ...]) -> None:
        if command[1] == "uhold":
            raise SlurmRefusalError(f"{command[2]}: denied")

    slurm.before = refuse
    bench = Bench(tmp_path, slurm)
    bench.turns(2)
    assert told(bench) == [("fail", 0, "1_0: denied"), ("fail", 0, "1_1: denied")]
    slurm.before = lambda _: None
    bench.settings = replace(bench.settings, dry_run=True)
    bench.again()
    bench.turns(2)
    would = "task 1_{}: would be held for itself, and then wait for the policies"
    assert told(bench) == [("take apart", 0, would.format(0)), ("take apart", 0, would.format(1))]


def test_without_a_user_everybodys_jobs_are_the_agents(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm)
    jobs = [slurm.submit(1, user="you"), slurm.submit(1)]
    bench.settings = replace(bench.settings, user=None)
    bench.again()
    bench.turns()
    assert starts_of(slurm) == jobs


def test_seats_are_counted_beside_those_of_other_jobs(tmp_path: Path) -> None:
    """The first has GPUs 0 and 1 of n1; the second was promised all of n2, and Slurm gave it two of each."""
    slurm = FakeSlurm(nodes=2)
    bench = Bench(tmp_path, slurm)
    slurm.submit(2)
    bench.turns(2)
    stray = slurm.submit(4, on_each=4)
    bench.turns(start=False)
    assert bench.journal.jobs()[stray].seats == {"n2": [0, 1, 2, 3]}
    slurm.jobs[stray].state, slurm.jobs[stray].given = "RUNNING", {"n1": 2, "n2": 2}
    told(bench)
    bench.agent.look()
    assert told(bench) == [("take back", stray, "started on n1,n2, not on n2")]
    known = bench.journal.jobs()[stray]
    assert (known.state, known.seats, known.failed_starts) == ("stopping", {"n1": [2, 3], "n2": [0, 1]}, 1)
    assert slurm.commands[-1] == ("scontrol", "requeuehold", str(stray))


@pytest.mark.parametrize(("comment", "done"), [(RESUMES, 20), (RESUMES.replace("true", "false"), 0)])
def test_what_slurm_requeued_is_held_again_and_goes_on_if_it_resumes(tmp_path: Path, comment: str, done: int) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(4, comment)
    bench.turns(21)  # it runs from 101 s on
    requeue(slurm, job)
    told(bench)
    bench.agent.look()
    assert told(bench) == [("take back", job, "was requeued by Slurm (None)"), ("start", job, "4 on n1")]
    known = bench.journal.jobs()[job]
    assert (known.iterations_done, known.state, known.since_s) == (done, "starting", 121.0)
    del slurm.jobs[job]
    bench.agent.look()
    assert told(bench) == [("end", job, "is gone")]
    assert bench.agent._board_jobs == bench.journal.jobs() == {}


def test_what_cannot_be_held_again_stays_as_it_is_known(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(4)
    bench.turns(2)
    requeue(slurm, job)
    slurm.forbidden = {job}
    told(bench)
    bench.turns(2, start=False)
    assert told(bench) == [("fail", job, DENIED.format("uhold", job))]
    assert bench.journal.jobs()[job].state == "running"
    slurm.forbidden = set()
    bench.turns()
    assert bench.journal.jobs()[job].state == "starting"


def test_a_description_that_was_spoilt_holds_until_the_agent_ends(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(4)
    bench.turns(2)
    slurm.jobs[job].comment = "ddlsched:iterations=none,forward_s=1"
    requeue(slurm, job)
    told(bench)
    bench.turns(3)
    bad = "comment 'ddlsched:iterations=none,forward_s=1': ddlsched, parameter iterations: 'none' is not a whole number"
    assert told(bench) == [
        ("take back", job, "was requeued by Slurm (None)"),
        ("refuse", job, f"{bad}; its description of before holds"),
        ("start", job, "4 on n1"),
    ]
    bench.again()
    bench.turns()
    assert told(bench) == [("end", job, f"its description is none: {bad}")]


def test_each_start_in_vain_counts_once(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=1)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(4)
    slurm.forbidden = {job}
    counts = []
    for _ in range(4):
        bench.turns()
        counts.append(bench.journal.jobs()[job].failed_starts)
    assert counts == [1, 2, 3, 3]
    assert bench.journal.jobs()[job].state == "refused"
    denied = DENIED.format("update", job)
    assert bench.journal.decisions() == [(100.0 + look, "start", job, "n1", denied) for look in range(3)]
    refused = "could not be started 3 times; it stays held"
    assert told(bench) == [("fail", job, denied), ("refuse", job, refused)]


@pytest.mark.long
def test_an_agents_time_never_goes_back(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=2)
    bench = Bench(tmp_path, slurm)
    slurm.submit(4)
    bench.agent.look()
    slurm.now_s = 40.0
    slurm.submit(4)
    bench.agent.look()
    slurm.now_s = 100.5
    slurm.submit(4)
    slurm.end(1)
    bench.agent.look()
    assert [(event.time_s, event.what, event.job_id) for event in bench.events] == [
        (100.0, "start", 1),
        (100.0, "start", 2),
        (100.5, "end", 1),
        (100.5, "start", 3),
    ]
    assert [known.seen_s for known in bench.journal.jobs().values()] == [100.0, 100.5]
