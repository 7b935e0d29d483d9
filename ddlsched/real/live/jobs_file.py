"""The table of jobs that ``ddlsched live`` is given."""

from __future__ import annotations

import re
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.io.tables import abbreviated, cell_number, cell_whole, csv_rows, readable
from ddlsched.real.live.programs import PROGRAMS
from ddlsched.real.live.store import StoredJob

__all__ = ["read_jobs"]

_COLUMNS = ("job_id", "program", "steps", "max_nodes")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def read_jobs(path: Path) -> list[StoredJob]:
    """Read a CSV table with the columns job_id, program, steps, max_nodes, and optionally samples_per_s.

    A program is one of ``PROGRAMS``, or the path, from the table's folder on, of a Python script that calls
    :func:`ddlsched.real.live.training.train`. ``samples_per_s`` has numbers at 1, 2, ... nodes, spaces between them.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected; also where PyTorch is missing for a program that needs it.
    """
    return readable(path, "a table of jobs (CSV)", _read)


def _read(path: Path) -> list[StoredJob]:
    from importlib.util import find_spec

    jobs: dict[str, StoredJob] = {}
    for where, row in csv_rows(path, _COLUMNS, ("samples_per_s",)):
        name, program = row["job_id"], row["program"]
        if not _NAME.fullmatch(name):
            expected = "expected up to 64 letters, digits, _ . and -, for it names a folder"
            raise InputError(f"{where}, column job_id: {abbreviated(name)}; {expected}")
        if name in jobs:
            raise InputError(f"{where}, column job_id: {name!r} is there twice; expected each name once")
        if program not in PROGRAMS:
            program = _script(where, program, path.parent)
        if program != "count" and find_spec("torch") is None:
            raise InputError(f"{where}: the program needs PyTorch; install it with: pip install 'ddlsched[real]'")
        steps = cell_whole(where, "steps", row["steps"], at_most=10_000_000)
        most, speeds = (
            cell_whole(where, "max_nodes", row["max_nodes"], 64),
            _speeds(where, row.get("samples_per_s") or ""),
        )
        jobs[name] = StoredJob(name, program, steps, most, "queued", 0, speeds)
    if not jobs:
        raise InputError(f"{path}: holds no job; expected at least one row")
    return list(jobs.values())


def _speeds(where: str, text: str) -> tuple[float, ...]:
    speeds = tuple(cell_number(where, "samples_per_s", part) for part in text.split())
    if 0.0 in speeds:
        raise InputError(f"{where}, column samples_per_s: {abbreviated(text)}; expected numbers above 0")
    return speeds


def _script(where: str, program: str, folder: Path) -> str:
    """Return the whole path of a script."""
    script = (folder / program).resolve()
    if not program.endswith(".py") or not script.is_file():
        known = ", ".join(PROGRAMS)
        raise InputError(
            f"{where}, column program: {abbreviated(program)}; expected {known}, or a script that is there"
        )
    return str(script)
