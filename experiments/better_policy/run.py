"""Whole servers, narrow jobs first: beside rivals that know no lengths, and orders that do, in steady streams.

    python experiments/better_policy/run.py                                quick: 4 seeds of the two 64-GPU mixes
    python experiments/better_policy/run.py --ground Philly --seeds 20

Prints the table and writes it to OUT/tables. Finished runs are kept in OUT/runs, so that the same command goes on where
it was stopped. Test seeds are 101, 102, ...; those from 1001 on were for choosing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
from grounds import GROUNDS, Ground, jobs_of, prepare
from policies import ALL, NEW, options, plays_on

from algorithms.optimal.bound import average_jct_bound_s
from ddlsched import DataParallelIteration, Job, Workload
from ddlsched.comparisons.alone import alone_s
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.plugins.names import resolve
from ddlsched.results.statistics import by_seed, paired_change
from experiments.commands import PUBLIC_DATA, new_parser, sweep_command, write_tables

Runs: TypeAlias = Callable[[Sequence[Ground], argparse.Namespace, Path], list[Run]]
Bounds: TypeAlias = Mapping[str, Mapping[int, float]]
Tables: TypeAlias = Callable[[pd.DataFrame, Bounds], dict[str, pd.DataFrame]]
HERE = Path(__file__).parent
QUICK = ("64-GPU mix", "Other models")
TUNING_SEEDS = (1001, 1002, 1003)
FIRST_SEED = 101
"""Of those that the tables are made with; 1 to 12 were looked at before the order was chosen."""
LARGE = ("2,048-GPU Clos",)
"""Grounds with fewer seeds and without those that are absent."""
SLOW = ("CASSINI", "Crux", "Tiresias, stopping", "SRTF, stopping, HiveD")
"""They take long: fewer seeds."""
ABSENT = (*SLOW, "MonkeyTree")
"""They take long, or are for two tiers of switches."""


@lru_cache
def mean_run_s(ground: Ground, folder: Path) -> float:
    """Return the mean time alone of the jobs of the tuning seeds, seconds."""
    made = [_jobs(ground, seed, folder) for seed in TUNING_SEEDS]
    return float(np.mean([alone_s(workload, ground.cluster, ground.contention).mean() for workload in made]))


def _jobs(ground: Ground, seed: int, folder: Path) -> Workload:
    return jobs_of(seed=seed, jobs=ground.jobs, num_jobs=ground.num_jobs, folder=str(folder))


def runs_of(
    grounds: Sequence[Ground], policies: Mapping[str, Mapping[str, str]], folder: Path, seeds: Mapping[str, int]
) -> list[Run]:
    """Return the runs of the policies that play on each ground, on the same seeds.

    ``seeds`` says how many, of ``most``, ``large`` and ``slow``.
    """
    return [
        Run(
            labels={"ground": ground.name, "policy": name},
            workload=f"{HERE / 'grounds.py'}:jobs_of:jobs={ground.jobs},num_jobs={ground.num_jobs},folder={folder}",
            seed=seed,
            options=options(differs, ground, mean_run_s(ground, folder)),
            measures=(f"{HERE / 'grounds.py'}:measures",),
        )
        for ground in grounds
        for name, differs in policies.items()
        if plays_on(differs, ground) and (ground.name not in LARGE or name not in ABSENT)
        for seed in _seeds(seeds["large" if ground.name in LARGE else "slow" if name in SLOW else "most"])
    ]


def _seeds(count: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + count)


def bounds_s(ground: Ground, seeds: Iterable[int], folder: Path) -> dict[int, float]:
    """Return for each seed what no schedule's average JCT is below, seconds."""
    contention = resolve("contention", ground.contention)
    intervals = max(10, min(200, 100_000 // ground.num_jobs))
    return {
        seed: average_jct_bound_s(
            held_alone(_jobs(ground, seed, folder), ground), ground.cluster, contention, intervals=intervals
        )
        for seed in seeds
    }


def held_alone(workload: Workload, ground: Ground) -> Workload:
    """Return the jobs with iterations that the bound knows: of others it would count the compute only.

    In their place a job computes for as long as it takes alone: with one job a GPU it holds its GPUs for no less. That
    is so where no placement or path lets a job send faster than it does alone, as on racks that hold every job: all of
    its cards send at their full speed there.
    """
    seconds = alone_s(workload, ground.cluster, ground.contention).tolist()
    return Workload.of(
        [
            job if isinstance(job.iteration, DataParallelIteration) else _computing(job, job_s)
            for job, job_s in zip(workload, seconds, strict=True)
        ]
    )


def _computing(job: Job, job_s: float) -> Job:
    return replace(job, iterations=1, iteration=DataParallelIteration(forward_s=job_s, backward_s=0.0, message_bytes=0))


METRICS = {"average_jct_s": "average", "p99_jct_s": "p99"}


def compared(summaries: pd.DataFrame, new: str, bounds_s: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Return a row a ground and policy.

    ``average_jct_s``, ``p99_jct_s`` and ``stops_a_job`` are means over the policy's seeds, ``bound_s`` is that of the
    lower bounds, and ``over_bound`` the first over it. ``average_change`` and ``p99_change`` are what the new policy
    changes against this one, %, the geometric mean over these seeds, each with its 95 % interval, paired by seed. Of
    each ground ``bounds_s`` has the lower bound of each seed.
    """
    rows = []
    for ground, runs in summaries.groupby("ground", sort=False):
        for policy, own in runs.groupby("policy", sort=False):
            row = {"ground": ground, "policy": policy, "seeds": len(own)}
            row |= {name: own[name].mean() for name in (*METRICS, "stops_a_job")}
            row["bound_s"] = own["seed"].map(bounds_s[str(ground)]).mean()
            row["over_bound"] = row["average_jct_s"] / row["bound_s"]
            for metric, name in METRICS.items() if policy != new else ():
                pair = runs[runs["policy"].isin([new, policy]) & runs["seed"].isin(own["seed"])]
                values = by_seed(pair, metric)
                change = paired_change(values[new], values[policy]).scaled(100.0)
                row |= {
                    f"{name}_change": change.mean,
                    f"{name}_change_low": change.low,
                    f"{name}_change_high": change.high,
                }
            rows.append(row)
    return pd.DataFrame(rows)


def command(parser: argparse.ArgumentParser, runs: Runs, tables: Tables) -> int:
    """Do the runs of the grounds that are asked for, print their table, and write it as a CSV file."""
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--ground", action="append", choices=GROUNDS, help="these grounds")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")

    def report(done: Sweep, given: argparse.Namespace) -> None:
        summaries = done.summaries()
        played = summaries.groupby("ground")["seed"].unique()
        folder = given.out.resolve() / "workloads"
        bounds = {name: bounds_s(GROUNDS[str(name)], seeds.tolist(), folder) for name, seeds in played.items()}
        found = tables(summaries, bounds)
        write_tables(given.out / "tables", found, float_format="%.5g")
        for table in found.values():
            print(table.round(1).to_string(index=False))

    def asked(given: argparse.Namespace) -> list[Run]:
        folder = given.out.resolve() / "workloads"
        prepare(folder, given.data)
        return runs([GROUNDS[name] for name in given.ground or QUICK], given, folder)

    return sweep_command(parser, asked, report)


def main() -> int:
    """Run what is missing, report."""
    parser = new_parser(__doc__, "better_policy")
    parser.add_argument("--large-seeds", type=int, default=2, help="of the Clos (default: %(default)s)")
    parser.add_argument("--slow-seeds", type=int, default=3, help="of policies that take long (default: %(default)s)")

    def runs(grounds: Sequence[Ground], given: argparse.Namespace, folder: Path) -> list[Run]:
        counts = {"most": given.seeds, "large": given.large_seeds, "slow": min(given.slow_seeds, given.seeds)}
        return runs_of(grounds, ALL, folder, counts)

    return command(parser, runs, lambda summaries, bounds: {"comparison": compared(summaries, NEW, bounds)})


if __name__ == "__main__":
    sys.exit(main())
