"""Whole servers, narrow jobs first: beside rivals that know no lengths, and orders that do, in steady streams.

    python experiments/better_policy/run.py                    quick: 4 seeds of the two 64-GPU mixes
    python experiments/better_policy/run.py --all --seeds 20   all grounds
    python experiments/better_policy/run.py --ablation         the policy with one part changed, on the two mixes

Prints the tables; writes them to OUT/tables and the chart to OUT/charts. Finished runs are kept in OUT/runs, so that
the same command goes on where it was stopped. Test seeds are 101, 102, ...; those from 1001 on were for choosing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from grounds import GROUNDS, Ground, jobs_of, prepare
from policies import ABLATION, ALL, KNOWING, NEW, OURS, RIVALS, options, plays_on
from tables import chart, compared, shown, standings

from algorithms.optimal.bound import average_jct_bound_s
from ddlsched import DataParallelIteration, Job, Workload
from ddlsched.comparisons.alone import alone_s
from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.io.progress import progress_bar
from ddlsched.plugins.names import resolve

HERE = Path(__file__).parent
DATA = next((path for parent in HERE.parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data"))
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


def main() -> int:
    """Run what is missing, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--large-seeds", type=int, default=2, help="of the Clos (default: %(default)s)")
    parser.add_argument("--slow-seeds", type=int, default=3, help="of policies that take long (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="all grounds")
    parser.add_argument("--ground", action="append", choices=GROUNDS, help="these grounds")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/better_policy"), metavar="DIR")
    parser.add_argument("--processes", type=int, default=-1, metavar="N", help="default: one a core")
    given = parser.parse_args()
    folder = given.out.resolve() / "workloads"
    prepare(folder, given.data)
    grounds = [GROUNDS[name] for name in given.ground or (GROUNDS if given.all else QUICK)]
    policies = OURS | ABLATION if given.ablation else ALL
    counts = {"most": given.seeds, "large": given.large_seeds, "slow": min(given.slow_seeds, given.seeds)}
    runs = runs_of(grounds, policies, folder, counts)
    with progress_bar("simulating") as watch:
        done = sweep(runs, given.out / "runs", processes=given.processes, watch=watch)
    if done.failures:
        print("runs failed; no tables without them:", *map(str, done.failures), sep="\n  ", file=sys.stderr)
        return 1
    summaries = done.summaries()
    played = summaries.groupby("ground")["seed"].unique()
    bounds = {ground.name: bounds_s(ground, played[ground.name].tolist(), folder) for ground in grounds}
    table = compared(summaries, NEW, bounds)
    name = "ablation" if given.ablation else "comparison"
    (given.out / "tables").mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out / "tables" / f"{name}.csv", index=False, float_format="%.5g", lineterminator="\n")
    print(shown(table), f"Table: {given.out / 'tables' / name}.csv", sep="\n")
    if not given.ablation:
        print(standings(table, NEW, RIVALS, KNOWING))
        print("Chart:", chart(table, [*RIVALS, *KNOWING], given.out / "charts"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
