"""Who finds the nodes that the main scheduler leaves idle: a trace played back, or Slurm asked now."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ddlsched.cluster.idle_logs import expand_hosts
from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.errors import InputError, SimulationError
from ddlsched.io.tables import abbreviated, located

__all__ = ["Scavenger", "SeldomAsked", "SlurmScavenger", "TraceScavenger"]

_TIMEOUT_S = 30.0


@runtime_checkable
class Scavenger(Protocol):
    """Finds idle nodes. What it no longer returns is lost at once, without warning."""

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the names of the nodes that may be used, ``now_s`` seconds after the start."""
        ...


@dataclass(frozen=True, kw_only=True)
class TraceScavenger:
    """Plays a trace back.

    Parameters
    ----------
    trace
        Its node 3 is called ``node3``.
    speed
        How many seconds of the trace pass in one.
    """

    trace: IdleTrace
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise InputError(f"scavenger: speed is {self.speed}; expected a number above 0")

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes that are idle in the trace at that time."""
        time_s = now_s * self.speed
        there = (self.trace.idle_from_s <= time_s) & (time_s < self.trace.idle_to_s)
        return frozenset(f"node{node}" for node in self.trace.node[there].tolist())

    def end_s(self) -> float:
        """Return when the last node leaves for good, seconds after the start."""
        return float(self.trace.idle_to_s.max()) / self.speed


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise InputError(f"{command[0]}: no such program; expected Slurm's commands on this machine") from None
    except subprocess.TimeoutExpired:
        raise SimulationError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise SimulationError(f"{command[0]} failed ({(done.stderr.strip() or 'no message').splitlines()[0]})")
    return done.stdout


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

    partition: str | None = None
    placeholder: str = "ddlsched-idle"
    run: Callable[[Sequence[str]], str] = field(default=_run, repr=False)

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes that may be used now.

        Raises
        ------
        InputError
            Slurm is not there, or its answer cannot be read.
        SimulationError
            Slurm failed or did not answer.
        """
        partition = [] if self.partition is None else [f"--partition={self.partition}"]
        nodes = self.run(["sinfo", "--noheader", "--Node", "--format=%N|%T", *partition])
        jobs = ["squeue", "--noheader", "--states=RUNNING", f"--name={self.placeholder}", "--format=%i|%N", *partition]
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
        except (InputError, SimulationError) as error:
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
