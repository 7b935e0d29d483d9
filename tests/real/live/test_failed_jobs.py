"""Jobs that were given up, kills that are nobody's fault, and scripts that change while they run (items 8 and 10)."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run
from test_live_manager import AllToTheFirst, Nodes
from test_meetings import Pipes

from ddlsched.real.live.commits import committed_steps
from ddlsched.real.live.manager import LiveEvent, LiveManager, Retries
from ddlsched.real.live.processes import JobProcesses
from ddlsched.real.live.reports import Ready
from ddlsched.real.live.seat import Assignment
from ddlsched.real.live.store import JobStore

COUNTS = """
from ddlsched.real.live.worker import count
from ddlsched.real.live.seat import Seat
count(Seat.here, lambda ranks: 0.01)
"""


def manager(folder: Path, nodes: int = 1) -> tuple[LiveManager, list[LiveEvent]]:
    events = list[LiveEvent]()
    live = LiveManager(folder, Nodes(nodes), AllToTheFirst(), watch=events.append)
    live._kills = Retries(first_s=0.01)
    return live, events


def states(folder: Path) -> list[str]:
    return [job.state for job in JobStore(folder / "jobs.sqlite").jobs()]


@pytest.mark.long
def test_item_8_kills_from_outside_are_not_the_scripts_fault(tmp_path: Path) -> None:
    live, events = manager(tmp_path)
    live.store.submit("a", program="count", steps=20, max_nodes=1)
    kills = 0
    while kills < 7:
        live.turn()
        if "a" in live.running and all(worker.is_starting for worker in live.running["a"].workers.values()):
            live.running["a"].processes[0].kill()
            live.running["a"].processes[0].wait()
            kills += 1
    live.run(60)
    assert [event.what for event in events].count("a process died") == 7
    assert states(tmp_path) == ["finished"]


@pytest.mark.long
def test_item_8_a_job_that_is_killed_for_an_hour_is_given_up_and_the_event_names_its_step(tmp_path: Path) -> None:
    live, events = manager(tmp_path)
    live._kills = Retries(give_up_s=-1.0)
    live.store.submit("a", program="count", steps=10_000, max_nodes=1)
    while len(committed_steps(tmp_path / "a")) < 5 or not live.running:
        live.turn()
    live.running["a"].processes[0].kill()
    live.run(60)
    failed = events[-1]
    assert (failed.what, failed.step) == ("failed", len(committed_steps(tmp_path / "a")))
    assert failed.step >= 5


@pytest.mark.long
def test_item_8_a_script_that_was_repaired_goes_on_with_retry_failed(tmp_path: Path) -> None:
    script, state = tmp_path / "script.py", tmp_path / "state"
    script.write_text("raise RuntimeError('mine')")
    (tmp_path / "jobs.csv").write_text("job_id,program,steps,max_nodes\na,script.py,5,1\n")
    (tmp_path / "idle.csv").write_text("node,idle_from_s,idle_to_s\n0,0,600\n")
    state.mkdir()
    live, _ = manager(state)
    live.store.submit("a", program=str(script), steps=5, max_nodes=1)
    live.run(60)
    assert states(state) == ["failed"]
    assert "RuntimeError: mine" in (state / "a" / "node0.log").read_text()
    script.write_text(COUNTS)
    command = ["live", tmp_path / "jobs.csv", "--state", state, "--trace", tmp_path / "idle.csv"]
    pytest.importorskip("torch")  # which the table asks of a script
    assert run(*command).exit_code == 1
    done = run(*command, "--retry-failed")
    assert (done.exit_code, "job 'a', which was given up, begins again" in done.stderr) == (0, True), done.stderr
    assert states(state) == ["finished"]


def test_item_8_failed_jobs_and_no_others_wait_again(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    for job in "abc":
        store.submit(job, program="count", steps=5, max_nodes=1)
    store.end("a", "finished")
    store.end("b", "failed")
    assert store.requeue("failed") == ["b"]
    assert states(tmp_path) == ["finished", "queued", "queued"]
    assert store.requeue("failed") == []


@pytest.fixture
def job(tmp_path: Path) -> JobProcesses:
    job = JobProcesses(Assignment("a", "t", "s.py", 5, str(tmp_path), "h:1", 0), launcher=Pipes())
    job.add(["n1", "n2"], 0.0)
    return job


def ready(job: JobProcesses, node: str, script: str) -> bool:
    worker = job.workers[node]
    return job.take_ready(Ready("a", "t", worker.number, worker.generation, "host", 1, script))


def test_item_10_a_process_with_another_script_stands_aside_until_the_group_has_gone(job: JobProcesses) -> None:
    assert [ready(job, node, "aa") for node in ("n1", "n2")] == [False, False]
    job.form(1, 0.0)
    job.add(["n3"], 1.0)
    assert ready(job, "n3", "bb")
    assert not ready(job, "n3", "bb")  # it says so every second; told once
    job.ask_to_leave(1.0)
    assert not job.is_leaving
    job.remove(["n1"])
    job.ask_to_leave(2.0)
    ready(job, "n2", "aa")
    assert job.can_form()
    job.form(2, 2.0)
    assert [worker.node for worker in job.group] == ["n2"]
    job.remove(["n2"])
    assert job.can_form()
    job.form(3, 3.0)
    assert [worker.node for worker in job.group] == ["n3"]


def test_item_10_of_processes_that_start_together_the_oldest_ones_script_counts(job: JobProcesses) -> None:
    assert not ready(job, "n2", "bb")
    assert ready(job, "n1", "aa") in (True, False)
    assert sum(worker.is_aside for worker in job.workers.values()) == 1
    assert job.can_form()


@pytest.mark.long
def test_item_10_a_script_that_changes_while_its_job_runs_is_told_and_not_mixed_in(tmp_path: Path) -> None:
    script, state = tmp_path / "script.py", tmp_path / "state"
    script.write_text(COUNTS)
    live, events = manager(state)
    live.store.submit("a", program=str(script), steps=10_000, max_nodes=2)
    while len(committed_steps(state / "a")) < 3:
        live.turn()
    script.write_text(COUNTS.replace("0.01", "0.02"))
    live.scavenger.there = frozenset({"node0", "node1"})
    while "script changed" not in [event.what for event in events]:
        live.turn()
    told = next(event for event in events if event.what == "script changed")
    assert (told.job, told.nodes, told.step >= 3) == ("a", 1, True)
    step = len(committed_steps(state / "a"))
    while len(committed_steps(state / "a")) < step + 10:
        live.turn()
    assert len(live.running["a"].group) == 1
    assert "regrouped" not in [event.what for event in events]
    live.close()
