"""Sweeps of scripts: with a progress bar, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ddlsched.comparisons.sweeps.sweep import Run, Sweep, sweep
from ddlsched.io.progress import progress_bar

__all__ = ["sweep_and_report"]


def sweep_and_report(runs: Sequence[Run], folder: Path, processes: int, report: Callable[[Sweep], None]) -> int:
    """Do the runs that ``folder`` does not hold yet, report if none failed, and return the exit status.

    It is 130 if the user interrupted the runs and 1 if some failed; what happened is then on stderr.
    """
    try:
        with progress_bar("simulating") as watch:
            done = sweep(runs, folder, processes=processes, watch=watch)
    except KeyboardInterrupt:
        print(f"Stopped. Finished runs are kept in {folder}; the same command goes on from there.", file=sys.stderr)
        return 130
    if done.failures:
        print(f"{len(done.failures)} runs failed; no tables without them:", *done.failures, sep="\n  ", file=sys.stderr)
        return 1
    report(done)
    return 0
