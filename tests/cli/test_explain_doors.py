"""What ``explain`` and the timeline say of jobs that are stopped and moved, of groups, and of chosen paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run

HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"
POLICIES = '''
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Away:
    """First fit; the job moves to the last servers at 2.5 s."""

    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None

    def wake_s(self, now_s):
        return 2.5 if now_s < 2.5 else None

    def moves(self, running, cluster):
        last = list(range(cluster.num_gpus - 2, cluster.num_gpus))
        return [(job, last) for job in running if cluster.now_s == 2.5]


@dataclass(frozen=True, kw_only=True)
class Numbered:
    """The path of this number."""

    number: int = 0

    def path(self, flow, network):
        return min(self.number, len(flow.paths) - 1)
'''


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(POLICIES)
    rows = "d,0,1,5,0.5,0.5,0,1000\na,0.1,2,20,0.5,0.5,0,1000\nb,1.2,3,4,0.5,0.5,0,1000\n"
    Path("jobs.csv").write_text(HEADER + rows)


def explained(job: str, *flags: object, jobs: str = "jobs.csv") -> tuple[list[str], dict[str, Any], list[Any]]:
    """Return the lines and the JSON of ``explain``, and the events of the timeline."""
    done = run("simulate", jobs, "--contention", "max-min", *flags, "--run-out", "r.parquet", "--timeline", "t.json")
    assert done.exit_code == 0, done.stderr
    text, as_json = run("explain", "r.parquet", job), run("explain", "r.parquet", job, "--json")
    assert (text.exit_code, as_json.exit_code) == (0, 0), text.stderr
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    return [" ".join(line.split()) for line in text.stdout.splitlines()], json.loads(as_json.stdout), events


FOUR_SERVERS = ("--servers", 4, "--gpus-per-server", 1, "--exclusive")


@pytest.mark.long
def test_a_job_that_the_order_stopped() -> None:
    price = ("--order", "stopping-srtf", "--restart-s", 2, "--state-mb", 500)
    lines, told, events = explained("a", *FOUR_SERVERS, *price)
    # Stopped at 1.2 s after an iteration; "b" and "d" end at 5.2 and 5 s; "a" goes on where "d" was: one worker's state
    # crosses two cards of 1.25e9 B/s in 0.4 s, then it restarts.
    assert "Stopped by a policy 1 time: 0.100 s on its GPUs were for nothing" in lines
    assert "On GPUs 2 times:" in lines
    assert "0.100 to 1.200 s on GPUs 1, 2, stopped by the order" in lines
    assert "5.200 to 26.600 s on GPUs 0, 1, 0.500 GB of state over the network" in lines
    assert told["phases_s"]["restart"] == 2.0
    assert told["transfers"] == [{"task": "state", "kind": "state", "tuples": 1, "seconds": 0.4}]
    assert [stay["ended_by"] for stay in told["stays"]] == ["stopped by the order", ""]
    marks = {event["name"]: event["ts"] for event in events if event["ph"] == "i"}
    assert marks["job a stopped by the order"] == 1.2e6
    links = {event["tid"] for event in events if event["name"].startswith("job a state")}
    assert len(links) == 2
    assert any(event["name"] == "job a forward, iteration 1, cut by the order" for event in events)


@pytest.mark.long
def test_a_runs_table_says_how_often_a_policy_stopped_jobs_and_what_state_that_sent() -> None:
    price = ("--order", "stopping-srtf", "--restart-s", 2, "--state-mb", 500)
    done = run("simulate", "jobs.csv", "--contention", "max-min", *FOUR_SERVERS, *price)
    rows = [" ".join(line.replace("│", " ").split()) for line in done.stdout.splitlines()]
    assert "stops by a policy 1" in rows
    assert "state over the network 0.500 GB" in rows


@pytest.mark.long
def test_a_job_that_the_placement_moved() -> None:
    Path("jobs.csv").write_text(HEADER + "a,0,2,5,0.5,0.5,0,1000\n")
    lines, told, events = explained("a", *FOUR_SERVERS, "--placement", "mine.py:Away", "--restart-s", 1)
    # Its third iteration ends at 3 s; 1000 MB of each worker go from server to server in 0.8 s.
    assert "Moved 1 time: 0.000 s on its GPUs were for nothing" in lines
    assert "0.000 to 3.000 s on GPUs 0, 1, moved" in lines
    assert "3.000 to 6.800 s on GPUs 2, 3, 2.000 GB of state over the network" in lines
    assert told["stays"][1]["state_bytes"] == 2_000_000_000
    assert [event["ts"] for event in events if event["name"] == "job a moved"] == [3e6]


@pytest.mark.parametrize("number", [0, 1])
def test_a_path_that_a_policy_chose(number: int) -> None:
    Path("jobs.csv").write_text(HEADER + "a,0,2,5,0.5,0.5,1e9,1000\n")
    network = ("--servers", 2, "--gpus-per-server", 1, "--topology", "leaf-spine:servers_per_leaf=1,spines=2")
    lines, told, events = explained("a", *network, "--path", f"mine.py:Numbered:number={number}")
    there, back = f"leaf 0 to spine {number}, spine {number} to leaf 1", f"leaf 1 to spine {number}, spine {number} to "
    assert any(line.startswith(f"Paths between switches: {there}, {back}") for line in lines)
    assert len(told["stays"][0]["paths"]) == 4
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {f"leaf 0 to spine {number}", f"spine {number} to leaf 1"} <= rows
    assert not any(f"spine {1 - number}" in row for row in rows)


def test_collectives_over_groups() -> None:
    tasks = [
        {"name": "compute", "kind": "compute", "duration_s": 1},
        {"name": "gather", "kind": "all-gather", "message_bytes": 5e9, "group": "pairs", "after": ["compute"]},
        {"name": "reduce", "kind": "all-reduce", "message_bytes": 1e9, "after": ["gather"]},
    ]
    job = {"job_id": "g", "arrival_s": 0, "gpus": 4, "iterations": 3, "gpu_memory_mb": 1, "tasks": tasks}
    Path("jobs.json").write_text(json.dumps({"jobs": [job | {"groups": {"pairs": [[0, 1], [2, 3]]}}]}))
    lines, told, events = explained("g", *FOUR_SERVERS, jobs="jobs.json")
    # All-gathers over two servers: half of 5e9 B at 1.25e9 B/s; the all-reduce 2 x 3/4 x 1e9 B.
    assert told["transfers"] == [
        {"task": "gather", "kind": "all-gather", "tuples": 2, "seconds": pytest.approx(3 * 2.0)},
        {"task": "reduce", "kind": "all-reduce", "tuples": 1, "seconds": pytest.approx(3 * 1.2)},
    ]
    assert lines[-2:] == ["6.000 s gather (all-gather, 2 tuples)", "3.600 s reduce (all-reduce)"]
    named = {event["name"]: event["args"] for event in events if event.get("cat") == "transfer" and "dur" in event}
    assert (named["job g gather 1, iteration 0"]["kind"], named["job g gather 1, iteration 0"]["workers"]) == (
        "all-gather",
        [2, 3],
    )
    assert named["job g reduce, iteration 2"]["workers"] == [0, 1, 2, 3]


def test_a_job_on_one_star_with_one_all_reduce_is_told_as_before() -> None:
    Path("jobs.csv").write_text(HEADER + "a,0,2,5,0.5,0.5,1e9,1000\n")
    lines, told, _ = explained("a", *FOUR_SERVERS)
    assert not {"On GPUs", "Paths between switches", "On the network"} & {line.partition(":")[0] for line in lines}
    assert (len(told["stays"]), len(told["transfers"])) == (1, 1)
