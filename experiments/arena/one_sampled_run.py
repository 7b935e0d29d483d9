"""What one sampled run is worth where placement reacts: the same runs sampled and exact, on the arena's grounds.

    python experiments/arena/one_sampled_run.py                                          quick: 2 seeds of 40 jobs
    python experiments/arena/one_sampled_run.py --seeds 20 --ground Fine-tuning --only "FIFO, first-fit"

Prints a row a ground and rival and writes it to OUT/tables/sampled.csv: ``rms`` of the average JCT of one sampled run
against the exact one of its seed, ``change`` of its geometric mean over seeds, with a 95 % interval.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from grounds import GROUNDS, TRACES, imported
from league import by_seeds, of_ground
from rivals import BASELINE, RIVALS
from run import QUICK_JOBS, TUNED, runs_of

from ddlsched.cli.reporting import reported
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.statistics import paired_change
from experiments.commands import PUBLIC_DATA, new_parser, sweep_command, write_tables


def both_ways(runs: Sequence[Run]) -> list[Run]:
    """Return each run sampled and exact."""
    return [
        replace(run, labels={**run.labels, "sampled": str(sampled)}, options={**run.options, "sample": sampled})
        for run in runs
        for sampled in (False, True)
    ]


def off_exact(done: Sweep) -> pd.DataFrame:
    """Return a row a ground and rival: how far the average JCTs of its sampled runs are from the exact ones."""
    both = {sampled: by_seeds(runs) for sampled, runs in done.summaries().groupby("sampled")}
    rows = []
    for ground in both["True"]["ground"].unique():
        one, other = of_ground(both["True"], ground), of_ground(both["False"], ground)
        for name in one:
            change, off = paired_change(one[name], other[name]), one[name] / other[name] - 1
            row = {"ground": ground, "policy": name, "seeds": change.seeds, "rms": (off**2).mean() ** 0.5}
            rows.append(row | {"change": change.mean, "change_low": change.low, "change_high": change.high})
    return pd.DataFrame(rows)


def main() -> int:
    """Run what is missing, report."""
    parser = new_parser(__doc__, "arena")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ground", action="append", choices=GROUNDS, help="these grounds, whole; default: Fine-tuning")
    parser.add_argument("--only", default=f"^{BASELINE}$", metavar="REGEX", help="rivals whose names it matches")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")

    def runs(given: argparse.Namespace) -> list[Run]:
        folder = given.out.resolve() / "workloads"
        grounds = [GROUNDS[name] for name in given.ground or ("Fine-tuning",)]
        for trace in {ground.jobs for ground in grounds} & {*TRACES}:
            imported(trace, given.data, folder)
        rivals = [rival for rival in RIVALS if re.search(given.only, rival.name)]
        jobs = 10**6 if given.ground else QUICK_JOBS
        return both_ways(runs_of(grounds, rivals, given.seeds, jobs, folder, pd.read_csv(TUNED)))

    def report(done: Sweep, given: argparse.Namespace) -> None:
        table = off_exact(done)
        write_tables(given.out / "tables", {"sampled": table}, float_format="%.5g")
        print(table.to_string(index=False, float_format="{:.4g}".format))

    with reported():
        return sweep_command(parser, runs, report)


if __name__ == "__main__":
    sys.exit(main())
