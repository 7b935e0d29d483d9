"""A training process's seat in its job: what its manager tells it, what it answers, and when rank 0 commits.

A process is told its assignment once. Then it says that it is ready, is given orders (its rank in a group), trains in
that group until it is asked to leave or the group breaks, and says again that it is ready. So processes outlive groups.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import ClassVar

import msgspec

from ddlsched.cluster.reliability_doors import CheckpointedJob, CheckpointPolicy
from ddlsched.plugins.names import resolve
from ddlsched.real.live.commits import commits_at, writing
from ddlsched.real.live.reports import Ready, Report, address_towards, send_report

LEAVE = b"leave\n"
"""What a member of a group reads when it is to leave it."""
_READY_AGAIN_S = 1.0


@dataclass(frozen=True)
class Assignment:
    """What a process is for; a line of JSON."""

    job: str
    token: str
    program: str
    steps: int
    folder: str
    socket: str
    """Where to report: a path, or HOST:PORT."""
    parent: int
    """The process id of this process's parent, if that is the manager; 0 on another machine."""
    process: int = 0
    """By which number the manager knows this process."""
    commits: str = ""
    """Where the job commits, if not in its folder: a URL that fsspec knows."""


@dataclass(frozen=True)
class Orders:
    """A process's rank in the group that is to be formed now; a line of JSON."""

    generation: int
    rank: int
    ranks: int
    host: str
    """Where the group meets: its rank 0 listens there."""
    port: int
    checkpoint: str = ""
    """By its name, the policy that says when rank 0 commits; by default after every step."""
    time_to_failure_s: float = 0.0
    """Mean time until the group is hit by a failure, seconds; 0 if never."""
    commit_s: float = 0.0
    """For how long the job's last commit held it up, seconds; 0 if there is none yet."""


class Seat:
    """Reads from a pipe that the manager writes to; what is not yet a whole line waits."""

    here: ClassVar[Seat | None] = None
    """That of this process, if a manager has started it."""

    def __init__(self, orders_from: int) -> None:
        self._from, self._read = orders_from, b""
        self._generation = 0
        self.script = ""
        """The SHA-256 of the script that this process runs; empty for a program that has a name."""
        self.assignment = msgspec.json.decode(self._line(), type=Assignment)
        self.folder = Path(self.assignment.folder)
        self.commits = commits_at(self.assignment.commits or self.folder)
        self.place = socket.socket()
        """Bound, once this process is ready, to where its next group meets if it is the first there."""

    def orders(self) -> Orders:
        """Say that this process is ready, as often as it takes, and wait for its orders."""
        self.place.close()
        self.place = self._new_place()
        while True:
            self._say_ready()
            while not self._has_more(_READY_AGAIN_S):
                self._say_ready()
            line = self._line()
            if line != LEAVE:
                orders = msgspec.json.decode(line, type=Orders)
                self._generation = orders.generation
                return orders

    def is_asked_to_leave(self, within_s: float = 0.0) -> bool:
        """Return whether the manager wants this process out of its group, now or within some seconds."""
        return self._has_more(within_s)

    def wait_for_leave(self) -> None:
        """Wait until the manager wants this process out of its group."""
        self._has_more(None)

    def writing(self, orders: Orders) -> AbstractContextManager[None]:
        """Return a context in which the process of rank 0 is the only one that commits."""
        return writing(self.folder) if orders.rank == 0 else nullcontext()

    def report(self, losses: list[float], samples: int, ranks: int, commit_s: float = 0.0) -> None:
        """Tell the manager of the last committed step, at a time of the clock that nobody sets."""
        job, time_s = self.assignment, time.monotonic()
        report = Report(job.job, job.token, self._generation, len(losses), samples, ranks, losses[-1], time_s, commit_s)
        send_report(job.socket, report)

    def _new_place(self) -> socket.socket:
        """Return a socket at any port of the address by which this host reaches the manager; nobody answers there yet.

        If it listened already, a connection of PyTorch's could wait in it for ever.
        """
        manager, place = self.assignment.socket, socket.socket()
        try:
            place.bind((address_towards(manager), 0))
            return place
        except OSError as error:
            place.close()
            sys.exit(f"{manager}: no way to the manager ({error}); expected that this host knows it and reaches it")

    def _say_ready(self) -> None:
        job, (host, port) = self.assignment, self.place.getsockname()
        ready = Ready(job.job, job.token, job.process, self._generation, host, port, self.script)
        send_report(job.socket, ready)

    def _has_more(self, timeout_s: float | None) -> bool:
        return bool(self._read or select.select([self._from], [], [], timeout_s)[0])

    def _line(self) -> bytes:
        """Return the next line; a manager that has gone ends this process."""
        while b"\n" not in self._read:
            received = os.read(self._from, 4096)
            if not received:
                sys.exit(1)
            self._read += received
        line, _, self._read = self._read.partition(b"\n")
        return line + b"\n"


class CommitTimes:
    """Asks the policy that orders name, when a group begins and after each commit.

    Attributes
    ----------
    write_s
        For how long the job's last commit held it up, seconds; 0 before the first, so that one comes soon.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id, self.write_s = job_id, 0.0
        self._policy: CheckpointPolicy | None = None
        self._orders: Orders | None = None
        self._since_s = self._interval_s = 0.0

    def begin(self, orders: Orders) -> None:
        """Begin with a group."""
        self._orders, self.write_s = orders, self.write_s or orders.commit_s
        self._policy = resolve("checkpoint", orders.checkpoint) if orders.checkpoint else None
        self._ask()

    def is_due(self) -> bool:
        """Return whether so much time has passed that the step that has just ended is to be committed."""
        return self._policy is None or time.monotonic() >= self._since_s + self._interval_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure a commit, and count from its end."""
        begun_s = time.monotonic()
        yield
        self.write_s = time.monotonic() - begun_s
        self._ask()

    def _ask(self) -> None:
        orders, self._since_s = self._orders, time.monotonic()
        if orders is None or self._policy is None:
            return
        seen = CheckpointedJob(
            job_id=self._job_id,
            num_gpus=orders.ranks,
            write_s=self.write_s,
            restart_s=0.0,
            time_to_failure_s=orders.time_to_failure_s or inf,
            now_s=self._since_s,
        )
        self._interval_s = self._policy.interval_s(seen)
