"""What agents do before a Slurm in memory to which much happens, and how they read its answers: as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_slurm import FakeSlurm
from kept_numbers import answered, assert_kept, digest

from ddlsched.errors import DdlschedError
from ddlsched.real.slurm.agent import AgentEvent, AgentSettings, SlurmAgent
from ddlsched.real.slurm.board import Demand
from ddlsched.real.slurm.commands import jobs_of_squeue, nodes_of_sinfo
from ddlsched.real.slurm.following import (
    blocked,
    followed,
    gpus_of_others,
    limits_of,
    seats_as_given,
    to_take_apart,
    within_limits,
)
from ddlsched.real.slurm.journal import AgentJournal, KnownJob
from ddlsched.real.slurm.local_cluster import gres_conf, slurm_conf
from ddlsched.real.slurm.settings import JobFacts, facts_of_comment, read_facts

POLICIES = (
    {"placement": "first-fit", "order": "fifo"},
    {"placement": "lwf", "order": "stopping-srtf", "gpu_memory_mb": 9000.0},
    {"placement": "easy-backfill", "order": "fifo", "seed": 4},
    {"placement": "lwf", "order": "las", "topology": "leaf-spine:servers_per_leaf=2"},
)


def comment(rng: np.random.Generator) -> str:
    """What a user says of a job; some say nothing, or what is none."""
    if rng.random() < 0.15:
        return str(rng.choice(["", "mine", "ddlsched:iterations=x", "ddlsched:iterations=5"]))
    facts = {"iterations": int(rng.integers(1, 12)), "forward_s": float(rng.choice([0.5, 1.0]))}
    further = {"message_bytes": 1e8, "gpu_memory_mb": 8000.0, "resumes": "true", "backward_s": 0.25}
    facts |= {name: value for name, value in further.items() if rng.random() < 0.3}  # type: ignore[misc]
    return "ddlsched:" + ",".join(f"{name}={value}" for name, value in facts.items())


def happens(slurm: FakeSlurm, rng: np.random.Generator, turn: int) -> None:
    """Let users and nodes do something."""
    for job in list(slurm.jobs.values()):
        if job.state == "RUNNING" and rng.random() < 0.15:
            slurm.end(job.job_id, str(rng.choice(["COMPLETED", "FAILED", "CANCELLED"])))
        elif job.state == "PENDING" and rng.random() < 0.01:
            job.state = "CANCELLED"
    if turn > 25:
        return
    way, gpus = int(rng.integers(10)), int(rng.integers(1, 9))
    if way == 0:
        slurm.submit_array(range(int(rng.integers(2, 5))), 1 + gpus % 3, limit=int(rng.integers(3)))
    elif way == 1:
        other = slurm.submit(gpus % 3 + 1, user="you", held=False, wanted=(f"n{rng.integers(1, 4)}",))
        assert slurm.jobs[other].user == "you"
    elif way == 2:
        slurm.submit(gpus, comment(rng), kind=str(rng.choice(["a", "b"])))
    elif way == 3:
        slurm.submit(4, comment(rng), on_each=int(rng.choice([1, 2, 4])))
    elif way == 4:
        odd = (
            {"dependency": "afterok:1"},
            {"own_nodes": "n2"},
            {"partition": "cpus"},
            {"name": "table"},
            {"held": False},
        )
        slurm.submit(gpus, comment(rng), **odd[int(rng.integers(5))])
    else:
        slurm.submit(gpus, comment(rng), limit_minutes=int(rng.integers(1, 4)))
    if rng.random() < 0.1:
        slurm.nodes[f"n{rng.integers(1, 4)}"] = str(rng.choice(["idle", "down", "drain"]))
    if turn == 25:
        slurm.nodes = dict.fromkeys(slurm.nodes, "idle")
    slurm.forbidden = {int(rng.integers(1, 1 + len(slurm.jobs)))} if rng.random() < 0.1 else set()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_agents_do_what_they_did(seed: int, tmp_path: Path) -> None:
    rng, slurm, events = np.random.default_rng(seed), FakeSlurm(3, 4, ("a", "a", "b")), list[AgentEvent]()
    given: dict[str, Any] = {
        "facts": {"table": JobFacts(iterations=4, forward_s=1.0)},
        "start_s": 3.0,
        "give_up_s": 9.0,
    }
    user = None if seed % 4 == 3 else "me"
    settings = AgentSettings(partition="gpus", user=user, policies=POLICIES[seed % 4], dry_run=seed == 6, **given)

    def agent() -> SlurmAgent:
        return SlurmAgent(settings, journal, slurm, events.append, lambda: slurm.now_s)

    journal = AgentJournal(tmp_path / "journal")
    own = agent()
    for turn in range(45):
        happens(slurm, rng, turn)
        own.look()
        if rng.random() < 0.8:
            slurm.turn()
        slurm.now_s += 1.0
        if turn % 17 == 16:
            journal.close()
            journal = AgentJournal(tmp_path / "journal")
            own = agent()
    jobs = list(journal.jobs().values())
    parts = (slurm.commands, events, journal.decisions(), jobs, sorted(slurm.states().items()))
    counts = [len(part) for part in parts]
    assert_kept(f"agents-{seed}", {"did": f"{counts} {' '.join(digest(map(str, part)) for part in parts)}"})


ROW: dict[str, Any] = {
    "job_id": 7, "name": "train", "user_name": "me", "comment": "c", "partition": "gpus", "job_state": "PENDING",
    "state_reason": "JobHeldUser", "priority": 0, "array_job_id": 0, "array_task_id": None, "array_task_string": "",
    "array_max_tasks": 0, "tres_per_job": "gres:gpu:4", "tres_per_node": "", "node_count": 1, "gres_detail": [],
    "job_resources": {}, "submit_time": 1000, "restart_cnt": 0, "dependency": "", "required_nodes": "",
    "time_limit": None,
}  # fmt: skip
SET = {"set": True, "infinite": False, "number": 5}
OTHER_ROWS: dict[str, tuple[Any, ...]] = {
    "job_state": ("RUNNING", ["RUNNING"], ["RUNNING", "COMPLETING"], ["PENDING", "x"], "COMPLETING", "CANCELLED",
        "STOPPED"),
    "priority": (1, SET, SET | {"number": 0}, None, SET | {"set": False}), "state_reason": ("JobHeldAdmin", "None"),
    "comment": (None, {"job": "d"}, {"user": "d"}, ""), "time_limit": (0, 3, SET, SET | {"infinite": True}),
    "tres_per_job": (None, "gres/gpu=3", "gres:gpu:a100:2", "gres:gpu:2080ti", "gres/gpu:2080ti:6", "cpu:3",
        "gres:gpu:1,x:2"),
    "tres_per_node": ("gres:gpu:2", "gres/gpu:v100=2", "gres:gpu:0"), "node_count": (0, 2, None, SET),
    "restart_cnt": (None, 2),
    "excluded_nodes": ("n1", None), "features": ("h100", None), "max_nodes": (SET, SET | {"number": 0}, 2, None),
    "array_job_id": (3, SET), "required_nodes": ("n1", None), "dependency": ("afterok:1", None), "submit_time": (SET,
        None),
}  # fmt: skip
ARRAYS = ("0-3", "1,5-9:2%4", "3", "", "7-", "0-8:0", "2,...", "5-3", "0-1,4%1")
NODE = {"name": "n1", "gres": "gpu:4", "partitions": ["gpus", "all"], "state": "idle", "state_flags": []}
OTHER_NODES: dict[str, tuple[Any, ...]] = {
    "gres": ("gpu:a:4", "gpu:a:4,gpu:b:2", "gpu:a:2,gpu:a:2", "", None, "gpu:a:4(S:0-1)", "lic:3", "gpu"),
    "state": ("mixed", "allocated", "down", ["IDLE"], ["IDLE", "DRAIN"], ["MIXED", "PLANNED"], "completing"),
    "state_flags": (None, ["DRAIN"], ["CLOUD", "PLANNED"], ["completing"], ["NOT_RESPONDING"]),
}  # fmt: skip


def read(of: Callable[[str], list[Any]], key: str, row: dict[str, Any], errors: Any = ()) -> str:
    try:
        (made,) = of(json.dumps({"errors": list(errors), key: [row]}))
    except DdlschedError as error:
        return f"{type(error).__name__} {error}"
    more = [made.holds, made.place, made.name_in_commands] if hasattr(made, "holds") else []
    return f"{made} {more}"


def test_answers_are_read_as_they_were() -> None:
    found = {}
    for key, of, usual, others in (
        ("jobs", jobs_of_squeue, ROW, OTHER_ROWS),
        ("nodes", nodes_of_sinfo, NODE, OTHER_NODES),
    ):
        found[key] = digest([read(of, key, usual)])
        for name, given in others.items():
            found[f"{key} {name}"] = digest([read(of, key, usual | {name: value}) for value in given])
            found[f"{key} without {name}"] = digest([read(of, key, {k: v for k, v in usual.items() if k != name})])
        found[f"{key} busy"] = read(of, key, usual, [{"description": "d", "error": "e"}]) + read(
            of, key, usual, [{"error": "e"}]
        )
    array = ROW | {"array_job_id": 7}
    found["arrays"] = digest([read(jobs_of_squeue, "jobs", array | {"array_task_string": text}) for text in ARRAYS])
    tasks = (0, 3, SET, 0xFFFFFFFE, 0xFFFFFFFD, None)
    found["tasks"] = digest([read(jobs_of_squeue, "jobs", array | {"array_task_id": task}) for task in tasks])
    on = {"job_resources": {"allocated_nodes": [{"nodename": "n1"}, {"nodename": "n2"}]}, "job_state": "RUNNING"}
    for detail in (["gpu:2(IDX:0-1)", "gpu:a:1(IDX:0)"], ["gpu:2", "lic:1"], None, ["gpu:3"]):
        found[f"on {detail}"] = digest([read(jobs_of_squeue, "jobs", ROW | on | {"gres_detail": detail})])
    assert_kept("slurm-answers", found)


def known(number: int, **more: Any) -> KnownJob:
    usual: dict[str, Any] = {"state": "queued", "seen_s": 1.0, "since_s": 5.0, "seats": {}, "iterations_done": 0}
    return KnownJob(**{"number": number, "job_id": 7 + number, "failed_starts": 0} | usual | more)


def test_what_follows_from_a_look_is_what_it_was() -> None:
    seats = {"n1": [0, 1], "n2": [3]}
    found: dict[str, str] = {}
    for state in ("queued", "starting", "running", "stopping", "refused"):
        rows = (
            {"job_state": "PENDING"},
            {"job_state": "PENDING", "priority": 9},
            {"job_state": "RUNNING", "priority": 9},
        )
        rows = (
            *rows,
            {"job_state": "COMPLETED"},
            {"job_state": "COMPLETING"},
            {"job_state": "RUNNING", "restart_cnt": 3},
        )
        (jobs) = [jobs_of_squeue(json.dumps({"jobs": [ROW | row]}))[0] for row in rows]
        one = known(0, state=state, seats=seats if state != "queued" else {}, failed_starts=2)
        found[state] = digest([followed(one, job, now_s, 3.0) for job in jobs for now_s in (6.0, 8.0, 8.5)])
    sizes = {"n1": 4, "n2": 4, "n3": 2}
    for given in ({"n1": 2, "n2": 1}, {"n1": 3}, {"n3": 2, "n1": 1}, {"n2": 3}, {"n9": 1}):
        for taken in ({}, {"n1": [0], "n2": [3, 2]}):
            told = answered(seats_as_given, seats, given, sizes, taken)
            found[f"seats {given} {taken}"] = told
    running = ROW | {
        "job_state": "RUNNING",
        "job_resources": {"allocated_nodes": [{"nodename": "n1"}]},
        "gres_detail": ["gpu:2"],
    }
    array = ROW | {"array_job_id": 5, "array_task_string": "0-3%2", "array_max_tasks": 2, "job_id": 5}
    rows = [running, running | {"job_id": 8}, array, array | {"job_id": 6, "array_task_id": 4, "array_task_string": ""}]
    looked = jobs_of_squeue(json.dumps({"jobs": rows}))
    found["apart"] = f"{to_take_apart(looked)} {limits_of(looked, {5: 1, 6: 3})} {limits_of(looked[:2], {5: 1})}"
    several = [
        known(0, state="starting", seats=seats),
        known(1, state="stopping", seats=seats),
        known(2, state="refused"),
    ]
    for gpus in (1, 3, 4, 5):
        found[f"blocked {gpus}"] = str([one.number for one in blocked(several, looked, sizes | {"n1": gpus})])
    found["others"] = str(
        [gpus_of_others(looked, {one.job_id: one for one in some}) for some in ((), several, several[2:])]
    )
    for limits in ({}, {5: 1}, {5: 2}, {5: 0}):
        allowed = within_limits(looked[2:], looked[3:], limits)  # type: ignore[arg-type]
        found[f"limits {limits}"] = digest([list(allowed)])
    found["demand"] = str([Demand(), Demand(2, "a")])
    assert_kept("slurm-following", found)


def test_facts_and_files_are_what_they_were(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for number, text in enumerate((
        "ddlsched:iterations=5,forward_s=1", "ddlsched:iterations=0,forward_s=1", "ddlsched:iterations=5",
        "ddlsched:iterations=5,forward_s=1e-9", "ddlsched:iterations=5,forward_s=9e-10", "ddlsched:forward_s=1", "mine",
        "ddlsched:iterations=5,backward_s=2,message_bytes=1e8,gpu_memory_mb=5,resumes=true",
        "ddlsched:iterations=5,forward_s=-1",
    )):  # fmt: skip
        found[f"comment {number}"] = digest([answered(facts_of_comment, text)])
    facts = facts_of_comment("ddlsched:iterations=5,backward_s=0.125,message_bytes=123456789.5,resumes=true")
    found["comment"] = facts.comment()
    table = tmp_path / "facts.csv"
    for number, rows in enumerate(("a,5,1\nb,6,\n", "a,5,1\na,6,1\n", ",5,1\n", "a,0,1\n", "a,5,1\nb,6,2\n")):
        table.write_text("name,iterations,forward_s\n" + rows)
        found[f"table {number}"] = digest([answered(read_facts, table).replace(str(tmp_path), "")])
    for kinds in ((), ("a", "a", "b"), ("a", "b", "a")):
        conf = slurm_conf(Path("/f"), "me", "host", range(100, 104), 2, {"MpiDefault": "x", "Further": "1"}, kinds)
        found[f"conf {kinds}"] = (
            f"{len(conf.splitlines())} {digest([conf])} {digest([gres_conf(Path('/f'), 3, 2, kinds)])}"
        )
    for given in (
        {"every_s": 0.0},
        {"every_s": 1e7},
        {"every_s": 1.1e7},
        {"start_s": 0.0},
        {"give_up_s": 0.0},
        {"start_s": 2.0},
    ):
        found[f"settings {given}"] = digest([answered(AgentSettings, partition="p", user=None, **given)])  # type: ignore[arg-type]
    assert_kept("slurm-facts", found)
