"""When does it pay to schedule the network? The map, from its first points to the picture.

    python experiments/map/run.py                       quick: 10 points, 2 seeds
    python experiments/map/run.py --full                at most 300 points, 20 seeds
    python experiments/map/run.py --full --seeds 6 --minutes 40
    python experiments/map/run.py --full --only load=0.8 --only trace=Alibaba
    python experiments/map/run.py --full --known experiments/map/expected/map.csv     goes on from this table
    python experiments/map/run.py --draw TABLE.csv      the pictures of a table, without a run

Begins with a grid and adds, where the answer changes between neighbours, what lies halfway. Finished runs are kept in
OUT/runs, so that the same command goes on where it was stopped; ``--dask ADDRESS`` has Dask's workers do them. Prints
which doors earn where; writes map.csv, answers.csv and shares.csv to OUT/tables and the pictures to OUT/charts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from answers import answers, best_placement, earning, rows_of, shares
from choosing import FURTHER, FURTHER_KINDS, NOT_OVERSUBSCRIBED, PUBLISHED, QUICK, START, UNCROWDED, grid, halfway
from doors import placements_of, trials_of
from page import page
from picture import picture
from points import Point
from traces import DATA, PUBLIC_TRACES, imported, trace_points

from ddlsched.comparisons.sweeps.sweep import Run, Sweep, sweep
from ddlsched.io.progress import progress_bar

QUICK_POINTS = 10
AT_ONCE = 6
"""Points that are simulated together; the answer to one decides about others."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """How runs are carried out, and where they are kept."""

    folder: Path
    seeds: int
    processes: int
    dask: str | None
    files: Mapping[str, Path]

    def rows(self, points: Sequence[Point]) -> Iterator[tuple[Point, pd.DataFrame]]:
        """Yield the rows of each point; a policy of which a run failed has no change."""
        placed = self._done({point: placements_of(point) for point in points})
        best = {point: best_placement(placed[point]) for point in points}
        tried = self._done({point: trials_of(point, best[point]) for point in points})
        for point in points:
            yield point, pd.DataFrame(rows_of(point, best[point], pd.concat([placed[point], tried[point]])))

    def _done(self, wanted: Mapping[Point, Mapping[str, dict]]) -> dict[Point, pd.DataFrame]:
        runs = [
            Run(
                labels={"point": point.name, "policy": policy},
                workload=point.workload(self.files),
                seed=seed,
                options=options,
            )
            for point, policies in wanted.items()
            for policy, options in policies.items()
            for seed in range(1, self.seeds + 1)
        ]
        with progress_bar("simulating") as watch:
            done: Sweep = sweep(runs, self.folder, processes=self.processes, dask=self.dask, watch=watch)
        for failure in done.failures:
            print(failure, file=sys.stderr)
        summaries = done.summaries()
        return {point: summaries[summaries["point"] == point.name] for point in wanted}


def only(points: Sequence[Point], wanted: Sequence[str]) -> list[Point]:
    """Return the points that have on each axis that is named one of its wanted values, such as ``load=0.8``."""
    values: dict[str, list[str]] = {}
    for text in wanted:
        axis, _, value = text.partition("=")
        values.setdefault(axis, []).append(value)
    return [point for point in points if all(_text(point.axes[axis]) in some for axis, some in values.items())]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows_in(file: Path) -> pd.DataFrame:
    """Return the rows of a map's table."""
    return pd.read_csv(file, dtype={"load": str, "trace": str}).fillna({"trace": ""})


def known_points(files: Sequence[Path], seeds: int) -> dict[Point, pd.DataFrame]:
    """Return the rows of each point that the tables have with at least so many seeds; the last table's count."""
    axes = list(Point.__dataclass_fields__)
    numbers = dict.fromkeys(("gbps", "oversubscription", "interference"), float)
    known = {}
    for table in map(rows_in, files):
        for _, rows in table[table["seeds"] >= seeds].groupby(axes, sort=False):
            (place,) = rows[axes].head(1).astype(numbers).to_dict("records")
            known[Point(**place)] = rows
    return known


def explored(
    simulated: Simulated,
    first: Sequence[Point],
    most: int,
    until_s: float,
    *,
    adding: bool = True,
    known: Mapping[Point, pd.DataFrame] | None = None,
    wanted: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the rows of the first points, and of those halfway where the answer changes, as long as time is left.

    Half of the points that are simulated together are halfway ones, if there are so many that are ``wanted`` and they
    are to be added. Those ``known`` are not simulated; their rows come first.
    """
    found = dict(known or {})
    while not found or time.monotonic() < until_s:
        differing = {point: earning(rows) for point, rows in found.items()} if adding else {}
        between = only(halfway(differing), wanted)[: AT_ONCE // 2]
        waiting = [point for point in first if point not in found and point not in between]
        batch = [*waiting[: AT_ONCE - len(between)], *between][: most - len(found)]
        if not batch:
            break
        found.update(simulated.rows(batch))
        print(f"{len(found)} points", file=sys.stderr, flush=True)
    return pd.concat(found.values(), ignore_index=True)


def report(table: pd.DataFrame, out: Path) -> None:
    """Print what earns where, write the tables and draw the pictures."""
    (out / "tables").mkdir(parents=True, exist_ok=True)
    points = answers(table)
    tables = {"map": table, "answers": points, "shares": shares(points)}
    for name, each in tables.items():
        each.to_csv(out / "tables" / f"{name}.csv", index=False, float_format="%.4g", lineterminator="\n")
    for name in ("answers", "shares"):
        print(f"## {name}\n\n{tables[name].to_string(index=False)}\n")
    drawn = [*picture(table, out / "charts"), page(table, out / "charts")]
    print(f"Tables: {out / 'tables'}", "Pictures:", *drawn, sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the whole map, and the traces")
    parser.add_argument("--seeds", type=int, metavar="N", help="a point; default: 2, with --full 20")
    parser.add_argument("--most-points", type=int, default=300, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE",
        help="points with one of the values given of each axis; those halfway only with --known",
    )
    parser.add_argument(
        "--known",
        action="append",
        type=Path,
        default=[],
        metavar="TABLE.csv",
        help="of points that are not simulated again, if it has as many seeds",
    )
    parser.add_argument("--minutes", type=float, default=360.0, metavar="M", help="begin no point later")
    parser.add_argument("--draw", type=Path, metavar="TABLE.csv", help="draw this table in place of simulating")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/map"), metavar="DIR")
    parser.add_argument("--processes", type=int, default=-1, metavar="N", help="default: one a core")
    parser.add_argument("--dask", metavar="ADDRESS", help="of a Dask scheduler, in place of this machine")
    given = parser.parse_args()
    axes = list(Point.__dataclass_fields__)
    for text in given.only:
        if text.partition("=")[0] not in axes:
            parser.error(f"--only {text}: expected AXIS=VALUE with one of {', '.join(axes)}")
    return given


def main() -> int:
    """Simulate what is missing, report."""
    given = _arguments()
    if given.draw is not None:
        report(rows_in(given.draw), given.out)
        return 0
    there = [trace for trace, (_, file, *_) in PUBLIC_TRACES.items() if given.full and (given.data / file).exists()]
    if given.full and len(there) < len(PUBLIC_TRACES):
        print(f"{given.data}: lacks traces; docs/traces.md says where to get them, --data where they are")
    files = {trace: imported(trace, given.data, given.out.resolve() / "workloads") for trace in there}
    traced = [point for point in trace_points() if point.trace in files]
    started = [*traced, *grid(PUBLISHED), *grid(NOT_OVERSUBSCRIBED), *grid(START)]
    wider = [*grid(UNCROWDED), *grid(FURTHER, FURTHER_KINDS)]
    first = only([*started, *wider] if given.full else grid(QUICK), given.only)
    simulated = Simulated(
        folder=given.out / "runs",
        seeds=given.seeds or (20 if given.full else 2),
        processes=given.processes,
        dask=given.dask,
        files=files,
    )
    most = given.most_points if given.full else QUICK_POINTS
    until_s = time.monotonic() + 60 * given.minutes
    known = known_points(given.known, simulated.seeds)
    adding = bool(known) or not given.only
    report(explored(simulated, first, most, until_s, adding=adding, known=known, wanted=given.only), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
