"""What the commands of experiments share: their options, the folder of public data, and files of their tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddlsched.comparisons.sweeps.sweep import Run, Sweep, sweep
from ddlsched.io.progress import progress_bar

EXPERIMENTS = Path(__file__).resolve().parent
PUBLIC_DATA = next(
    (path for parent in EXPERIMENTS.parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data")
)
"""Where a checkout keeps public traces and artifacts; every command that reads them takes another folder."""
CSV: dict[str, Any] = {"index": False, "float_format": "%.9g", "lineterminator": "\n"}


def new_parser(doc: str | None, out: str) -> argparse.ArgumentParser:
    """Return the parser of a command whose files go to ``results/OUT`` by default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results") / out, metavar="DIR", help="default: %(default)s")
    return parser


def sweep_command(
    parser: argparse.ArgumentParser,
    runs: Callable[[argparse.Namespace], Sequence[Run]],
    report: Callable[[Sweep, argparse.Namespace], None],
) -> int:
    """Do the runs that are missing in ``--out``/runs, report, and return the exit status."""
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    given = parser.parse_args()
    return sweep_and_report(runs(given), given.out / "runs", given.jobs, lambda done: report(done, given))


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame], **how: Any) -> None:
    """Write each table as ``NAME.csv``; ``how`` is of :meth:`pandas.DataFrame.to_csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", **(CSV | how))


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
