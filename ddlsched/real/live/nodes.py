"""Who finds the nodes that the main scheduler leaves idle, and who starts the processes on them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, TypeAlias

from ddlsched.cluster.idle_trace import IdleTrace, expand_hosts
from ddlsched.errors import DdlschedError, InputError, abbreviated
from ddlsched.io.tables import located
from ddlsched.ranges import Checked, ranged
from ddlsched.real.slurm.commands import Run, SlurmBusyError, SlurmRefusalError, runner


class Scavenger(Protocol):
    """Finds idle nodes. What it no longer returns is lost at once, without warning."""

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the names of the nodes that may be used, ``now_s`` seconds after the start."""


@dataclass(frozen=True, kw_only=True)
class TraceScavenger(Checked, who="scavenger"):
    """Plays a trace back.

    Parameters
    ----------
    trace
        Its node 3 is called ``node3``.
    speed
        How many seconds of the trace pass in one.
    """

    trace: IdleTrace
    speed: float = ranged(1.0, 0.0, above=True)

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes that are idle in the trace at that time."""
        time_s = now_s * self.speed
        there = (self.trace.idle_from_s <= time_s) & (time_s < self.trace.idle_to_s)
        return frozenset(f"node{node}" for node in self.trace.node[there].tolist())

    def end_s(self) -> float:
        """Return when the last node leaves for good, seconds after the start."""
        return float(self.trace.idle_to_s.max()) / self.speed


@dataclass(frozen=True, kw_only=True)
class SlurmScavenger:
    """Asks Slurm: nodes in state ``idle``, and those that our own placeholder jobs already hold.

    A node whose state carries a mark (``idle*`` does not answer, ``idle~`` sleeps, ...) is not used, nor one that is
    ``planned`` for a waiting job.

    Parameters
    ----------
    partition
        Only nodes of this one.
    placeholder
        The name of the jobs with which idle nodes are adopted.
    run
        Runs a command and returns what it wrote.
    """

    partition: str
    placeholder: str
    run: Run = field(default_factory=runner, repr=False)

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes that may be used now.

        Raises
        ------
        InputError
            Slurm is not there, or its answer cannot be read.
        SlurmBusyError, SlurmRefusalError
            Slurm failed or did not answer.
        """
        partition = f"--partition={self.partition}"
        nodes = self.run(["sinfo", "--noheader", "--Node", "--format=%N|%T", partition])
        jobs = ["squeue", "--noheader", "--states=RUNNING", f"--name={self.placeholder}", "--format=%i|%N", partition]
        return idle_of_sinfo(nodes) | nodes_of_squeue(self.run(jobs))


class SeldomAsked:
    """Asks a scavenger beside the caller, so that nobody waits, and outlives its failures: the last answer holds.

    Parameters
    ----------
    scavenger
        Who is asked, by one thread.
    tell
        Is told, once, of a failure that is not that of the time before.
    every_s
        Seconds from an answer to the next question.
    """

    def __init__(self, scavenger: Scavenger, tell: Callable[[str], None], every_s: float = 5.0) -> None:
        self._scavenger, self._tell, self._every_s = scavenger, tell, every_s
        self._thread = ThreadPoolExecutor(1)
        self._answer: Future[frozenset[str]] | None = None
        self._ask_at_s = 0.0
        self._known: frozenset[str] = frozenset()
        self._has_answered = False
        self._failure = ""

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes of the last answer, at once; none before the first.

        Raises
        ------
        InputError
            The scavenger cannot be asked at all: it has never answered.
        """
        if self._answer is not None and self._answer.done():
            self._take(self._answer)
            self._answer, self._ask_at_s = None, now_s + self._every_s
        if self._answer is None and now_s >= self._ask_at_s:
            self._answer = self._thread.submit(self._scavenger.idle, now_s)
        return self._known

    def _take(self, answer: Future[frozenset[str]]) -> None:
        try:
            self._known, self._has_answered, self._failure = answer.result(), True, ""
        except DdlschedError as error:
            if isinstance(error, InputError) and not self._has_answered:
                raise
            if str(error) != self._failure:
                self._tell(f"{error}; going on with the {len(self._known)} nodes of the last answer")
            self._failure = str(error)


def idle_of_sinfo(text: str) -> frozenset[str]:
    """Return the idle nodes in what ``sinfo --noheader --Node --format='%N|%T'`` writes."""
    return frozenset(name for name, state in _pairs("sinfo", text, "NODE|STATE") if state == "idle")


def nodes_of_squeue(text: str) -> frozenset[str]:
    """Return the nodes of all jobs in what ``squeue --noheader --format='%i|%N'`` writes."""
    pairs = enumerate(_pairs("squeue", text, "JOBID|NODELIST"), start=1)
    lists = [located(f"squeue, line {line}", lambda: expand_hosts(nodes)) for line, (_, nodes) in pairs]  # noqa: B023
    return frozenset(name for names in lists for name in names)


def _pairs(program: str, text: str, expected: str) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        first, bar, second = line.strip().partition("|")
        if not line.strip():
            continue
        if not bar or not first or "|" in second:
            raise InputError(f"{program}, line {number}: {abbreviated(line)}; expected {expected}")
        pairs.append((first.strip(), second.strip()))
    return pairs


_WORKER = (sys.executable, "-m", "ddlsched.real.live.worker")
_REFUSED, _TOO_LATE = 124, 125
"""What srun is told to end with if Slurm starts nothing: never, or not now."""
_TAKEN = frozenset({_REFUSED, _TOO_LATE, 128 + 9, 128 + 15})
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SOON_S = 5
_END_S = 10.0


class LocalLauncher:
    """Every node is a process on this machine."""

    @property
    def parent(self) -> int:
        """Return this process."""
        return os.getpid()

    def start(self, node: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a process."""
        return subprocess.Popen(_WORKER, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a process at once, and return when it has ended."""
        if process.poll() is None:
            process.kill()
        process.wait()

    def was_taken(self, exit_code: int) -> bool:
        """Return False: a node that is lost is what the scavenger says."""
        return False

    def was_killed(self, exit_code: int) -> bool:
        """Return whether somebody sent it a signal, as opposed to one of its own such as SIGSEGV."""
        return -exit_code in _FROM_OUTSIDE


@dataclass(frozen=True)
class SlurmLauncher:
    """Every process is a Slurm job of one whole node, in a partition whose jobs others preempt.

    Orders go over ``srun``, which is a child of the manager: it ends its job when the manager has ended.

    Parameters
    ----------
    partition
        Where jobs are started.
    name
        Of these jobs; no other job of this user may have it.
    """

    partition: str
    name: str
    parent: int = 0

    @classmethod
    def for_folder(cls, partition: str, folder: Path) -> SlurmLauncher:
        """Return that of a manager with a folder of state, whose jobs bear a name of their own."""
        digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
        return cls(partition, f"ddlsched-live-{digest}")

    def start(self, node: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a job on a node."""
        options = ["--nodes=1", "--ntasks=1", "--exclusive", "--quiet", f"--immediate={_SOON_S}"]
        where = [f"--partition={self.partition}", f"--nodelist={node}", f"--job-name={self.name}"]
        environment = {**os.environ, "SLURM_EXIT_ERROR": str(_REFUSED), "SLURM_EXIT_IMMEDIATE": str(_TOO_LATE)}
        command = ["setpriv", "--pdeathsig", "TERM", "srun", *options, *where, *_WORKER]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a job: by a signal that srun passes on, as one that is killed itself would leave its job behind."""
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def was_taken(self, exit_code: int) -> bool:
        """Return whether Slurm ended the job, or never started it."""
        return exit_code in _TAKEN or exit_code < 0

    def was_killed(self, exit_code: int) -> bool:
        """Return False: :meth:`was_taken` says it."""
        return False

    def end_leftovers(self) -> None:
        """End jobs that an earlier manager of this folder left, if it was killed with its host, say.

        Raises
        ------
        InputError
            Slurm is not there.
        """
        with suppress(SlurmBusyError, SlurmRefusalError):
            runner()(["scancel", f"--name={self.name}", "--me"])


Launcher: TypeAlias = LocalLauncher | SlurmLauncher
"""Starts processes on nodes; each reads its orders on stdin."""
