"""The live manager's jobs: the table that it is given, and its memory in SQLite, safe against a kill at any moment."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from ddlsched.errors import InputError, abbreviated, need
from ddlsched.io.tables import cell_number, cell_whole, csv_rows, readable
from ddlsched.real.live.worker import PROGRAMS
from ddlsched.real.state_folder import Database

_TABLE = ("job_id", "program", "steps", "max_nodes")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def read_jobs(path: Path) -> list[StoredJob]:
    """Read a CSV table with the columns job_id, program, steps, max_nodes, and optionally min_nodes, samples_per_s.

    A program is one of ``PROGRAMS``, or the path, from the table's folder on, of a Python script that calls
    :func:`ddlsched.real.live.training.train`. ``samples_per_s`` has numbers at 1, 2, ... nodes, spaces between them.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected; also where PyTorch is missing for a program that needs it.
    """
    return readable(path, "a table of jobs (CSV)", _read)


def _read(path: Path) -> list[StoredJob]:
    jobs: dict[str, StoredJob] = {}
    for where, row in csv_rows(path, _TABLE, ("min_nodes", "samples_per_s")):
        name, program = row["job_id"], row["program"]
        if not _NAME.fullmatch(name):
            expected = "expected up to 64 letters, digits, _ . and -, for it names a folder"
            raise InputError(f"{where}, column job_id: {abbreviated(name)}; {expected}")
        if name in jobs:
            raise InputError(f"{where}, column job_id: {name!r} is there twice; expected each name once")
        if program not in PROGRAMS:
            program = _script(where, program, path.parent)
        if program != "count":
            need(f"{where}: the program", "torch", extra="real")
        steps = cell_whole(where, "steps", row["steps"], at_most=10_000_000)
        most = cell_whole(where, "max_nodes", row["max_nodes"], 64)
        speeds = (row.get("samples_per_s") or "").split()
        speeds = tuple(cell_number(where, "samples_per_s", speed, positive=True) for speed in speeds)
        fewest = cell_whole(where, "min_nodes", row["min_nodes"], most) if row.get("min_nodes") else 1
        jobs[name] = StoredJob(name, program, steps, most, "queued", 0, speeds, fewest)
    if not jobs:
        raise InputError(f"{path}: holds no job; expected at least one row")
    return list(jobs.values())


def _script(where: str, program: str, folder: Path) -> str:
    """Return the whole path of a script."""
    script = (folder / program).resolve()
    if not program.endswith(".py") or not script.is_file():
        known = ", ".join(PROGRAMS)
        raise InputError(f"{where}, column program: {abbreviated(program)}; expected {known}, or an existing script")
    return str(script)


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

    ``samples_per_s`` is what its user says of it at 1, 2, ... nodes, ``min_nodes`` on how many it trains at least;
    they are not stored.
    """

    job_id: str
    program: str
    steps: int
    max_nodes: int
    state: str
    generation: int
    samples_per_s: tuple[float, ...] = ()
    min_nodes: int = 1


class JobStore(Database):
    """A queue that outlives its manager.

    A job's steps and weights are not here but in what its processes commit: so a manager that is killed between a
    job's end and its note of it finds the committed end when it comes back. Tokens are in memory alone: a manager that
    comes back believes nothing that processes of the one before say.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _SCHEMA, "cannot be used ({}); expected a file for the state of jobs")
        self._fault = (
            "the state of jobs cannot be kept ({}); what is committed stays: make room, then start again to go on"
        )
        self._tokens: dict[str, str] = {}

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
        return [StoredJob(*row) for row in self._asked(f"SELECT {_COLUMNS} FROM jobs ORDER BY place")]

    def requeue(self, state: str) -> list[str]:
        """Put jobs back in the queue and return them: those that a dead manager ran, or that were given up.

        What they have committed holds.
        """
        with self._transaction() as db:
            there = db.execute("SELECT job_id FROM jobs WHERE state = ? ORDER BY place", (state,)).fetchall()
            db.execute("UPDATE jobs SET state = 'queued' WHERE state = ?", (state,))
        return [row[0] for row in there]

    def start(self, job_id: str) -> str:
        """Note that a job has processes (again); return a new token for what they report."""
        self._asked("UPDATE jobs SET state = 'running' WHERE job_id = ? AND state IN ('queued', 'running')", job_id)
        self._tokens[job_id] = secrets.token_hex(16)
        return self._tokens[job_id]

    def regroup(self, job_id: str) -> int:
        """Note that a job's processes form another group; return its generation, which no group before has had."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET generation = generation + 1 WHERE job_id = ?", (job_id,))
            found = db.execute("SELECT generation FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return int(found[0])

    def end(self, job_id: str, state: str) -> None:
        """Note that a job has no processes now: it waits (``queued``), is ``finished``, or given up (``failed``)."""
        self._tokens.pop(job_id, None)
        self._asked("UPDATE jobs SET state = ? WHERE job_id = ?", state, job_id)

    def token_of(self, job_id: str) -> str | None:
        """Return the token of the job's processes of now, or None if it has none."""
        return self._tokens.get(job_id)
