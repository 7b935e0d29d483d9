"""The live Job Manager: first come, first served up to a cap, on the nodes that the Scavenger finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.io.files import made_folder
from ddlsched.real.live.commits import DamagedCommitsError, commits_at, note_place
from ddlsched.real.live.failing import FailingNodes
from ddlsched.real.live.nodes import Launcher, LocalLauncher, Scavenger
from ddlsched.real.live.processes import JobProcesses
from ddlsched.real.live.reports import Ready, Report, ReportSocket
from ddlsched.real.live.seat import Assignment
from ddlsched.real.live.store import JobStore, StoredJob
from ddlsched.real.state_folder import Ownership
from ddlsched.workload.profiling import Candidate, ProfiledAllocator

_MOST_S = 60.0


@dataclass
class Retries:
    """The tries of things that have names.

    Parameters
    ----------
    give_up_s
        The pauses after which a thing may go on failing, in all, seconds. Time for which nobody tried, as a job had no
        node, does not count.
    first_s
        The first pause, seconds.
    """

    give_up_s: float = 3600.0
    first_s: float = 1.0
    _pauses_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each thing that failed, all its pauses and the last one."""
    _next_s: dict[str, float] = field(default_factory=dict)

    def failed(self, name: str, now_s: float) -> float | None:
        """Note that a thing failed; return the pause until it may be tried again, seconds, or None to give it up."""
        paused_s, last_s = self._pauses_s.get(name, (0.0, self.first_s / 2))
        if paused_s > self.give_up_s:
            return None
        pause_s = min(2 * last_s, _MOST_S)
        self._pauses_s[name] = paused_s + pause_s, pause_s
        self._next_s[name] = now_s + pause_s
        return pause_s

    def succeeded(self, name: str) -> None:
        """Forget that a thing has failed."""
        self._pauses_s.pop(name, None)
        self._next_s.pop(name, None)

    def take_due(self, now_s: float) -> bool:
        """Let those things be tried again whose pause is over; return whether there are any."""
        due = [name for name, next_s in self._next_s.items() if next_s <= now_s]
        for name in due:
            del self._next_s[name]
        return bool(due)

    def must_wait(self, name: str) -> bool:
        """Return whether a thing failed, and is not to be tried again yet."""
        return name in self._next_s


_POLL_S = 0.02
_MOST_FAILURES = 5


@dataclass(frozen=True)
class LiveEvent:
    """What happened, for the timeline; ``nodes`` and ``loss`` where they belong to it."""

    time_s: float
    what: str
    job: str = ""
    step: int = 0
    nodes: int = 0
    loss: float | None = None


@dataclass
class LiveManager:
    """Runs the jobs of a store to their end.

    Parameters
    ----------
    folder
        Holds ``jobs.sqlite`` and a folder a job with what it has committed.
    scavenger, sharer
        Who finds nodes, and who shares them out; where nodes of the first fail, jobs may wait for them.
    most_jobs
        How many jobs run at a time.
    watch
        Is told of every event.
    hang_s
        Processes of which nothing is heard for so long are ended: no step of their group, or no sign that they have
        started.
    launcher
        Who starts processes on nodes.
    host
        On which address of this machine processes report, by TCP; None for those on this machine, by a Unix socket.
    commits
        A URL that fsspec knows, at which each job commits in a place of its own; None for the job's folder.
    warn
        Is told of commits that cannot be read, and of what comes of it.
    checkpoint
        The policy that says when jobs commit, by its name; by default after every step.
    fewest
        On how many nodes a job trains at least, by its name; by default on one.

    Raises
    ------
    InputError
        Another manager runs the jobs of this folder, it cannot be used, or its jobs have committed elsewhere.
    """

    folder: Path
    scavenger: Scavenger
    sharer: ProfiledAllocator
    most_jobs: int = 10
    watch: Callable[[LiveEvent], None] = lambda _: None
    hang_s: float = 300.0
    launcher: Launcher = field(default_factory=LocalLauncher)
    host: str | None = None
    commits: str | None = None
    warn: Callable[[str], None] = lambda _: None
    checkpoint: str = ""
    fewest: Mapping[str, int] = field(default_factory=dict)
    running: dict[str, JobProcesses] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.hang_s > 0:
            raise InputError(f"live: hang_s is {self.hang_s}; expected seconds above 0")
        self.folder = made_folder(self.folder, "jobs' state").resolve()
        self._ownership = Ownership(self.folder)
        try:
            note_place(self.folder, self.commits)
        except InputError:
            self._ownership.close()
            raise
        self.store = JobStore(self.folder / "jobs.sqlite")
        self.store.requeue("running")
        self._socket = ReportSocket(self.store.token_of, self.host)
        self._begun_s = time.monotonic()
        self._idle: frozenset[str] = frozenset()
        self._failures: dict[str, int] = {}
        self._reported: dict[str, float] = {}
        self._commit_s: dict[str, float] = {}
        self._known_steps: dict[str, int] = {}
        self._reads, self._kills = Retries(), Retries()
        self._ask = True
        self._failing = self.scavenger if isinstance(self.scavenger, FailingNodes) else None
        if self._failing is not None:
            self._failing.running = self.running

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun_s

    def run(self, until_s: float = float("inf")) -> None:
        """Go on until no job is left, or until a time.

        Raises
        ------
        InputError
            What a job has committed cannot be read for an hour, or the state of jobs not be kept.
        """
        try:
            while self.now_s < until_s and self.turn():
                pass
        finally:
            self.close()

    def close(self) -> None:
        """End every process; jobs that are not done stay in the queue."""
        try:
            for job_id in list(self.running):
                self._stop(job_id)
        finally:
            self._socket.close()
            self.store.close()
            self._ownership.close()

    def turn(self) -> bool:
        """Look once at everything; return whether jobs are left."""
        for said in self._socket.receive(_POLL_S):
            self._take(said)
        self._look_at_nodes()
        self._look_at_processes()
        wake_s = self.sharer.advisor.wake_s()
        is_due = [retries.take_due(self.now_s) for retries in (self._reads, self._kills)]
        if not self._ask and not any(is_due) and (wake_s is None or self.now_s < wake_s):
            return True
        waiting = [job for job in self.store.jobs() if job.state in ("queued", "running")]
        self._ask = False
        self._share_out([job for job in waiting if not self._must_wait(job.job_id)][: self.most_jobs])
        return bool(waiting)

    def _must_wait(self, job_id: str) -> bool:
        return self._reads.must_wait(job_id) or self._kills.must_wait(job_id)

    def _take(self, said: Report | Ready) -> None:
        job = self.running.get(said.job)
        if job is not None and isinstance(said, Ready):
            if job.take_ready(said):
                self.watch(LiveEvent(self.now_s, "script changed", said.job, self._step_for_event(said.job), 1))
        elif job is not None and isinstance(said, Report):
            self._take_report(said, job)

    def _take_report(self, report: Report, job: JobProcesses) -> None:
        """Pass a report on, unless it cannot be true; the advisor waits for the first one at a new size."""
        if not job.is_news(report):
            return
        monitor, job_id = self.sharer.monitor, report.job
        monitor.progress(job_id, time_s=report.time_s, step=report.step, samples=report.samples, nodes=report.nodes)
        job.progress_s, job.last_step = self.now_s, report.step
        self._commit_s[job_id] = job.commit_s = report.commit_s
        self._known_steps[job_id] = report.step
        if job_id not in self._reported and report.nodes == len(job.nodes):
            self._reported[job_id] = report.time_s
            self._ask = True
        self._failures.pop(job_id, None)
        self._kills.succeeded(job_id)
        self.watch(LiveEvent(self.now_s, "step", job_id, report.step, report.nodes, report.loss))

    def _look_at_nodes(self) -> None:
        """Notice nodes that came or went; what runs on one that went is gone at that moment."""
        there = self.scavenger.idle(self.now_s)
        if there == self._idle:
            return
        self._idle, self._ask = there, True
        self.watch(LiveEvent(self.now_s, "nodes", nodes=len(there)))
        for job_id, job in list(self.running.items()):
            lost = [node for node in job.nodes if node not in there]
            if lost:
                self._end(job_id, lost, "lost a node")

    def _look_at_processes(self) -> None:
        for job_id, job in list(self.running.items()):
            ended = job.take_ended()
            steps = self._committed_steps(job_id) if job.group and job.group[0] in ended else 0
            if steps is None:
                continue
            if steps >= job.assignment.steps:
                self._finish(job_id)
            elif ended and all(self.launcher.was_taken(worker.process.returncode) for worker in ended):
                self._end(job_id, [], "lost a node")
                self._ask = True
            elif ended:
                killed = all(self.launcher.was_killed(worker.process.returncode) for worker in ended)
                self._fail(job_id, [], "a process died", killed=killed)
            elif hanging := job.hanging(self.now_s, self.hang_s):
                self._fail(job_id, [worker.node for worker in hanging], "a process hangs")
            elif job.has_broken():
                self._fail(job_id, [], "a group broke")
            if job_id in self.running:
                self._regroup(job_id, job)

    def _regroup(self, job_id: str, job: JobProcesses) -> None:
        """Take a step towards a group of all processes, and begin it if it can begin."""
        job.ask_to_leave(self.now_s)
        if job.can_form():
            what = "regrouped" if job.has_survivors() else "started"
            self._interrupted(job_id)
            job.form(self.store.regroup(job_id), self.now_s)
            self.watch(LiveEvent(self.now_s, what, job_id, self._step_for_event(job_id), len(job.group)))

    def _interrupted(self, job_id: str) -> None:
        self._reported.pop(job_id, None)
        self.sharer.monitor.interrupted(job_id)

    def _fail(self, job_id: str, nodes: list[str], why: str, *, killed: bool = False) -> None:
        """End processes that failed; give the job up if that has happened too often without a step in between.

        Kills from outside are not the script's fault. A job that they leave no process is started again after a pause.
        """
        self._end(job_id, nodes, why)
        self._ask = True
        if killed and (job_id in self.running or self._kills.failed(job_id, self.now_s) is not None):
            return
        self._failures[job_id] = self._failures.get(job_id, 0) + 1
        if killed or self._failures[job_id] >= _MOST_FAILURES:
            self._give_up(job_id)

    def _give_up(self, job_id: str) -> None:
        self._stop(job_id)
        self.store.end(job_id, "failed")
        self._ask = True
        self.watch(LiveEvent(self.now_s, "failed", job_id, self._step_for_event(job_id)))

    def _end(self, job_id: str, nodes: list[str], why: str) -> None:
        """End the processes on some nodes; without any left the job waits."""
        job = self.running[job_id]
        job.remove(nodes)
        self._interrupted(job_id)
        self.watch(LiveEvent(self.now_s, why, job_id, self._step_for_event(job_id), len(nodes)))
        if not job.workers:
            del self.running[job_id]
            self.store.end(job_id, "queued")

    def _committed_steps(self, job_id: str) -> int | None:
        """Return how many steps a job has committed; None if that cannot be read now: it stops, and is tried again.

        One whose commits are damaged is given up, as they will not be read later either.

        Raises
        ------
        InputError
            It cannot be read for too long.
        """
        try:
            steps = len(self._committed(job_id))
        except DamagedCommitsError as error:
            self._reads.succeeded(job_id)
            self._give_up(job_id)
            self.warn(f"job {job_id!r} is given up: {error}")
            return None
        except InputError as error:
            pause_s = self._reads.failed(job_id, self.now_s)
            if pause_s is None:
                raise
            self._stop(job_id)
            self._ask = True  # others may have its nodes
            self.watch(LiveEvent(self.now_s, "commits unreadable", job_id))
            self.warn(f"job {job_id!r}: {error}; tried again in {pause_s:g} s")
            return None
        self._reads.succeeded(job_id)
        return steps

    def _committed(self, job_id: str) -> list[float]:
        return commits_at(self._place_of(job_id) or self.folder / job_id).losses()

    def _step_for_event(self, job_id: str) -> int:
        """Return how many steps are committed; where that cannot be read, how many were last known to be."""
        with suppress(InputError):
            self._known_steps[job_id] = len(self._committed(job_id))
        return self._known_steps.get(job_id, 0)

    def _place_of(self, job_id: str) -> str:
        """Return the URL at which a job commits, or nothing if it does so in its folder."""
        return "" if self.commits is None else f"{self.commits.rstrip('/')}/{job_id}"

    def _finish(self, job_id: str) -> None:
        job = self.running.pop(job_id, None)
        if job is not None:
            job.remove(job.nodes)
        self.store.end(job_id, "finished")
        self.sharer.monitor.forget(job_id)
        self._ask = True
        self.watch(LiveEvent(self.now_s, "finished", job_id))

    def _share_out(self, jobs: list[StoredJob]) -> None:
        """Ask for sizes and carry out what differs: first jobs that shrink or stop, then those that grow."""
        candidates = [self._candidate(job) for job in jobs]
        counts = self.sharer.counts(candidates, len(self._idle) + sum(map(self._awaited, jobs)), self.now_s)
        changed = [(job, n) for job, c, n in zip(jobs, candidates, counts, strict=True) if c.nodes != n]
        for job, count in changed:
            running = self.running.get(job.job_id)
            if running is not None and count < len(running.nodes):
                self._end(job.job_id, list(running.nodes[count:]), "shrunk" if count else "stopped")
        for job, count in changed:
            taken = {node for each in self.running.values() for node in each.nodes}
            has = len(self.running[job.job_id].nodes) if job.job_id in self.running else 0
            free = self._idle - taken
            in_order = sorted(free) if self._failing is None else self._failing.order(job.job_id, free)
            more = in_order[: max(count - has - self._awaited(job), 0)]
            if more:
                self._add(job, more)

    def _awaited(self, job: StoredJob) -> int:
        return 0 if self._failing is None else self._failing.awaited(job.job_id)

    def _candidate(self, job: StoredJob) -> Candidate:
        running = self.running.get(job.job_id)
        return Candidate(
            job_id=job.job_id,
            nodes=len(running.nodes) if running else 0,
            min_nodes=self.fewest.get(job.job_id, 1),
            max_nodes=job.max_nodes,
            measured=frozenset(self.sharer.monitor.rates(job.job_id)),
            settled=job.job_id in self._reported,
        )

    def _add(self, job: StoredJob, nodes: list[str]) -> None:
        """Start processes of a job, which join its group once they are ready."""
        folder = self.folder / job.job_id
        if job.job_id not in self.running:
            steps = self._committed_steps(job.job_id)
            if steps is None:
                return
            if steps >= job.steps:  # Stopped after its last step, before it could say so.
                self._finish(job.job_id)
                return
            self.running[job.job_id] = self._new(job, folder)
        self._reported.pop(job.job_id, None)
        try:
            folder.mkdir(exist_ok=True)
            self.running[job.job_id].add(nodes, self.now_s)
        except (OSError, InputError) as error:  # a link in the place of the folder or of a log, say
            self._give_up(job.job_id)
            self.warn(f"job {job.job_id!r} is given up: {error}")
            return
        self.watch(LiveEvent(self.now_s, "joining", job.job_id, self._step_for_event(job.job_id), len(nodes)))

    def _new(self, job: StoredJob, folder: Path) -> JobProcesses:
        assigned = Assignment(
            job=job.job_id,
            token=self.store.start(job.job_id),
            program=job.program,
            steps=job.steps,
            folder=str(folder.resolve()),
            socket=self._socket.path,
            parent=self.launcher.parent,
            commits=self._place_of(job.job_id),
        )
        fewest = self.fewest.get(job.job_id, 1)
        return JobProcesses(
            assigned,
            launcher=self.launcher,
            fewest=fewest,
            checkpoint=self.checkpoint,
            commit_s=self._commit_s.get(job.job_id, 0.0),
            failing=self._failing,
        )

    def _stop(self, job_id: str) -> None:
        if job_id in self.running:
            self._end(job_id, list(self.running[job_id].nodes), "stopped")
