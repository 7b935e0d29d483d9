"""The agent's memory: which jobs it knows, what it promised them and what it did, in SQLite, safe against a kill.

Slurm knows what is so; the journal only what it does not know: the order in which jobs came, on which GPUs a job
was let go that does not run yet, and what a job had done when it was stopped. An intent is written before its command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ddlsched.real.state_folder import Database

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


_COLUMNS = ", ".join(field.name for field in fields(KnownJob))


class AgentJournal(Database):
    """Jobs and decisions in a file.

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
        super().__init__(path, _SCHEMA, "cannot be used ({}); expected the agent's journal, with space", "NORMAL")

    def jobs(self) -> dict[int, KnownJob]:
        """Return the jobs that have not ended, by Slurm's id."""
        return {job.job_id: job for job in self._jobs("state != 'ended' ORDER BY number")}

    def _jobs(self, which: str, *values: Any) -> list[KnownJob]:
        rows = self._asked(f"SELECT {_COLUMNS} FROM jobs WHERE {which}", *values)
        with self._explained():
            return [_known(row) for row in rows]

    def add(self, job_id: int, now_s: float) -> KnownJob:
        """Note a job that waits; one of an id that has ended is another one."""
        self._asked(
            "INSERT OR REPLACE INTO jobs (job_id, state, seen_s, since_s, seats, iterations_done, failed_starts) "
            "VALUES (?, 'queued', ?, ?, '{}', 0, 0)",
            *(job_id, now_s, now_s),
        )
        return self._jobs("job_id = ?", job_id)[0]

    def keep(self, job: KnownJob) -> None:
        """Note what a known job is now."""
        stored = {**vars(job), "seats": json.dumps({node: list(gpus) for node, gpus in job.seats.items()})}
        names = ", ".join(f"{name} = ?" for name in stored)
        self._asked(f"UPDATE jobs SET {names} WHERE number = ?", *stored.values(), job.number)

    def array_limits(self) -> dict[int, int]:
        """Return how many tasks of each array may run at a time, 0 for all, by Slurm's id of the array."""
        rows: list[Any] = self._asked("SELECT array_id, most_running FROM arrays")
        return dict(rows)

    def keep_array_limits(self, limits: Mapping[int, int]) -> None:
        """Replace what is known of all arrays."""
        with self._transaction() as db:
            db.execute("DELETE FROM arrays")
            db.executemany("INSERT INTO arrays VALUES (?, ?)", limits.items())

    def decided(self, what: str, job_id: int, nodes: str, time_s: float) -> int:
        """Note what is about to be done, and return its number."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO decisions (time_s, what, job_id, nodes, outcome) VALUES (?, ?, ?, ?, 'intended')",
                (time_s, what, job_id, nodes),
            )
        return int(cursor.lastrowid or 0)

    def outcome(self, decision: int, outcome: str) -> None:
        """Note what became of a decision: ``done``, or Slurm's message."""
        self._asked("UPDATE decisions SET outcome = ? WHERE number = ?", outcome, decision)

    def decisions(self) -> list[tuple[float, str, int, str, str]]:
        """Return time, kind, job, nodes and outcome of every decision, the oldest first."""
        return self._asked("SELECT time_s, what, job_id, nodes, outcome FROM decisions ORDER BY number")


def _known(row: Sequence[Any]) -> KnownJob:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    seats = {str(node): [int(gpu) for gpu in gpus] for node, gpus in json.loads(values["seats"]).items()}
    return KnownJob(**{**values, "seats": seats})
