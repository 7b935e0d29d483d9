"""Starts a partition's held jobs, and stops running ones, as the simulator's policies say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ddlsched.errors import InputError
from ddlsched.real.slurm import commands, following
from ddlsched.real.slurm.board import Board, BoardJob, Holder
from ddlsched.real.slurm.journal import AgentJournal, KnownJob, Seats
from ddlsched.real.slurm.settings import PREFIX, AgentEvent, AgentSettings, JobFacts, facts_of_comment
from ddlsched.workload.job import Job

_MOST_WAIT_S = 60.0
_FAILED_STARTS = 3
_AGAIN_S = 2
"""Until a job that was requeued may start: in the second of its end a node takes it for the one that was ended."""
_HOLDING = ("starting", "running", "stopping")
"""States in which a known job has its seats."""


class SlurmAgent:
    """Looks at Slurm, asks policies, and carries their decisions out with ``scontrol``.

    Its state is in the journal and in Slurm alone: one that is killed at any moment and started again goes on.

    Parameters
    ----------
    settings
        What it does.
    journal
        Its memory.
    run
        Runs Slurm's commands.
    tell
        Told of everything that it does.
    now_s
        The time, seconds; only this clock is used, so Slurm's may differ.
    """

    def __init__(
        self,
        settings: AgentSettings,
        journal: AgentJournal,
        run: commands.Run,
        tell: Callable[[AgentEvent], None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._journal, self._run, self._tell = settings, journal, run, tell
        self._clock, self._last_s = now_s, 0.0
        self._known = journal.jobs()
        self._board_jobs: dict[int, BoardJob] = {}
        self._slurm_jobs: dict[int, commands.SlurmJob] = {}
        self._array_limits = journal.array_limits()
        self._refused_tasks: set[str] = set()
        self._board: Board | None = None
        self._sizes: dict[str, int] = {}
        """GPUs of each node."""
        self._said: set[tuple[str, int, str]] = set()
        self._last_asked: object = None
        self._failed = False
        self._wake_s: float | None = None

    def run(self, until: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> None:
        """Look at Slurm again and again until told to end.

        Raises
        ------
        SlurmBusyError
            Slurm is out of reach for longer than ``give_up_s``.
        InputError, PluginError
            The partition does not exist, Slurm's answers cannot be read, or a policy fails.
        """
        reached_s, retry_s = self._now_s(), self._settings.every_s
        while not until():
            try:
                self.look()
                reached_s, retry_s = self._now_s(), self._settings.every_s
                sleep(self._settings.every_s - reached_s % self._settings.every_s)
            except commands.SlurmBusyError as error:
                if self._now_s() - reached_s > self._settings.give_up_s:
                    raise
                retry_s = min(2 * retry_s, _MOST_WAIT_S)
                self._say("fail", 0, f"{error}; asked again in {retry_s:g} s")
                sleep(retry_s)

    def look(self) -> None:
        """Look at Slurm once, decide, and carry it out.

        Raises
        ------
        SlurmBusyError
            Slurm does not answer.
        InputError, PluginError
            As :meth:`run`.
        """
        nodes = self._nodes()
        jobs = self._jobs()
        now_s = self._now_s()
        if self._board is None or not self._board.has_nodes(nodes):
            self._board = Board(self._settings.policies, nodes)
        self._board.nodes, self._sizes = nodes, {node.name: node.num_gpus for node in nodes}
        self._take_in(jobs, now_s)
        holders = self._holders()
        queued = self._queued()
        others = following.gpus_of_others(jobs, self._known)
        asked = [job.number for job in queued], [(holder.job.number, holder.seats) for holder in holders], others, nodes
        if asked == self._last_asked and (self._wake_s is None or now_s < self._wake_s):
            return
        self._last_asked = None  # until all of it is done
        self._failed = False
        decision = self._board.decide(holders, queued, others, now_s)
        self._wake_s = self._board.wake_s(now_s)
        for job in decision.stops:
            self._stop(job, now_s)
        for job, seats in decision.starts:
            self._start(job, seats, now_s)
        if not self._failed:
            self._last_asked = asked

    # --- what Slurm says

    def _nodes(self) -> list[commands.SlurmNode]:
        partition = self._settings.partition
        nodes = commands.nodes_of_sinfo(self._run(["sinfo", "--json"]))
        own = [node for node in nodes if partition in node.partitions and node.num_gpus]
        if not own:
            names = sorted({name for node in nodes for name in node.partitions})
            what = "has no nodes with GPUs" if partition in names else "does not exist"
            raise InputError(f"partition {partition!r} {what}; Slurm has {', '.join(names) or 'none'}")
        return own

    def _jobs(self) -> list[commands.SlurmJob]:
        """Return all jobs, each task of an array for itself; those that wait together are taken apart first."""
        jobs = commands.jobs_of_squeue(self._run(["squeue", "--json"]))
        self._note_limits(following.limits_of(jobs, self._array_limits))
        tasks = following.to_take_apart([job for job in jobs if self._is_own(job) and self._is_described(job)])
        if self._settings.dry_run:
            for task in tasks:
                self._say("take apart", 0, f"task {task}: would be held for itself, and then wait for the policies")
        elif tasks:
            self._take_apart(tasks)
            jobs = commands.jobs_of_squeue(self._run(["squeue", "--json"]))
        return [job for job in jobs if not job.array_tasks]

    def _note_limits(self, limits: dict[int, int]) -> None:
        """Keep arrays' limits also for the next agent: once all tasks are apart, Slurm may say none of them."""
        if limits != self._array_limits:
            self._journal.keep_array_limits(limits)
            self._array_limits = limits

    def _take_apart(self, tasks: Sequence[str]) -> None:
        """Hold tasks each for itself, so many at a look; those that Slurm has refused come last."""
        for task in sorted(tasks, key=self._refused_tasks.__contains__)[: following.MOST_A_LOOK]:
            try:
                self._run(["scontrol", "uhold", task])
            except commands.SlurmRefusalError as error:
                self._refused_tasks.add(task)
                self._say("fail", 0, str(error))

    def _queued(self) -> list[BoardJob]:
        """Return the jobs that wait and may start, as far as the limits of their arrays go."""
        queued, active = (
            [self._slurm_jobs[known.job_id] for known in self._known.values() if known.state in states]
            for states in (("queued",), _HOLDING)
        )
        return [self._board_jobs[job_id] for job_id in following.within_limits(queued, active, self._array_limits)]

    def _take_in(self, jobs: Sequence[commands.SlurmJob], now_s: float) -> None:
        """Bring what is known of jobs up to what Slurm says of them."""
        self._slurm_jobs = {job.job_id: job for job in jobs if self._is_own(job)}
        for known in list(self._known.values()):
            job = self._slurm_jobs.get(known.job_id)
            if job is None:
                self._forget(known, "is gone")
            else:
                self._follow(known, job, now_s)
        self._free_blocked(jobs)
        for job in sorted(self._slurm_jobs.values(), key=lambda job: job.place):
            if job.job_id not in self._known and job.is_held and self._is_described(job):
                self._add(job, now_s)

    def _is_own(self, job: commands.SlurmJob) -> bool:
        return job.partition == self._settings.partition and self._settings.user in (None, job.user)

    def _is_described(self, job: commands.SlurmJob) -> bool:
        return not job.has_dependency and (job.comment.startswith(PREFIX) or job.name in self._settings.facts)

    def _add(self, job: commands.SlurmJob, now_s: float) -> None:
        """Let a job wait for the policies, unless its description is none."""
        try:
            described = self._described(job, now_s)
        except InputError as error:
            self._say("refuse", job.job_id, f"{error}; it stays held")
            return
        self._known[job.job_id] = known = self._journal.add(job.job_id, now_s)
        self._board_jobs[job.job_id] = BoardJob(described, known.number, demand=following.demand_of(job))

    def _described(self, job: commands.SlurmJob, arrival_s: float) -> Job:
        facts = self._facts(job)
        if job.own_nodes and job.job_id not in self._known:
            raise InputError(f"it asks for the nodes {job.own_nodes}; expected none, as the policies choose them")
        if job.own_choice and job.job_id not in self._known:
            raise InputError(f"it asks for {job.own_choice}; expected none of it, as the policies choose the nodes")
        if job.num_gpus is None:
            raise InputError("it asks for no GPUs by --gpus; expected --gpus=N, --gpus-per-node=N or --gres=gpu:N")
        described = facts.job(
            str(job.job_id), arrival_s=arrival_s, num_gpus=job.num_gpus, user=job.user, time_limit_s=job.time_limit_s
        )
        if self._board is not None and not self._board.fits(described, following.demand_of(job)):
            each = f", {job.gpus_per_node} on each node" if job.gpus_per_node else ""
            what = f"GPUs{f' of kind {job.gpu_kind}' if job.gpu_kind else ''} of {facts.gpu_memory_mb:g} MB{each}"
            raise InputError(f"it asks for {job.num_gpus} {what}; there are never so many")
        return described

    def _facts(self, job: commands.SlurmJob) -> JobFacts:
        if job.comment.startswith(PREFIX) or job.name not in self._settings.facts:
            return facts_of_comment(job.comment)
        return self._settings.facts[job.name]

    def _follow(self, known: KnownJob, job: commands.SlurmJob, now_s: float) -> None:
        """Take note of what became of a known job, and take it back if it went wrong."""
        what, after = following.followed(known, job, now_s, self._settings.start_s)
        if what is following.Next.FORGET:
            self._forget(known, job.state.lower())
            return
        if known.state == "running" and after.state == "queued":
            after = replace(after, iterations_done=self._resumed(known, job, now_s))
        if what is following.Next.TAKE_BACK:
            after = self._taken_back(job, known, after)
        if known.state == "stopping" and after.state == "queued":
            after = self._unless_hopeless(after)
        if known.state == "starting" and job.gpus_on and set(job.gpus_on) != set(known.seats):
            self._take_from_elsewhere(known, job)
            return
        if after.state in ("running", "stopping") and job.gpus_on:
            after = replace(after, seats=self._given(after, job))
        if after != known or job.job_id not in self._board_jobs:
            self._keep(after, job)

    def _free_blocked(self, jobs: Sequence[commands.SlurmJob]) -> None:
        """Take jobs back whose nodes Slurm meanwhile gave to others: it takes what is free as it starts a job."""
        for known in following.blocked(list(self._known.values()), jobs, self._sizes):
            job = self._slurm_jobs[known.job_id]
            self._keep(self._taken_back(job, known, replace(known, state="queued", seats={})), job)

    def _resumed(self, known: KnownJob, job: commands.SlurmJob, now_s: float) -> int:
        """Return how many iterations a job that no longer runs goes on from."""
        board_job = self._board_jobs.get(job.job_id)
        try:
            resumes = self._facts(job).resumes
        except InputError:  # its comment was changed meanwhile, of which _keep tells
            resumes = False
        return board_job.iterations_done(now_s) if board_job is not None and resumes else 0

    def _keep(self, known: KnownJob, job: commands.SlurmJob) -> None:
        """Note a job's state, and show policies what follows from it."""
        if known != self._known[job.job_id]:
            self._journal.keep(known)
        self._known[job.job_id] = known
        start_s = known.since_s if known.state in ("running", "stopping") else None
        try:
            described = self._described(job, known.seen_s)
        except InputError as error:
            if job.job_id not in self._board_jobs:
                self._forget(known, f"its description is none: {error}")
                return
            self._say("refuse", job.job_id, f"{error}; its description of before holds")
            described = self._board_jobs[job.job_id].job
        demand = following.demand_of(job)
        self._board_jobs[job.job_id] = BoardJob(described, known.number, known.iterations_done, start_s, demand)

    def _given(self, known: KnownJob, job: commands.SlurmJob) -> Seats:
        taken: dict[str, list[int]] = {}
        for other in self._known.values():  # its own are those promised, which come first anyway
            for node, gpus in other.seats.items():
                taken.setdefault(node, []).extend(gpus)
        return following.seats_as_given(known.seats, job.gpus_on, self._sizes, taken)

    def _taken_back(self, job: commands.SlurmJob, known: KnownJob, after: KnownJob) -> KnownJob:
        """Hold a job that Slurm let go or never started; one that did not start time and again is left to its user."""
        why = f"did not start on {','.join(known.seats)}" if known.state == "starting" else "was requeued by Slurm"
        if not self._settings.dry_run:
            try:
                self._run(["scontrol", "uhold", job.name_in_commands])
            except commands.SlurmRefusalError as error:
                self._say("fail", job.job_id, str(error))
                return known
        self._say("take back", job.job_id, f"{why} ({job.reason})")
        return self._unless_hopeless(after)

    def _take_from_elsewhere(self, known: KnownJob, job: commands.SlurmJob) -> None:
        """Hold a job again that Slurm started on other nodes than the policy chose."""
        seats = self._given(known, job)
        after = replace(known, state="stopping", seats=seats, failed_starts=known.failed_starts + 1)
        detail = f"started on {','.join(job.gpus_on)}, not on {','.join(known.seats)}"
        self._do("take back", known, after, [["scontrol", "requeuehold", job.name_in_commands]], detail)

    def _unless_hopeless(self, known: KnownJob) -> KnownJob:
        if known.failed_starts < _FAILED_STARTS:
            return known
        self._say("refuse", known.job_id, f"could not be started {known.failed_starts} times; it stays held")
        return replace(known, state="refused")

    def _forget(self, known: KnownJob, why: str) -> None:
        self._journal.keep(replace(known, state="ended", seats={}))
        del self._known[known.job_id]
        self._board_jobs.pop(known.job_id, None)
        self._say("end", known.job_id, why)

    # --- what is asked and done

    def _holders(self) -> list[Holder]:
        return [
            Holder(self._board_jobs[known.job_id], known.seats, may_stop=known.state == "running")
            for known in self._known.values()
            if known.state in _HOLDING
        ]

    def _start(self, job: BoardJob, seats: Seats, now_s: float) -> None:
        """Let a job go, on the nodes that were chosen: first what is intended is noted, then it is done."""
        known = self._known[int(job.job.job_id)]
        slurm_job, nodes = self._slurm_jobs[known.job_id], ",".join(seats)
        name = slurm_job.name_in_commands
        update = ["scontrol", "update", f"JobId={name}", f"ReqNodeList={nodes}", f"NumNodes={len(seats)}-{len(seats)}"]
        if slurm_job.restarts:
            update.append(f"StartTime=now+{_AGAIN_S}")  # or Slurm lets it wait two minutes more
        steps = [update, ["scontrol", "release", name]]
        intended = replace(known, state="starting", since_s=now_s, seats=seats)
        detail = ", ".join(f"{len(gpus)} on {node}" for node, gpus in seats.items())
        self._do("start", known, intended, steps, detail)

    def _stop(self, job: BoardJob, now_s: float) -> None:
        """Let a running job stop and wait again."""
        known = self._known[int(job.job.job_id)]
        slurm_job = self._slurm_jobs[known.job_id]
        done = self._resumed(known, slurm_job, now_s)
        intended = replace(known, state="stopping", iterations_done=done)
        command = ["scontrol", "requeuehold", slurm_job.name_in_commands]
        self._do("stop", known, intended, [command], f"after {done} iterations")

    def _do(self, what: str, known: KnownJob, intended: KnownJob, steps: Sequence[Sequence[str]], detail: str) -> None:
        if self._settings.dry_run:
            self._say(what, known.job_id, detail)
            return
        decision = self._journal.decided(what, known.job_id, ",".join(intended.seats), self._last_s)
        job = self._slurm_jobs[known.job_id]
        self._keep(intended, job)
        try:
            for command in steps:
                self._run(command)
        except commands.SlurmRefusalError as error:
            self._journal.outcome(decision, str(error))
            self._say("fail", known.job_id, str(error))
            self._keep(self._unless_hopeless(replace(known, failed_starts=known.failed_starts + 1)), job)
            self._failed = True
            return
        self._journal.outcome(decision, "done")
        self._say(what, known.job_id, detail)

    def _say(self, what: str, job_id: int, detail: str) -> None:
        """Tell of something; what only repeats itself, once."""
        if what in ("refuse", "fail") or self._settings.dry_run:
            if (what, job_id, detail) in self._said:
                return
            self._said.add((what, job_id, detail))
        self._tell(AgentEvent(self._last_s, what, job_id, detail))

    def _now_s(self) -> float:
        """Return the time, which never goes back."""
        self._last_s = max(self._last_s, self._clock())
        return self._last_s
