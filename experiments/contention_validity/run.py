"""Contention models against measurements: pairs of jobs, concurrent all-reduces, placements.

    python experiments/contention_validity/run.py [--data DIR] [--halves N] [--out DIR]

Prints the tables and writes them to OUT/tables. Without the measurements it says where it looked for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import latencies
import measured
import numpy as np
import pairs
import pandas as pd
import placements

from ddlsched.cli.reporting import status
from experiments.commands import PUBLIC_DATA, new_parser, write_tables

HALVES = 50
PLAIN = {"no contention", "one mean", "by row and column", "no communication", "mean by batch"}
"""What is predicted without simulating anything."""
BASELINES = {
    "pairs": "equal share = max-min",
    "latencies": "linear, preset 1gbe",
    "placements": "linear (whole message)",
}


def summary(data_set: str, errors: pd.DataFrame) -> pd.DataFrame:
    """Return mean and 95 % range over halves of each model's tested error, and of its difference to the baseline's.

    ``errors`` has a row a half and a column a model.
    """
    baseline = errors[BASELINES[data_set]]
    rows = []
    for model in errors.columns:
        low, high = np.quantile(errors[model], [0.025, 0.975])
        difference = errors[model] - baseline
        less, more = np.quantile(difference, [0.025, 0.975])
        rows.append(
            {
                "data": data_set,
                "model": model,
                "error": errors[model].mean(),
                "low": low,
                "high": high,
                "less_baseline": difference.mean(),
                "less_baseline_low": less,
                "less_baseline_high": more,
                "simulated": model not in PLAIN,
            }
        )
    return pd.DataFrame(rows)


PARTS: dict[str, Callable[[Path, int], pd.DataFrame]] = {
    "latencies": lambda data, number: latencies.errors(measured.latencies(data), number),
    "pairs": lambda data, number: pairs.errors(measured.pairs(data), number),
    "placements": lambda data, number: (
        placements.errors(measured.placements(data), number).groupby("half").mean(numeric_only=True)
    ),
}
"""Of each data set the tested error, a row a half and a column a model."""


def report(data: Path, number: int, out: Path) -> dict[str, pd.DataFrame]:
    """Carry out all parts, write tables into ``out``/tables, and return those."""
    found = []
    for name, part in PARTS.items():
        with status(f"{name}: simulating and fitting"):
            found.append(summary(name, part(data, number)))
    alone = latencies.alone_table(measured.alone(data))
    tables = {"errors": pd.concat(found, ignore_index=True), "latencies_alone": alone}
    write_tables(out / "tables", tables, float_format="%.4g")
    return tables


def main() -> int:
    """Compute, print, write."""
    parser = new_parser(__doc__, "contention_validity")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--halves", type=int, default=HALVES, metavar="N", help="random halves; default: %(default)s")
    given = parser.parse_args()
    if given.halves < 2:
        parser.error("--halves: expected at least 2")
    if absent := measured.missing(given.data):
        print(
            f"{absent[0]}: the measurements are not there; get them as README.md says and give their folder by --data",
            file=sys.stderr,
        )
        return 2
    for name, table in report(given.data, given.halves, given.out).items():
        print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.4g}'.format, na_rep='-')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
