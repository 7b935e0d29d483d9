"""Reading what Slurm and users write, and what follows from it for a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddlsched.errors import InputError
from ddlsched.real.slurm.commands import (
    SlurmBusyError,
    SlurmJob,
    SlurmRefusalError,
    jobs_of_squeue,
    nodes_of_sinfo,
    runner,
)
from ddlsched.real.slurm.following import Next, followed, seats_as_given
from ddlsched.real.slurm.journal import AgentJournal, KnownJob
from ddlsched.real.slurm.settings import JobFacts, facts_of_comment, read_facts

JOB_22 = {
    "job_id": 7,
    "name": "train",
    "user_name": "ann",
    "comment": "ddlsched:iterations=5,forward_s=1",
    "partition": "gpus",
    "job_state": "RUNNING",
    "state_reason": "None",
    "priority": 4294901759,
    "array_job_id": 0,
    "array_task_string": "",
    "tres_per_job": "gres:gpu:a100:5",
    "gres_detail": ["gpu:a100:4(IDX:0-3)", "gpu:1(IDX:0)"],
    "job_resources": {"allocated_nodes": [{"nodename": "n2"}, {"nodename": "n4"}]},
    "submit_time": 1000,
    "restart_cnt": 0,
    "dependency": "",
    "time_limit": None,
}
KNOWN = KnownJob(
    number=1, job_id=7, state="queued", seen_s=0.0, since_s=0.0, seats={}, iterations_done=0, failed_starts=0
)
SEATS = {"n2": [0, 1, 2, 3], "n4": [0]}


def squeue(**values: object) -> SlurmJob:
    return jobs_of_squeue(json.dumps({"errors": [], "jobs": [JOB_22 | values]}))[0]


def test_a_running_job_says_which_gpus_it_has() -> None:
    job = squeue()
    assert (job.num_gpus, dict(job.gpus_on), job.holds) == (5, {"n2": 4, "n4": 1}, True)
    assert job.time_limit_s == 365 * 86_400  # without a limit
    digits = squeue(gres_detail=["gpu:2080ti:4(IDX:0-3)", "gpu:3090:1(IDX:0)"])
    assert dict(digits.gpus_on) == {"n2": 4, "n4": 1}


def test_later_forms_of_fields_are_read() -> None:
    job = squeue(
        job_state=["PENDING"],
        priority={"set": True, "infinite": False, "number": 0},
        time_limit={"set": True, "infinite": False, "number": 3},
        state_reason="JobHeldUser",
        tres_per_job="gres/gpu:a100=5",
        job_resources=None,
        gres_detail=[],
    )
    assert (job.state, job.is_held, job.time_limit_s, job.num_gpus) == ("PENDING", True, 180.0, 5)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": [{}]}', '{"jobs": [3]}', "[" * 100_000])
def test_what_is_no_answer_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(InputError, match=r"squeue --json: .*expected the form that Slurm 22\.05 writes"):
        jobs_of_squeue(text)


@pytest.mark.parametrize(
    ("state", "flags", "usable"),
    [
        ("idle", [], True),
        ("mixed", ["PLANNED"], True),
        ("idle", ["cloud", "COMPLETING", "DYNAMIC_NORM", "PLANNED"], True),
        ("idle", ["CLOUD", "COMPLETING", "DYNAMIC_NORM", "PLANNED", "DRAIN"], False),
        ("idle", ["DRAIN"], False),
        ("idle", ["RESERVED"], False),
        ("allocated", ["NOT_RESPONDING"], False),
        ("down", [], False),
        ("unknown", [], False),
        (["IDLE", "MAINTENANCE"], [], False),
        (["MIXED"], [], True),
    ],
)
def test_only_nodes_where_jobs_may_start_are_usable(state: object, flags: list[str], usable: bool) -> None:
    node = {"name": "n1", "gres": "gpu:a100:4(S:0-1)", "partitions": ["gpus"], "state": state, "state_flags": flags}
    [read] = nodes_of_sinfo(json.dumps({"errors": [], "nodes": [node]}))
    assert (read.num_gpus, read.gpu_kind, read.is_usable) == (4, "a100", usable)


@pytest.mark.parametrize(
    ("values", "gpus", "on_each", "kind"),
    [
        ({"tres_per_job": "gres:gpu:5"}, 5, 0, ""),
        ({"tres_per_job": "gres:gpu:a100:5"}, 5, 0, "a100"),
        ({"tres_per_job": "gres/gpu:a100=5"}, 5, 0, "a100"),
        ({"tres_per_job": "gres:gpu:2080ti:4"}, 4, 0, "2080ti"),
        ({"tres_per_job": "gres/gpu:3090=4"}, 4, 0, "3090"),
        ({"tres_per_job": "gres/gpu=4,gres/disk=7"}, 4, 0, ""),
        ({"tres_per_job": "", "tres_per_node": "gres:gpu:1080:2,gres:disk:7", "node_count": 3}, 6, 2, "1080"),
        ({"tres_per_job": "", "tres_per_node": "gres:gpu:2", "node_count": 3}, 6, 2, ""),
        ({"tres_per_job": "", "tres_per_node": "gres:gpu:a100:2", "node_count": 1}, 2, 2, "a100"),
        ({"tres_per_job": "", "tres_per_node": "gres:disk:7"}, None, 0, ""),
        ({"tres_per_job": ""}, None, 0, ""),
    ],
)
def test_gpus_are_read_in_each_form_that_sbatch_takes(
    values: dict[str, object], gpus: int | None, on_each: int, kind: str
) -> None:
    job = squeue(**values)
    assert (job.num_gpus, job.gpus_per_node, job.gpu_kind) == (gpus, on_each, kind)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("3", (3,)), ("0-2,7%2", (0, 1, 2, 7)), ("1-9:4", (1, 5, 9)), ("0-1,5,...", (0, 1, 5)), ("", ())],
)
def test_tasks_that_wait_together_are_told_apart(text: str, tasks: tuple[int, ...]) -> None:
    job = squeue(array_job_id=7, array_task_id=4294967294, array_task_string=text, array_max_tasks=2)
    assert (job.array_id, job.array_task, job.array_tasks, job.array_limit) == (7, None, tasks, 2)


def test_commands_call_a_task_by_array_and_task() -> None:
    task = squeue(job_id=9, array_job_id=7, array_task_id=0, array_task_string="")
    assert (task.name_in_commands, squeue().name_in_commands) == ("7_0", "7")


def test_nodes_with_several_kinds_of_gpus_are_of_none() -> None:
    node = {"name": "n1", "gres": "gpu:a100:2,gpu:v100:1,disk:3", "partitions": [], "state": "idle"}
    [read] = nodes_of_sinfo(json.dumps({"errors": [], "nodes": [node]}))
    assert (read.num_gpus, read.gpu_kind) == (3, "")


@pytest.mark.parametrize("kind", ["2080ti", "3090", "1080"])
def test_kinds_of_gpus_on_a_node_may_begin_with_digits(kind: str) -> None:
    node = {"name": "n1", "gres": f"gpu:{kind}:4(S:0-1),disk:3", "partitions": [], "state": "idle"}
    [read] = nodes_of_sinfo(json.dumps({"errors": [], "nodes": [node]}))
    assert (read.num_gpus, read.gpu_kind) == (4, kind)


def test_a_comment_and_its_facts_are_two_forms_of_one_thing() -> None:
    facts = JobFacts(iterations=1000, forward_s=0.1, backward_s=0.2, message_bytes=1e8, gpu_memory_mb=4e3, resumes=True)
    assert facts_of_comment(facts.comment()) == facts


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("iterations=5", "expected ddlsched:iterations=1000"),
        ("ddlsched:iterations=5,iterations=6", "given twice; expected once"),
        ("ddlsched:iterations=5.5,forward_s=1", "'5.5' is not a whole number"),
        ("ddlsched:iterations=1_000,forward_s=1", "'1_000' is not a whole number"),
        ("ddlsched:iterations=5,forward_s=-1", "forward_s is -1"),
        ("ddlsched:iterations=5,forward_s=nan", "forward_s is nan"),
        ("ddlsched:iterations=5,forward_s=1,resumes=2", "expected true or false"),
        ("ddlsched:iterations=5,forward_s=1,message_bytes=1e99", "message_bytes is 1e\\+99"),
        ("ddlsched:forward_s=1", "iterations is missing; expected ddlsched:iterations=VALUE"),
    ],
)
def test_a_comment_that_is_none_is_refused_with_its_text(comment: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        facts_of_comment(comment)
    assert comment[:20] in str(refused.value)


@pytest.mark.parametrize(
    "longest", ["iterations={}", "iterations=5,{}=1", "iterations=5,{}", "iterations=5,resumes={}"]
)
def test_what_is_said_of_a_long_comment_is_one_short_line(longest: str) -> None:
    with pytest.raises(InputError) as refused:
        facts_of_comment("ddlsched:" + longest.format("x" * 100_000))
    assert len(str(refused.value)) < 400


def test_facts_come_from_a_table_by_name(tmp_path: Path) -> None:
    table = tmp_path / "facts.csv"
    table.write_text("name,iterations,forward_s,resumes\ntrain,5,1,true\nother,7,2,\n")
    assert read_facts(table) == {
        "train": JobFacts(iterations=5, forward_s=1.0, resumes=True),
        "other": JobFacts(iterations=7, forward_s=2.0),
    }
    table.write_text("name,iterations,forward_s\ntrain,5,1\ntrain,5,1\n")
    with pytest.raises(InputError, match=r"row 2 \(line 3\): name is 'train'; expected a job's name, once"):
        read_facts(table)
    table.write_text('name,iterations,forward_s\ntrain,5,"1,backward_s=3"\n')
    with pytest.raises(InputError, match=r"row 1 \(line 2\): .* forward_s: '1,backward_s=3' is not a number"):
        read_facts(table)


STARTING = replace(KNOWN, state="starting", since_s=10.0, seats=SEATS)
RUNNING = replace(KNOWN, state="running", since_s=11.0, seats=SEATS)
HELD = {"job_state": "PENDING", "priority": 0, "state_reason": "JobHeldUser"}
PENDING = {"job_state": "PENDING", "state_reason": "Resources"}


@pytest.mark.parametrize(
    ("known", "values", "what", "state"),
    [
        (STARTING, {}, Next.KEEP, "running"),
        (STARTING, PENDING, Next.KEEP, "starting"),
        (replace(STARTING, since_s=-60.0), PENDING, Next.TAKE_BACK, "queued"),
        (STARTING, HELD, Next.KEEP, "queued"),
        (STARTING, PENDING | {"state_reason": "JobHeldAdmin"}, Next.FORGET, None),
        (RUNNING, {}, Next.KEEP, "running"),
        (RUNNING, {"job_state": "COMPLETING"}, Next.KEEP, "running"),
        (RUNNING, HELD, Next.KEEP, "queued"),
        (RUNNING, PENDING, Next.TAKE_BACK, "queued"),
        (RUNNING, {"job_state": "NODE_FAIL"}, Next.FORGET, None),
        (replace(RUNNING, state="stopping"), {}, Next.KEEP, "stopping"),
        (replace(RUNNING, state="stopping"), HELD, Next.KEEP, "queued"),
        (KNOWN, PENDING, Next.FORGET, None),
        (KNOWN, HELD, Next.KEEP, "queued"),
        (KNOWN, {}, Next.KEEP, "running"),
        (replace(KNOWN, state="refused"), HELD, Next.KEEP, "refused"),
    ],
)
def test_what_becomes_of_a_known_job(known: KnownJob, values: dict[str, object], what: Next, state: str | None) -> None:
    done, after = followed(known, squeue(**values), now_s=20.0, start_s=60.0)
    assert done is what
    assert state is None or after.state == state
    assert (after.seats == {}) == (after.state in ("queued", "refused") or known is KNOWN)


def test_seats_follow_what_slurm_gave() -> None:
    sizes = {"n1": 4, "n2": 4}
    assert seats_as_given({"n1": [3]}, {"n1": 1}, sizes, {}) == {"n1": [3]}
    assert seats_as_given({"n1": [3], "n2": [0, 1]}, {"n1": 2, "n2": 1}, sizes, {"n1": [0]}) == {
        "n1": [1, 3],
        "n2": [0],
    }


def test_a_journal_keeps_jobs_and_an_id_that_comes_again_is_another_job(tmp_path: Path) -> None:
    journal = AgentJournal(tmp_path / "agent.sqlite")
    first = journal.add(7, 1.0)
    journal.keep(replace(first, state="running", seats=SEATS, since_s=2.0))
    journal.close()
    journal = AgentJournal(tmp_path / "agent.sqlite")
    known = journal.jobs()[7]
    assert (known.state, known.seats, known.number) == ("running", SEATS, first.number)
    journal.keep(replace(known, state="ended", seats={}))
    assert journal.jobs() == {}
    assert journal.add(7, 3.0).number > first.number


def test_a_journal_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    path.write_text("not a database, and long enough to be read as one" * 100)
    with pytest.raises(InputError, match=r"agent\.sqlite: cannot be used"):
        AgentJournal(path)


def test_commands_that_fail_are_told_apart(tmp_path: Path) -> None:
    run = runner()
    with pytest.raises(InputError, match="no-such-program: no such program"):
        run(["no-such-program"])
    with pytest.raises(SlurmRefusalError, match="Access/permission denied"):
        run(["sh", "-c", "echo 'Access/permission denied for job 7' >&2; exit 1"])
    with pytest.raises(SlurmBusyError, match="Unable to contact slurm controller"):
        run(["sh", "-c", "echo 'error: Unable to contact slurm controller (connect failure)' >&2; exit 1"])
