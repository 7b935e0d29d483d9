"""The arena: rivals side by side on one simulator with contention.

    python experiments/arena/run.py                      quick: 2 seeds, small, under three minutes on two cores
    python experiments/arena/run.py --seeds 5 --all      all grounds, 5 seeds
    python experiments/arena/run.py --seeds 20 --all --jobs 120

Prints the league tables; writes them to OUT/tables and the chart to OUT/charts. Finished runs are kept in OUT/runs, so
that the same command goes on where it was stopped. ``--dask ADDRESS`` has Dask's workers do them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from bounds import bounds_of
from decisions import clocked
from grounds import DATA, GROUNDS, TRACES, Ground, imported, jobs_of
from league import chart, league
from rivals import RIVALS, Rival

import ddlsched
from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.io.progress import progress_bar

HERE = Path(__file__).parent
QUICK = ("64 GPUs, 10G", "MonkeyTree's mix, 256 GPUs", "Philly, 10G", "Alibaba, 10G")


def workload_text(ground: Ground, jobs: int, fixed_size: bool, files: dict[str, Path]) -> str:
    """Return the text that names a ground's jobs."""
    fields: dict[str, Any] = {"ground": ground.jobs, "jobs": jobs, "gpus": ground.gpus, "fixed_size": fixed_size}
    fields |= {"file": files[ground.jobs]} if ground.jobs in files else {}
    return f"{HERE / 'grounds.py'}:jobs_of:" + ",".join(f"{name}={value}" for name, value in fields.items())


def runs_of(
    grounds: Sequence[Ground], rivals: Sequence[Rival], seeds: int, jobs: int, files: dict[str, Path]
) -> list[Run]:
    """Return the runs of a league table, rivals on the same seeds."""
    return [
        Run(
            labels={"ground": ground.name, "policy": rival.name},
            workload=workload_text(ground, jobs, rival.allocates, files),
            seed=seed,
            options=rival.options(ground),
            measures=(f"{HERE / 'measures.py'}:tails",),
        )
        for ground in grounds
        for rival in rivals
        if rival.plays_on(ground)
        for seed in range(1, seeds + 1)
    ]


def costs_of(ground: Ground, jobs: int, files: dict[str, Path]) -> pd.DataFrame:
    """Return a row a rival: what it knows, and what its decisions in Python cost on the first seed of a ground."""
    rows = []
    for rival in RIVALS:
        if rival.plays_on(ground):
            file = str(files.get(ground.jobs, ""))
            workload = jobs_of(
                seed=1, ground=ground.jobs, jobs=jobs, gpus=ground.gpus, file=file, fixed_size=rival.allocates
            )
            with clocked() as spent:
                ddlsched.simulate(workload, seed=1, **rival.options(ground))
            calls, seconds = (sum(each[place] for each in spent.values()) for place in (0, 1))
            rows.append({"rival": rival.name, "knows": rival.knows, "decisions": int(calls)})
            rows[-1] |= {"ms_a_decision": 1e3 * seconds / max(calls, 1), "cpu_s": seconds}
    return pd.DataFrame(rows)


def main() -> int:
    """Run what is missing, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=40, help="of a run")
    parser.add_argument("--all", action="store_true", help="all grounds")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/arena"), metavar="DIR")
    parser.add_argument("--processes", type=int, default=-1, metavar="N", help="default: one a core")
    parser.add_argument("--dask", metavar="ADDRESS", help="of a Dask scheduler, in place of this machine")
    given = parser.parse_args()
    missing = [given.data / file for _, file, *_ in TRACES.values() if not (given.data / file).exists()]
    if missing:
        print(f"{missing[0]}: no such file; docs/traces.md says where to get it, --data where it is", file=sys.stderr)
        return 2
    files = {trace: imported(trace, given.data, given.out / "workloads") for trace in TRACES}
    grounds = [GROUNDS[name] for name in (GROUNDS if given.all else QUICK)]
    runs = runs_of(grounds, RIVALS, given.seeds, given.jobs, files)
    with progress_bar("simulating") as watch:
        done = sweep(runs, given.out / "runs", processes=given.processes, dask=given.dask, watch=watch)
    if done.failures:
        print("runs failed; no tables without them:", *map(str, done.failures), sep="\n  ", file=sys.stderr)
        return 1
    bounds = bounds_of(grounds, RIVALS, given.seeds, given.jobs, files)
    report({"league": league(done.summaries(), bounds), "costs": costs_of(grounds[0], given.jobs, files)}, given.out)
    return 0


def report(tables: dict[str, pd.DataFrame], out: Path) -> None:
    """Print the tables, write them as CSV files, and draw the chart."""
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / "tables" / f"{name}.csv", index=False, float_format="%.5g", lineterminator="\n")
        print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.4g}'.format, na_rep='-')}\n")
    print(f"Tables: {out / 'tables'}", f"Chart: {chart(tables['league'], out / 'charts')}", sep="\n")


if __name__ == "__main__":
    sys.exit(main())
