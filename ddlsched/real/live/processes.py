"""The processes of a running job, one a node, and the group in which they train.

A process is starting, ready for orders, or training. A group is formed of those that are ready; it is left when one of
its members has gone, or when others wait to join. Processes that stay are asked to leave it and are ready at once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Protocol

import msgspec

from ddlsched.real.live.nodes import Launcher, LocalLauncher
from ddlsched.real.live.reports import Ready, Report
from ddlsched.real.live.seat import LEAVE, Assignment, Orders
from ddlsched.real.state_folder import open_in


class Failing(Protocol):
    """Knows how often nodes fail."""

    def time_to_failure_s(self, num_nodes: int) -> float:
        """Return the mean time until one of so many nodes is hit, seconds."""


@dataclass(eq=False)
class LiveProcess:
    """A process on a node."""

    node: str
    process: subprocess.Popen[bytes]
    started_s: float
    number: int
    """Of all processes of its job, this one."""
    generation: int = 0
    """Of the last group that it was ordered to; 0 if none."""
    is_ready: bool = False
    meets_at: tuple[str, int] = ("", 0)
    """The host and port at which a group meets of which it is the first; known once it is ready."""
    script: str = ""
    """The SHA-256 of the script that it runs; known once it is ready."""
    is_aside: bool = False
    """Whether the others of its job run another script, so that it does not train with them."""

    @property
    def is_starting(self) -> bool:
        """Return whether it has never been ready."""
        return not self.is_ready and self.generation == 0

    @property
    def is_training(self) -> bool:
        """Return whether it is in a group, or has not yet said that it has left it."""
        return not self.is_ready and self.generation > 0

    def write(self, line: bytes) -> None:
        """Tell it something; one that has ended is noticed elsewhere."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.write(line)
                self.process.stdin.flush()

    def close(self) -> None:
        """Close what its orders went through; it has ended."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def is_stopped(self) -> bool:
        """Return whether the kernel says that it is stopped, by SIGSTOP or a debugger."""
        try:
            said = Path(f"/proc/{self.process.pid}/stat").read_bytes()  # a name may be cut within a letter
        except OSError:
            return False
        return said.rpartition(b")")[2].split()[0] in b"Tt"


@dataclass
class JobProcesses:
    """What runs a job now."""

    assignment: Assignment
    workers: dict[str, LiveProcess] = field(default_factory=dict)
    """By node, the oldest first."""
    group: tuple[LiveProcess, ...] = ()
    """Who was called to train together last, in the order of ranks."""
    is_leaving: bool = False
    progress_s: float = 0.0
    """When something of the present group was last heard of."""
    last_step: int = 0
    """The last step that the present group has reported; 0 if none."""
    launcher: Launcher = field(default_factory=LocalLauncher)
    started: int = 0
    """How many processes were started."""
    fewest: int = 1
    """So many form a group."""
    checkpoint: str = ""
    """The policy that says when it commits, by its name."""
    commit_s: float = 0.0
    """For how long its last commit held it up, seconds."""
    failing: Failing | None = None
    """Who knows how often it is hit."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return where it has a process, the oldest first."""
        return tuple(self.workers)

    @property
    def processes(self) -> tuple[subprocess.Popen[bytes], ...]:
        """Return them in the order of ``nodes``."""
        return tuple(worker.process for worker in self.workers.values())

    def add(self, nodes: Iterable[str], now_s: float) -> None:
        """Start a process on each node; its assignment goes to its stdin, so that no token is in a command line."""
        for node in nodes:
            with open_in(Path(self.assignment.folder), f"{node.replace('/', '_')}.log", "ab") as log:
                process = self.launcher.start(node, log)
            self.started += 1
            self.workers[node] = worker = LiveProcess(node, process, now_s, self.started)
            assignment = replace(self.assignment, process=self.started)
            worker.write(msgspec.json.encode(assignment) + b"\n")

    def remove(self, nodes: Iterable[str]) -> None:
        """End the processes on some nodes at once: what is committed is what there is of their work."""
        for node in nodes:
            worker = self.workers.pop(node)
            self.launcher.end(worker.process)
            worker.close()
        self._set_aside()

    def take_ended(self) -> list[LiveProcess]:
        """Return the processes that have ended by themselves, which are not part of this any more."""
        ended = [worker for worker in self.workers.values() if worker.process.poll() is not None]
        self.remove([worker.node for worker in ended])
        return ended

    def take_ready(self, said: Ready) -> bool:
        """Note that a process waits for orders, unless it has been given some since it said so.

        Return whether it is one that now stands aside, as its script is not that of the others.
        """
        for worker in self.workers.values():
            if (worker.number, worker.generation) == (said.process, said.generation):
                worker.is_ready, worker.meets_at, worker.script = True, (said.host, said.port), said.script
        return self._set_aside()

    def _set_aside(self) -> bool:
        """Let those stand aside whose script is not the group's, or the oldest one's; return whether there are more."""
        known = sorted((each for each in self.workers.values() if not each.is_starting), key=lambda each: each.is_aside)
        trained = [each for each in known if each.generation and not each.is_aside]
        before = sum(worker.is_aside for worker in known)
        for worker in known:
            worker.is_aside = worker.script != (trained or known)[0].script
        return sum(worker.is_aside for worker in known) > before

    @property
    def _together(self) -> list[LiveProcess]:
        return [worker for worker in self.workers.values() if not worker.is_aside]

    def has_broken(self) -> bool:
        """Return whether the group broke by itself: one has left it unasked, and all are still there."""
        there = all(self.workers.get(worker.node) is worker for worker in self.group)
        return there and not self.is_leaving and any(worker.is_ready for worker in self.group)

    def ask_to_leave(self, now_s: float) -> None:
        """Ask the group's members to leave it, if one has gone or left, or if all who are to join are ready."""
        there = [worker for worker in self.group if self.workers.get(worker.node) is worker]
        joining = [worker for worker in self._together if worker not in self.group]
        is_short = len(there) < len(self.group) or any(worker.is_ready for worker in there)
        if not self.is_leaving and (is_short or (joining and all(worker.is_ready for worker in joining))):
            self.is_leaving, self.progress_s = True, now_s
            for worker in there:
                worker.write(LEAVE)

    def can_form(self) -> bool:
        """Return whether nobody trains, and those who are ready need not wait for those who are starting."""
        workers = self._together
        ready = [worker for worker in workers if worker.is_ready]
        all_ready = len(ready) == len(workers) or any(worker.generation for worker in ready)
        return len(ready) >= self.fewest and all_ready and not any(worker.is_training for worker in workers)

    def is_news(self, report: Report) -> bool:
        """Return whether a report can be true of the present group, and says more than its last: none counts again."""
        is_ours = any(worker.generation == report.generation for worker in self.group[:1])
        return is_ours and report.nodes == len(self.group) and self.last_step < report.step <= self.assignment.steps

    def has_survivors(self) -> bool:
        """Return whether a process is there that has been in a group before."""
        return any(worker.generation for worker in self.workers.values())

    def form(self, generation: int, now_s: float) -> None:
        """Order those who are ready to a new group, which meets at the first of them; the oldest are first."""
        self.group = tuple(worker for worker in self._together if worker.is_ready)
        self.is_leaving, self.progress_s, self.last_step = False, now_s, 0
        ranks = len(self.group)
        often_s = inf if self.failing is None else self.failing.time_to_failure_s(ranks)
        for rank, worker in enumerate(self.group):
            worker.generation, worker.is_ready = generation, False
            orders = Orders(
                generation,
                rank,
                ranks,
                *self.group[0].meets_at,
                self.checkpoint,
                often_s if often_s < inf else 0.0,
                self.commit_s,
            )
            worker.write(msgspec.json.encode(orders) + b"\n")

    def hanging(self, now_s: float, hang_s: float) -> list[LiveProcess]:
        """Return who takes too long to start, and who trains in a group of which nothing has been heard for as long.

        If some of these are stopped, the others only wait for them.
        """
        training = [worker for worker in self.workers.values() if worker.is_training]
        if now_s - self.progress_s <= hang_s:
            training = []
        stopped = [worker for worker in training if worker.is_stopped()]
        starting = [worker for worker in self.workers.values() if worker.is_starting]
        return [worker for worker in starting if now_s - worker.started_s > hang_s] + (stopped or training)
