"""How long the first things take that a user does, as whole processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmark_tables import Table, say

__all__ = ["tables"]

REPEATS = 7
IMPORT = "import ddlsched"
SIMULATE = f"{IMPORT}; ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.001))"
COLUMNS = ("", "seconds", "at most", "runs")


def tables() -> Iterator[Table]:
    """Measure and yield the one table."""
    rows = [
        ("python -c pass", seconds_of_python("pass"), None, REPEATS),
        (f"python -c '{IMPORT}'", seconds_of_python(IMPORT), 0.3, REPEATS),
        ("ddlsched --help", seconds_of_help(), 0.5, REPEATS),
        *first_and_later_use(),
    ]
    yield Table(title="(c) start: medians of whole processes", columns=COLUMNS, rows=rows)


def seconds_of_python(code: str) -> float:
    say(f"start: {code}")
    return median(seconds_of([sys.executable, "-c", code]) for _ in range(REPEATS))


def seconds_of_help() -> float | None:
    """Return None where the command is not installed or does not run."""
    command = shutil.which("ddlsched", path=str(Path(sys.executable).parent)) or shutil.which("ddlsched")
    if command is None or subprocess.run([command, "--help"], capture_output=True, check=False).returncode != 0:
        return None
    say("start: ddlsched --help")
    return median(seconds_of([command, "--help"]) for _ in range(REPEATS))


def first_and_later_use() -> list[tuple[str, float, float | None, int]]:
    """Simulate a little with an empty cache of compiled code, and then again."""
    command = [sys.executable, "-c", SIMULATE]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        say("start: first simulation after installation, which compiles")
        first = seconds_of(command, environment)
        later = median(seconds_of(command, environment) for _ in range(REPEATS))
    return [
        ("a first small simulation, compiling", first, 30.0, 1),
        ("the same later, from the cache", later, None, REPEATS),
    ]


def seconds_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - begin
