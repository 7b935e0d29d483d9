"""Minutes of a live manager in a clock of its own: drawn nodes, deaths, hangs and commits, and what comes of them."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kept_numbers import assert_kept, digest

from ddlsched.errors import InputError
from ddlsched.real.live import manager as managing
from ddlsched.real.live.commits import DamagedCommitsError
from ddlsched.real.live.manager import LiveManager, Retries
from ddlsched.real.live.reports import Ready, Report
from ddlsched.workload.profiling import Candidate, JobMonitor

KILLED, TAKEN, FAILED = -9, 75, 1


class Process:
    """A process that a test moves: what was written to it, and how it ended."""

    def __init__(self, node: str) -> None:
        self.node, self.stdin, self.returncode, self.pid = node, io.BytesIO(), None, 0
        self.read, self.assignment, self.orders = 0, {}, {}
        self.leaves = False

    def poll(self) -> int | None:
        return self.returncode

    def hear(self) -> None:
        """Take in what was written since."""
        lines = self.stdin.getvalue().splitlines() if not self.stdin.closed else []
        for line in lines[self.read :]:
            if line == b"leave":
                self.leaves = True
            elif not self.assignment:
                self.assignment = json.loads(line)
            else:
                self.orders, self.leaves = json.loads(line), False
        self.read = len(lines)


class Monitor(JobMonitor):
    """Notes what it is told."""

    def __init__(self, told: list[str]) -> None:
        super().__init__(warm_up_steps=1, least_steps=2)
        self.told = told

    def progress(self, job_id: str, **what: Any) -> None:
        self.told.append(f"progress {job_id} {what}")
        super().progress(job_id, **what)

    def interrupted(self, job_id: str) -> None:
        self.told.append(f"interrupted {job_id}")
        super().interrupted(job_id)

    def forget(self, job_id: str) -> None:
        self.told.append(f"forgotten {job_id}")
        super().forget(job_id)


class World:
    """Nodes, processes and commits, which go on by chance; and a clock, a socket, a launcher and a sharer."""

    parent = 5
    path = "the socket"

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance, self.clock_s, self.nodes = random.Random(seed), 100.0, {f"n{n}" for n in range(5)}
        self.processes: list[Process] = []
        self.saying: list[Ready | Report] = []
        self.told: list[str] = []
        self.losses: dict[str, list[float]] = {}
        self.unreadable: dict[str, Exception] = {}
        self.monitor, self.advisor = Monitor(self.told), self
        self.answer = "each"
        monkeypatch.setattr(managing, "time", SimpleNamespace(monotonic=lambda: self.clock_s))
        monkeypatch.setattr(managing, "ReportSocket", lambda token_of, host: self)
        monkeypatch.setattr(managing, "commits_at", self.commits_at)

    def commits_at(self, place: Any) -> Any:
        name = str(place).rpartition("/")[2]
        if name in self.unreadable:
            raise self.unreadable[name]
        return SimpleNamespace(losses=lambda: self.losses.get(name, []))

    def idle(self, now_s: float) -> frozenset[str]:
        assert now_s == self.clock_s - 100.0
        return frozenset(self.nodes)

    def receive(self, timeout_s: float) -> list[Ready | Report]:
        assert timeout_s == 0.02
        said, self.saying = self.saying, []
        return said

    def close(self) -> None:
        self.told.append("closed")

    def start(self, node: str, log: Any) -> Process:
        log.write(b"started\n")
        self.processes.append(Process(node))
        return self.processes[-1]

    def end(self, process: Process) -> None:
        process.returncode = KILLED if process.returncode is None else process.returncode

    def was_taken(self, code: int) -> bool:
        return code == TAKEN

    def was_killed(self, code: int) -> bool:
        return code == KILLED

    def wake_s(self) -> float | None:
        return None if self.answer == "each" else 30.0

    def counts(self, jobs: list[Candidate], num_nodes: int, now_s: float) -> list[int]:
        """Share the nodes out: one each in turn, in either order, or none."""
        asked = [(job.job_id, job.nodes, job.min_nodes, job.max_nodes, sorted(job.measured)) for job in jobs]
        self.told.append(f"{now_s:g} {num_nodes} {asked} {[job.settled for job in jobs]}")
        counts, left = [0] * len(jobs), num_nodes
        order = [*range(len(jobs))][:: -1 if self.answer == "last" else 1]
        for _ in range(5):
            for place in order if self.answer != "none" else ():
                most = jobs[place].max_nodes - counts[place]
                more = min(jobs[place].min_nodes if not counts[place] else 1, most)
                if 0 < more <= left:
                    counts[place], left = counts[place] + more, left - more
        return counts

    def turn(self) -> None:
        """Let some time pass."""
        self.clock_s += self.chance.choice((0.25, 0.5, 2.0))
        if self.chance.random() < 0.06:
            self.nodes ^= {f"n{self.chance.randrange(5)}"}
        if self.chance.random() < 0.05:
            self.answer = self.chance.choice(("each", "last", "none", "each"))
        if self.chance.random() < 0.04:
            name = self.chance.choice("abc")
            self.unreadable[name] = (DamagedCommitsError if self.chance.random() < 0.1 else InputError)(f"{name}: bad")
        elif self.unreadable and self.chance.random() < 0.2:
            self.unreadable.popitem()
        for process in self.processes:
            if process.returncode is None:
                process.hear()
                self.move(process)

    def move(self, process: Process) -> None:
        """Let a process say or do something."""
        assigned, orders, drawn = process.assignment, process.orders, self.chance.random()
        if drawn < 0.03:
            process.returncode = self.chance.choice((KILLED, TAKEN, FAILED))
        elif drawn > 0.6 and (not orders or process.leaves):
            script = "" if self.chance.random() < 0.9 else "ab"
            number, generation = assigned["process"], orders.get("generation", 0)
            said = Ready(assigned["job"], assigned["token"], number, generation, f"h{process.node}", number, script)
            self.saying.append(said)
        elif orders and drawn > 0.97:
            self.saying.append(Ready(assigned["job"], "", assigned["process"], orders["generation"], "h", 1))
        elif orders.get("rank") == 0 and drawn > 0.2:
            losses = self.losses.setdefault(assigned["job"], [])
            losses.append(1 / (1 + len(losses)))
            step, ranks = len(losses), orders["ranks"]
            off = self.chance.choice((0, 0, 0, 0, 0, 1))
            given = (step, 64 * ranks, ranks + off, losses[-1], self.clock_s, 0.5 * ranks)
            self.saying.append(Report(assigned["job"], "", orders["generation"] - (off and step % 2), *given))


def lived(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, commits: str | None) -> dict[str, str]:
    world = World(seed, monkeypatch)
    events: list[Any] = []
    given = {"watch": events.append, "hang_s": 8.0, "launcher": world, "warn": world.told.append, "commits": commits}
    more = {"checkpoint": "young", "fewest": {"b": 2}}
    live = LiveManager(folder, world, world, 3, **given, **more)  # type: ignore[arg-type]
    live.store._db.execute("PRAGMA synchronous=OFF")
    live._reads, live._kills = Retries(give_up_s=1e6), Retries(give_up_s=9.0)
    for place, name in enumerate("abcd"):
        live.store.submit(name, program=f"p{name}", steps=15 + 10 * place, max_nodes=4 - place)
    turns = 0
    while live.turn() and turns < 130:
        world.turn()
        turns += 1
    running = {name: job.nodes for name, job in live.running.items()}
    live.close()
    states = {job.job_id: (job.state, job.generation) for job in live_states(folder)}
    for process in world.processes:
        process.assignment |= {"token": "", "folder": "", "commits": process.assignment["commits"][-9:]}
    orders = [f"{process.node} {process.assignment} {process.orders}" for process in world.processes]
    said = [" ".join(map(str, vars(event).values())) for event in events]
    counted = sorted(Counter(event.what for event in events).items())
    return {
        f"{seed} events": f"{digest(said)} " + ", ".join(f"{count} {what}" for what, count in counted),
        f"{seed} processes": f"{len(orders)} {digest(orders)} {running}",
        f"{seed} asked": f"{turns} {len(world.told)} {digest(world.told)}",
        f"{seed} states": str(states),
    }


def live_states(folder: Path) -> Any:
    store = managing.JobStore(folder / "jobs.sqlite")
    found = store.jobs()
    store.close()
    return found


@pytest.mark.long
def test_minutes_of_managers_are_what_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, str] = {}
    for seed in range(3):
        kept |= lived(seed, tmp_path / str(seed), monkeypatch, f"local://{tmp_path}/there/" if seed % 2 else None)
    assert_kept("live-managers", kept)


def test_a_manager_without_nodes_and_jobs_is_done_and_with_a_job_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(0, monkeypatch)
    world.nodes = set()
    live = LiveManager(tmp_path, world, world, launcher=world)  # type: ignore[arg-type]
    assert not live.turn()
    live.store.submit("a", program="p", steps=1, max_nodes=1)
    live._ask = True
    assert live.turn()
    live.close()


def test_a_job_whose_folder_is_none_is_given_up_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, events = World(0, monkeypatch), list[Any]()
    live = LiveManager(tmp_path, world, world, launcher=world, watch=events.append, warn=world.told.append)  # type: ignore[arg-type]
    (tmp_path / "a").write_text("in its place")
    live.store.submit("a", program="p", steps=1, max_nodes=1)
    while live.turn():
        assert world.clock_s < 200
        world.clock_s += 1
    [warned] = [line for line in world.told if "given up" in line]
    assert warned.startswith("job 'a' is given up: ")
    assert events[-1].what == "failed"
    assert (live.running, [job.state for job in live.store.jobs()]) == ({}, ["failed"])
    live.close()


def test_a_manager_that_runs_has_the_file_that_says_so_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(0, monkeypatch)
    LiveManager(tmp_path, world, world, launcher=world).close()  # type: ignore[arg-type]
    assert (tmp_path / "manager.lock").stat().st_mode & 0o777 == 0o600
