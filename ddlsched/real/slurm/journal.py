"""The agent's memory: which jobs it knows, what it promised them and what it did, in SQLite, safe against a kill.

Slurm knows what is so; the journal only what it does not know: the order in which jobs came, on which GPUs a job
was let go that does not run yet, and what a job had done when it was stopped. An intent is written before its command.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError
from ddlsched.real.state_folder import open_in

__all__ = ["Journal", "KnownJob", "Seats"]

Seats = Mapping[str, Sequence[int]]
"""Which GPUs a job has, by the policy's numbers on each node, from 0."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('queued', 'starting', 'running', 'stopping', 'ended', 'refused')),
    seen_s REAL NOT NULL,
    since_s REAL NOT NULL,
    seats TEXT NOT NULL,
    iterations_done INTEGER NOT NULL,
    failed_starts INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS decisions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    time_s REAL NOT NULL,
    what TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    nodes TEXT NOT NULL,
    outcome TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS arrays (
    array_id INTEGER PRIMARY KEY,
    most_running INTEGER NOT NULL
);
"""


@dataclass(frozen=True, kw_only=True)
class KnownJob:
    """A job of the agent.

    Parameters
    ----------
    number
        The agent's own: the order in which jobs came, by which ties are broken.
    job_id
        Slurm's.
    state
        ``queued`` (held), ``starting`` (released, not running yet), ``running``, ``stopping``, ``ended``, ``refused``.
    seen_s, since_s
        When it was first seen, and when it began to start or to run, by the agent's clock, seconds.
    seats
        GPUs of a job that starts, runs or stops.
    iterations_done
        What it had done at its last stop and goes on from.
    failed_starts
        How often it was released in vain since it last ran.
    """

    number: int
    job_id: int
    state: str
    seen_s: float
    since_s: float
    seats: Seats
    iterations_done: int
    failed_starts: int


_COLUMNS = "number, job_id, state, seen_s, since_s, seats, iterations_done, failed_starts"


class Journal:
    """Jobs and decisions in a file; every change is one transaction.

    Parameters
    ----------
    path
        The file, or ``:memory:``.

    Raises
    ------
    InputError
        The file cannot be used.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        if isinstance(path, Path):
            open_in(path.parent, path.name, "ab").close()  # SQLite would follow a link
        with self._explained():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def jobs(self) -> dict[int, KnownJob]:
        """Return the jobs that have not ended, by Slurm's id."""
        with self._explained():
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE state != 'ended' ORDER BY number").fetchall()
            known = [_known(row) for row in rows]
        return {job.job_id: job for job in known}

    def add(self, job_id: int, now_s: float) -> KnownJob:
        """Note a job that waits; one of an id that has ended is another one."""
        with self._explained():
            self._db.execute(
                "INSERT OR REPLACE INTO jobs (job_id, state, seen_s, since_s, seats, iterations_done, failed_starts) "
                "VALUES (?, 'queued', ?, ?, '{}', 0, 0)",
                (job_id, now_s, now_s),
            )
            row = self._db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
            return _known(row)

    def change(self, job: KnownJob, **values: Any) -> KnownJob:
        """Note other values of a job, and return it with them."""
        changed = replace(job, **values)
        stored = {**values, "seats": json.dumps({node: list(gpus) for node, gpus in changed.seats.items()})}
        with self._explained():
            names = ", ".join(f"{name} = ?" for name in stored)
            self._db.execute(f"UPDATE jobs SET {names} WHERE number = ?", (*stored.values(), job.number))
        return changed

    def array_limits(self) -> dict[int, int]:
        """Return how many tasks of each array may run at a time, 0 for all, by Slurm's id of the array."""
        with self._explained():
            return dict(self._db.execute("SELECT array_id, most_running FROM arrays").fetchall())

    def keep_array_limits(self, limits: Mapping[int, int]) -> None:
        """Replace what is known of all arrays."""
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM arrays")
            self._db.executemany("INSERT INTO arrays VALUES (?, ?)", limits.items())
            self._db.execute("COMMIT")

    def decided(self, what: str, job_id: int, nodes: str, time_s: float) -> int:
        """Note what is about to be done, and return its number."""
        with self._explained():
            cursor = self._db.execute(
                "INSERT INTO decisions (time_s, what, job_id, nodes, outcome) VALUES (?, ?, ?, ?, 'intended')",
                (time_s, what, job_id, nodes),
            )
        return int(cursor.lastrowid or 0)

    def outcome(self, decision: int, outcome: str) -> None:
        """Note what became of a decision: ``done``, or Slurm's message."""
        with self._explained():
            self._db.execute("UPDATE decisions SET outcome = ? WHERE number = ?", (outcome, decision))

    def decisions(self) -> list[tuple[float, str, int, str, str]]:
        """Return time, kind, job, nodes and outcome of every decision, the oldest first."""
        with self._explained():
            columns = "time_s, what, job_id, nodes, outcome"
            return self._db.execute(f"SELECT {columns} FROM decisions ORDER BY number").fetchall()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self._path}: cannot be used ({error}); expected the agent's journal, with space"
            ) from None


def _known(row: Sequence[Any]) -> KnownJob:
    number, job_id, state, seen_s, since_s, seats, done, failed = row
    read = {str(node): [int(gpu) for gpu in gpus] for node, gpus in json.loads(seats).items()}
    return KnownJob(
        number=number,
        job_id=job_id,
        state=state,
        seen_s=seen_s,
        since_s=since_s,
        seats=read,
        iterations_done=done,
        failed_starts=failed,
    )
