"""The live manager's memory: its queue and the state of every job, in SQLite, safe against a kill at any moment."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.real.state_folder import open_in

__all__ = ["JobStore", "StoredJob"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    program TEXT NOT NULL,
    steps INTEGER NOT NULL CHECK (steps > 0),
    max_nodes INTEGER NOT NULL CHECK (max_nodes > 0),
    state TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'finished', 'failed')),
    generation INTEGER NOT NULL DEFAULT 0
);
"""
_COLUMNS = "job_id, program, steps, max_nodes, state, generation"


@dataclass(frozen=True)
class StoredJob:
    """A row: what was submitted, its state, and how many groups have trained it.

    ``samples_per_s`` is what its user says of it at 1, 2, ... nodes; it is not stored.
    """

    job_id: str
    program: str
    steps: int
    max_nodes: int
    state: str
    generation: int
    samples_per_s: tuple[float, ...] = ()


class JobStore:
    """A queue that outlives its manager. Every change is one transaction; the log is written ahead (WAL).

    A job's steps and weights are not here but in what its processes commit: so a manager that is killed between a
    job's end and its note of it finds the committed end when it comes back. Tokens are in memory alone: a manager that
    comes back believes nothing that processes of the one before say.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        open_in(path.parent, path.name, "ab").close()  # SQLite would follow a link
        self._tokens: dict[str, str] = {}
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise InputError(f"{path}: cannot be used ({error}); expected a file for the state of jobs") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself takes back what finds no space.
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = f"{self._path}: the state of jobs cannot be kept ({error})"
            raise InputError(f"{text}; what is committed stays: make room, then start again to go on") from None

    def submit(self, job_id: str, *, program: str, steps: int, max_nodes: int) -> bool:
        """Put a job in the queue, unless one of its name is known; return whether it is new.

        Raises
        ------
        InputError
            The one that is known is another.
        """
        with self._transaction() as db:
            row = db.execute("SELECT program, steps, max_nodes FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
            if row is None:
                values = job_id, program, steps, max_nodes
                db.execute("INSERT INTO jobs (job_id, program, steps, max_nodes) VALUES (?, ?, ?, ?)", values)
            elif row != (program, steps, max_nodes):
                raise InputError(f"job {job_id!r}: is known as {row}; expected the same, or another name")
        return row is None

    def jobs(self) -> list[StoredJob]:
        """Return all jobs in the order of submission."""
        with self._explained():
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM jobs ORDER BY place").fetchall()
        return [StoredJob(*row) for row in rows]

    def recover(self) -> list[str]:
        """Put jobs that a dead manager ran back in the queue and return them."""
        with self._transaction() as db:
            lost = [row[0] for row in db.execute("SELECT job_id FROM jobs WHERE state = 'running' ORDER BY place")]
            db.execute("UPDATE jobs SET state = 'queued' WHERE state = 'running'")
        return lost

    def retry_failed(self) -> list[str]:
        """Put jobs that were given up back in the queue and return them; what they have committed holds."""
        with self._transaction() as db:
            failed = [row[0] for row in db.execute("SELECT job_id FROM jobs WHERE state = 'failed' ORDER BY place")]
            db.execute("UPDATE jobs SET state = 'queued' WHERE state = 'failed'")
        return failed

    def start(self, job_id: str) -> str:
        """Note that a job has processes (again); return a new token for what they report."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = 'running' WHERE job_id = ? AND state IN ('queued', 'running')", (job_id,)
            )
        self._tokens[job_id] = secrets.token_hex(16)
        return self._tokens[job_id]

    def regroup(self, job_id: str) -> int:
        """Note that a job's processes form another group; return its generation, which no group before has had."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET generation = generation + 1 WHERE job_id = ?", (job_id,))
            found = db.execute("SELECT generation FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return int(found[0])

    def stop(self, job_id: str) -> None:
        """Note that a job has no processes now and waits."""
        self._end(job_id, "queued")

    def finish(self, job_id: str) -> None:
        """Note that a job is done."""
        self._end(job_id, "finished")

    def fail(self, job_id: str) -> None:
        """Note that a job is given up."""
        self._end(job_id, "failed")

    def _end(self, job_id: str, state: str) -> None:
        self._tokens.pop(job_id, None)
        with self._transaction() as db:
            db.execute("UPDATE jobs SET state = ? WHERE job_id = ?", (state, job_id))

    def token_of(self, job_id: str) -> str | None:
        """Return the token of the job's processes of now, or None if it has none."""
        return self._tokens.get(job_id)
