"""How long the first things take that a user does, as whole processes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from statistics import median

from benchmark_tables import DDLSCHED, Table, command_costs, say

REPEATS = 7
IMPORT = "import ddlsched"
SIMULATE = f"{IMPORT}; ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.001))"


def tables() -> Iterator[Table]:
    """Measure and yield the one table; compiled code is kept in a cache that is empty at first."""
    simulate = (sys.executable, "-c", SIMULATE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        rows = [
            row("python -c pass", (sys.executable, "-c", "pass"), None),
            row(f"python -c '{IMPORT}'", (sys.executable, "-c", IMPORT), 0.3),
            row("ddlsched --help", (*DDLSCHED, "--help"), 0.5),
            row("a first small simulation, compiling", simulate, 30.0, 1),
            row("the same later, from the cache", simulate, None),
        ]
        del os.environ["NUMBA_CACHE_DIR"]
    yield Table(title="(c) start: medians of whole processes", columns=("", "seconds", "at most", "runs"), rows=rows)


def row(name: str, command: Sequence[str], at_most_s: float | None, runs: int = REPEATS) -> tuple[object, ...]:
    say(f"start: {name}")
    return name, median(command_costs(command)[0] for _ in range(runs)), at_most_s, runs
