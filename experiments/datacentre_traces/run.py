"""The Philly and ITP traces under each bundle: what contention costs, and where a contention-aware scheduler pays.

    python experiments/datacentre_traces/run.py           two windows of each trace, under two minutes on two cores
    python experiments/datacentre_traces/run.py --full    all windows, other scales, and the whole traces

Prints the tables; writes them to OUT/tables and the charts to OUT/charts. Finished runs are kept in OUT/runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from charts import draw
from parts import OTHER_SCALE, Imported, Part, imported, missing, whole, windows
from parts import table as part_table
from regimes import ANYWHERE, AS_BUILT, CONSOLIDATED, REGIMES, SPREAD, grid
from tables import placement_table, regime_table, values

from ddlsched.cli.output import status
from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.io.progress import progress_bar

ROOT = Path(__file__).parents[2]
DATA = next((path for parent in ROOT.parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data"))
BANDWIDTHS_GBPS = (10.0, 25.0, 100.0)
RANDOM_ON = "cluster03"
"""The window that is run with random placement too."""
BY_PART = ("random", "whole")
"""Tables with a row a part of a trace, for they have one each."""


def plan(data: Path, folder: Path, *, full: bool) -> tuple[pd.DataFrame, dict[str, list[Run]]]:
    """Import what is needed; return the table of parts, and the runs of each table of results."""

    def get(parts: Sequence[Part]) -> list[Imported]:
        found = [imported(part, data, folder) for part in parts]
        everything.extend(found)
        return found

    everything: list[Imported] = []
    chosen = get(windows(full=full))
    runs = {"regimes": grid(chosen, REGIMES, BANDWIDTHS_GBPS)}
    if full:
        longer = get([replace(part.part, scale=OTHER_SCALE) for part in chosen])
        runs["scales"] = grid(longer, [CONSOLIDATED, SPREAD], BANDWIDTHS_GBPS[:1])
        one = [part for part in [*chosen, *longer] if part.part.name == RANDOM_ON]
        runs["random"] = grid(one, [ANYWHERE], BANDWIDTHS_GBPS[:1])
        runs["whole"] = grid(get([whole()]), [AS_BUILT], BANDWIDTHS_GBPS[:1])
    return part_table(everything), runs


def tables(parts: pd.DataFrame, runs: dict[str, list[Run]], out: Path, processes: int) -> dict[str, pd.DataFrame]:
    """Simulate what ``out`` does not hold yet, and return the tables by name.

    Raises
    ------
    RuntimeError
        A run failed.
    """
    found = {"parts": parts}
    with progress_bar("simulating") as watch:
        done = sweep([run for each in runs.values() for run in each], out / "runs", processes=processes, watch=watch)
    if done.failures:
        raise RuntimeError("\n  ".join(["runs failed; no tables without them:", *map(str, done.failures)]))
    measured, start = values(done.summaries()), 0
    for name, each in runs.items():
        rows, start = measured.iloc[start : start + len(each)], start + len(each)
        found[name] = regime_table(rows, by_part=name in BY_PART)
        if name == "regimes":
            found |= {"placements": placement_table(rows), "windows": regime_table(rows, by_part=True)}
    return found


def report(found: dict[str, pd.DataFrame], out: Path) -> None:
    """Print the tables, write them as CSV files, and draw the charts."""
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for name, table in found.items():
        table.to_csv(out / "tables" / f"{name}.csv", index=False, float_format="%.5g", lineterminator="\n")
        if name != "windows":  # long, and summed up in the others
            print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.4g}'.format, na_rep='-')}\n")
    drawn = draw(found["regimes"], out / "charts")
    print(f"Tables: {out / 'tables'}", "Charts:", *drawn, sep="\n  ")


def main() -> int:
    """Import, run what is missing, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all windows, other scales, and the whole traces")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/datacentre_traces"), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    arguments = parser.parse_args()
    if absent := missing(arguments.data):
        print(f"{absent[0]}: no such file; docs/traces.md says where to get it, --data where it is", file=sys.stderr)
        return 2
    with status("importing the traces"):
        parts, runs = plan(arguments.data, arguments.out / "workloads", full=arguments.full)
    try:
        found = tables(parts, runs, arguments.out, arguments.jobs)
    except KeyboardInterrupt:
        print("Stopped. Finished runs are kept; the same command goes on from there.", file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    report(found, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
