"""The Philly and ITP traces under each bundle: what contention costs, and where a contention-aware scheduler pays.

    python experiments/datacentre_traces/run.py           two windows of each trace, under two minutes on two cores
    python experiments/datacentre_traces/run.py --full    all windows

Prints the tables and writes them to OUT/tables. Finished runs are kept in OUT/runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
from parts import Imported, imported, windows
from parts import table as part_table
from regimes import REGIMES, grid
from tables import placement_table, regime_table, values

from ddlsched.cli.reporting import reported, status
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from experiments.commands import PUBLIC_DATA, new_parser, sweep_command, write_tables

BANDWIDTHS_GBPS = (10.0, 25.0, 100.0)


def report(done: Sweep, parts: pd.DataFrame, out: Path) -> None:
    """Print the tables and write them as CSV files."""
    rows = values(done.summaries())
    found = {"parts": parts, "regimes": regime_table(rows), "placements": placement_table(rows)}
    for name, table in found.items():
        print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.4g}'.format, na_rep='-')}\n")
    write_tables(out / "tables", found | {"windows": regime_table(rows, by_part=True)}, float_format="%.5g")


def main() -> int:
    """Import, run what is missing, report."""
    parser = new_parser(__doc__, "datacentre_traces")
    parser.add_argument("--full", action="store_true", help="all windows")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")
    chosen: list[Imported] = []

    def runs(given: argparse.Namespace) -> list[Run]:
        with status("importing the traces"):
            chosen.extend(imported(p, given.data, given.out / "workloads") for p in windows(full=given.full))
        return grid(chosen, REGIMES, BANDWIDTHS_GBPS)

    with reported():
        return sweep_command(parser, runs, lambda done, given: report(done, part_table(chosen), given.out))


if __name__ == "__main__":
    sys.exit(main())
