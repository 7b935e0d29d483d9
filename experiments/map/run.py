"""When does it pay to schedule the network? The map: every point of the committed table, to the picture.

    python experiments/map/run.py                       quick: 10 points, 2 seeds
    python experiments/map/run.py --full                the 51 points of expected/map.csv, 20 seeds
    python experiments/map/run.py --full --only load=0.8 --only trace=Alibaba
    python experiments/map/run.py --draw TABLE.csv      tables and picture of a table, without a run

Finished runs are kept in OUT/runs, so that the same command goes on where it was stopped. Prints which doors earn
where; writes map.csv, answers.csv and shares.csv to OUT/tables and the picture to OUT/charts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from answers import answers, best_placement, rows_of, shares
from doors import placements_of, trials_of
from picture import picture
from points import Point, imported

from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.io.progress import progress_bar
from experiments.commands import PUBLIC_DATA, new_parser, write_tables
from experiments.public_traces import PUBLIC_TRACES

COMMITTED = Path(__file__).parent / "expected" / "map.csv"
QUICK_POINTS = 10


def rows(points: Sequence[Point], folder: Path, seeds: int, files: Mapping[str, Path], processes: int) -> pd.DataFrame:
    """Simulate points and return the rows of each; a policy of which a run failed has no change."""

    def done(wanted: Mapping[Point, Mapping[str, dict]]) -> dict[Point, pd.DataFrame]:
        runs = [
            Run(
                labels={"point": point.name, "policy": policy},
                workload=point.workload(files),
                seed=seed,
                options=options,
            )
            for point, policies in wanted.items()
            for policy, options in policies.items()
            for seed in range(1, seeds + 1)
        ]
        with progress_bar("simulating") as watch:
            found = sweep(runs, folder, processes=processes, watch=watch)
        print(*found.failures, sep="\n", file=sys.stderr)
        summaries = found.summaries()
        return {point: summaries[summaries["point"] == point.name] for point in wanted}

    placed = done({point: placements_of(point) for point in points})
    best = {point: best_placement(placed[point]) for point in points}
    tried = done({point: trials_of(point, best[point]) for point in points})
    both = {point: pd.concat([placed[point], tried[point]]) for point in points}
    return pd.DataFrame([row for point in points for row in rows_of(point, best[point], both[point])])


def rows_in(file: Path) -> pd.DataFrame:
    """Return the rows of a map's table."""
    return pd.read_csv(file, dtype={"load": str, "trace": str}).fillna({"trace": ""})


def points_in(file: Path) -> list[Point]:
    """Return the points of a map's table."""
    numbers = dict.fromkeys(("gbps", "oversubscription", "interference"), float)
    places = rows_in(file)[list(Point.__dataclass_fields__)].drop_duplicates().astype(numbers)
    return [Point(**place) for place in places.to_dict("records")]


def only(points: Sequence[Point], wanted: Sequence[str]) -> list[Point]:
    """Return the points that have on each axis that is named one of its wanted values, such as ``load=0.8``."""
    values: dict[str, list[str]] = {}
    for text in wanted:
        axis, _, value = text.partition("=")
        values.setdefault(axis, []).append(value)
    return [point for point in points if all(_text(point.axes[axis]) in some for axis, some in values.items())]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def report(table: pd.DataFrame, out: Path) -> None:
    """Print what earns where, write the tables and draw the picture."""
    points = answers(table)
    tables = {"map": table, "answers": points, "shares": shares(points)}
    write_tables(out / "tables", tables, float_format="%.4g")
    for name in ("answers", "shares"):
        print(f"## {name}\n\n{tables[name].to_string(index=False)}\n")
    print(f"Tables: {out / 'tables'}", "Pictures:", *picture(table, out / "charts"), sep="\n")


def main() -> int:
    """Simulate what is missing, report."""
    parser = new_parser(__doc__, "map")
    parser.add_argument("--full", action="store_true", help="all points of the committed table")
    parser.add_argument("--seeds", type=int, metavar="N", help="a point; default: 2, with --full 20")
    parser.add_argument("--only", action="append", default=[], metavar="AXIS=VALUE", help="points with these values")
    parser.add_argument("--draw", type=Path, metavar="TABLE.csv", help="draw this table in place of simulating")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    given = parser.parse_args()
    axes = list(Point.__dataclass_fields__)
    for text in given.only:
        if text.partition("=")[0] not in axes:
            parser.error(f"--only {text}: expected AXIS=VALUE with one of {', '.join(axes)}")
    if given.draw is not None:
        report(rows_in(given.draw), given.out)
        return 0
    there = {trace for trace, (_, file, *_) in PUBLIC_TRACES.items() if given.full and (given.data / file).exists()}
    if given.full and len(there) < len(PUBLIC_TRACES):
        print(f"{given.data}: lacks traces; docs/traces.md says where to get them, --data where they are")
    files = {trace: imported(trace, given.data, given.out.resolve() / "workloads") for trace in sorted(there)}
    points = [point for point in points_in(COMMITTED) if not point.trace or point.trace in files]
    chosen = only(points if given.full else points[:QUICK_POINTS], given.only)
    report(rows(chosen, given.out / "runs", given.seeds or (20 if given.full else 2), files, given.jobs), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
