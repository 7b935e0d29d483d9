"""The arena: rivals side by side on one simulator with contention.

    python experiments/arena/run.py                      quick: 2 seeds, small, under three minutes on two cores
    python experiments/arena/run.py --seeds 20 --all --num-jobs 120      what is in expected/

Prints the league table and writes it to OUT/tables. Finished runs are kept in OUT/runs, so that the same command goes
on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grounds import GROUNDS, TRACES, Ground, imported
from league import bounds_of, league
from rivals import RIVALS, Rival

from ddlsched.cli.reporting import reported
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from experiments.commands import PUBLIC_DATA, new_parser, sweep_command, write_tables

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
            measures=(f"{HERE / 'league.py'}:tails",),
        )
        for ground in grounds
        for rival in rivals
        if rival.plays_on(ground)
        for seed in range(1, seeds + 1)
    ]


def main() -> int:
    """Run what is missing, report."""
    parser = new_parser(__doc__, "arena")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--num-jobs", type=int, default=40, help="of a run")
    parser.add_argument("--all", action="store_true", help="all grounds")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")

    def made(given: argparse.Namespace) -> tuple[list[Ground], dict[str, Path]]:
        files = {trace: imported(trace, given.data, given.out / "workloads") for trace in TRACES}
        return [GROUNDS[name] for name in (GROUNDS if given.all else QUICK)], files

    def runs(given: argparse.Namespace) -> list[Run]:
        grounds, files = made(given)
        return runs_of(grounds, RIVALS, given.seeds, given.num_jobs, files)

    def report(done: Sweep, given: argparse.Namespace) -> None:
        grounds, files = made(given)
        table = league(done.summaries(), bounds_of(grounds, RIVALS, given.seeds, given.num_jobs, files))
        write_tables(given.out / "tables", {"league": table}, float_format="%.5g")
        print(table.to_string(index=False, float_format="{:.4g}".format))

    with reported():
        return sweep_command(parser, runs, report)


if __name__ == "__main__":
    sys.exit(main())
