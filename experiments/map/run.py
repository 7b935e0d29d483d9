"""Which part of a scheduler pays on which cluster? The map, from full-size jobs to the picture.

    python experiments/map/run.py                       quick: 4 points, 2 seeds
    python experiments/map/run.py --full --seeds 20     what is in expected/, where fine-tuning has 10
    python experiments/map/run.py --full --only load=0.8 --only mix=CNNs
    python experiments/map/run.py --draw TABLE.csv      tables and picture of a table, without a run

Finished runs are kept in OUT/runs, so that the same command goes on where it was stopped. Prints which parts earn
where; writes map.csv and shares.csv to OUT/tables and the picture to OUT/charts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from answers import best_placement, placements_of, rows_of, shares, trials_of
from picture import picture
from points import POINTS, QUICK, Point

from ddlsched.cli.reporting import reported
from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.errors import InputError
from ddlsched.io.progress import progress_bar
from experiments.commands import new_parser, write_tables


def rows(points: Sequence[Point], folder: Path, seeds: int, processes: int) -> pd.DataFrame:
    """Simulate points and return the rows of each."""

    def done(wanted: Mapping[Point, Mapping[str, dict[str, Any]]]) -> dict[Point, pd.DataFrame]:
        runs = [
            Run(labels={"point": point.name, "policy": policy}, workload=point.workload(), seed=seed, options=options)
            for point, policies in wanted.items()
            for policy, options in policies.items()
            for seed in range(1, seeds + 1)
        ]
        with progress_bar("simulating") as watch:
            found = sweep(runs, folder, processes=processes, watch=watch)
        if found.failures:
            raise InputError("\n".join(str(failure) for failure in found.failures))
        return dict(list(found.summaries().groupby("point")))

    placed = done({point: placements_of(point) for point in points})
    best = {point: best_placement(placed[point.name]) for point in points}
    tried = done({point: trials_of(point, best[point]) for point in points})
    both = {point: pd.concat([placed[point.name], tried[point.name]]) for point in points}
    return pd.DataFrame([row for point in points for row in rows_of(point, best[point], both[point])])


def only(points: Sequence[Point], wanted: Sequence[str]) -> list[Point]:
    """Return the points that have on each axis that is named one of its wanted values, such as ``load=0.8``."""
    values: dict[str, set[str]] = {}
    for text in wanted:
        axis, _, value = text.partition("=")
        values.setdefault(axis, set()).add(value)
    return [point for point in points if all(_text(point.axes[axis]) in some for axis, some in values.items())]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def report(table: pd.DataFrame, out: Path) -> None:
    """Print what earns where, write the tables and draw the picture."""
    counted = shares(table)
    write_tables(out / "tables", {"map": table, "shares": counted}, float_format="%.4g")
    print(counted.to_string(index=False))
    print(f"Tables: {out / 'tables'}", "Pictures:", *picture(table, out / "charts"), sep="\n")


def main() -> int:
    """Simulate what is missing, report."""
    parser = new_parser(__doc__, "map")
    parser.add_argument("--full", action="store_true", help="all points")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="a point; default: %(default)s")
    parser.add_argument("--only", action="append", default=[], metavar="AXIS=VALUE", help="points with these values")
    parser.add_argument("--draw", type=Path, metavar="TABLE.csv", help="draw this table in place of simulating")
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    given: argparse.Namespace = parser.parse_args()
    axes = list(Point.__dataclass_fields__)
    for text in given.only:
        if text.partition("=")[0] not in axes:
            parser.error(f"--only {text}: expected AXIS=VALUE with one of {', '.join(axes)}")
    with reported():
        if given.draw is not None:
            report(pd.read_csv(given.draw, dtype={"load": str}), given.out)
        else:
            chosen = only(POINTS if given.full else QUICK, given.only)
            report(rows(chosen, given.out / "runs", given.seeds, given.jobs), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
