"""The arena: rivals side by side on one simulator with contention.

    python experiments/arena/run.py                        quick: 2 seeds of 40 jobs on four grounds
    python experiments/arena/run.py --tune                 tunes on seeds from 1001 on, prints and writes tuned.csv
    python experiments/arena/run.py --seeds 6 --ground "64-GPU mix"      one ground of what is in expected/
    python experiments/arena/run.py --seeds 3 --ground Philly --only "FIFO|HiveD"   some rivals
    python experiments/arena/run.py --leads                league and leads of expected/ by its seeds, without a run
    python experiments/arena/run.py --seeds 20 --ground Philly --topology star      on another network
    python experiments/arena/run.py --parts --seeds 10 --ground Fine-tuning   what each part of make-room earns

Prints the league table and writes it to OUT/tables, beside the rows of other grounds and rivals that are there, and of
more seeds, unless they are of other jobs. Finished runs are kept in OUT/runs, so that the same command goes on where it
was stopped.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from grounds import GROUNDS, TRACES, TUNING_SEED, Ground, imported
from league import beside_same_jobs, bounds_of, by_seeds, facts_of, fingerprints_of, league, who_leads
from parts import PARTS, without_parts
from rivals import BASELINE, DEFAULTS, OURS, RIVALS, ROUND_S, Rival

from ddlsched.cli.reporting import reported
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.comparisons.tuning import tune
from experiments.commands import PUBLIC_DATA, new_parser, sweep_command, write_tables

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
TUNED = EXPECTED / "tuned.csv"
QUICK = ("64-GPU mix", "MonkeyTree's mix", "Philly", "Fine-tuning")
QUICK_JOBS = 40
TRIALS, TUNING_SEEDS = 8, 3
"""What every rival that has numbers is given on each ground; the first trial is its authors' numbers."""


def tuned_values(ground: Ground, table: pd.DataFrame) -> dict[str, float]:
    """Return the tuned numbers of a ground, without those that do harm on the seeds of tuning and held out together."""
    own = table[(table["ground"] == ground.name) & (table["change"] + table["held_out_change"] <= 0)]
    return dict(zip(own["number"], own["value"].astype(float), strict=True))


def runs_of(
    grounds: Sequence[Ground], rivals: Sequence[Rival], seeds: int, jobs: int, folder: Path, tuned: pd.DataFrame
) -> list[Run]:
    """Return the runs of a league table, rivals on the same seeds."""
    return [
        Run(
            labels={"ground": ground.name, "policy": rival.name},
            workload=ground.workload(jobs, rival.allocates, folder),
            seed=seed,
            options=rival.options(ground, tuned_values(ground, tuned)),
        )
        for ground in grounds
        for rival in rivals
        if rival.plays_on(ground)
        for seed in range(1, seeds + 1)
    ]


def tuned_on(ground: Ground, rival: Rival, jobs: int, folder: Path, processes: int) -> list[dict[str, object]]:
    """Return a row a number of a rival that is tuned on a ground: its value, and what it changes of the average JCT."""
    given = {"low": 100.0, "high": 1e6, "short": ROUND_S / 4, "long": ROUND_S * 4}
    options = rival.options(ground) | {"sample": True}  # exact runs only judge
    policies = {door: options.pop(door) for door in rival.differs}
    found = tune(
        ground.workload(jobs, rival.allocates, folder),
        policies,
        ranges=[text.format(**given) for text in rival.tunes],
        trials=TRIALS,
        seeds=range(TUNING_SEED, TUNING_SEED + TUNING_SEEDS),
        held_out=range(TUNING_SEED + TUNING_SEEDS, TUNING_SEED + 2 * TUNING_SEEDS),
        options=options,
        folder=folder / "tuning" / f"{ground.jobs}-{rival.name}".replace(" ", "-"),
        processes=processes,
    )
    row = {"ground": ground.name, "policy": rival.name, "trials": len(found.trials), "seeds": TUNING_SEEDS}
    row |= {"change": found.tuning_change, "held_out_change": found.held_out_change}
    return [
        row | {"number": number, "untuned": DEFAULTS[number], "value": value}
        for field, value in found.values.items()
        for own in [field.partition(".")[2]]
        for number in [own if own in DEFAULTS else f"{rival.name.lower()}_s"]
    ]


_TUNED_ON = ("whole racks", OURS, "SRSF, LWF-1", "Muri-S", "Lucid", "Crux, first-fit", "MLTCP", "CASSINI")


def tuned_on_all(
    grounds: Sequence[Ground], rivals: Sequence[Rival], jobs: int, folder: Path, processes: int
) -> pd.DataFrame:
    """Return the rows of all grounds; a part is tuned in one entrant, and has these numbers in every other."""
    tuned = [rival for rival in rivals if rival.tunes and (rival.allocates or rival.name.endswith(_TUNED_ON))]
    rows = []
    for ground in grounds:
        for rival in (rival for rival in tuned if rival.plays_on(ground)):
            found = tuned_on(ground, rival, jobs, folder, processes)
            print(*found, sep="\n", flush=True)
            rows += found
    return pd.DataFrame(rows)


def as_written(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table as its file is read again, so that what is made of it is made alike of the file."""
    return pd.read_csv(io.StringIO(table.to_csv(index=False, float_format="%.5g")))


def beside_other_grounds(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the rows of a file, if it is there, that are of other grounds, and a table's, in the file's order."""
    there = pd.read_csv(path) if path.exists() else table[:0]
    places = list(dict.fromkeys([*there["ground"], *table["ground"]]))
    both = pd.concat([there[~there["ground"].isin(table["ground"])], as_written(table)], ignore_index=True)
    return both.sort_values("ground", key=lambda names: names.map(places.index), kind="stable", ignore_index=True)


def beside_others(table: pd.DataFrame, path: Path, *, whole: bool = False) -> pd.DataFrame:
    """Return the rows of a file, if it is there, that are of other grounds and rivals or of more seeds, and a table's.

    A whole ground takes the place of what the file has of it. Rows that stay say nothing of :data:`OURS` and of
    the tail of :data:`BASELINE` where these have new ones of another 99th percentile; rows that are played without
    :data:`OURS` and have the same 99th percentile as before say what they said. Grounds come in the file's order, new
    ones last, and on each the rivals in theirs.
    """
    table = as_written(table.rename(columns=str))
    there = pd.read_csv(path) if path.exists() else table[:0]
    there = there[there["policy"].isin([rival.name for rival in RIVALS])]
    if whole:
        there = there[~there["ground"].isin(table["ground"])]
    places = [list(dict.fromkeys([*there["ground"], *table["ground"]])), [rival.name for rival in RIVALS]]
    both = pd.concat([there, table], ignore_index=True)
    ours = both.columns[both.columns.str.startswith("ours_")]
    again = both["policy"].isna()
    if "p99_jct_s" in both:
        again = both.duplicated(["ground", "policy", "p99_jct_s"])
        both[ours] = both.groupby(["ground", "policy", "p99_jct_s"])[ours].ffill()
    seeds = both["seeds"] if "seeds" in both else both.notna().sum(axis=1)
    both = both.loc[seeds.sort_values(kind="stable").index].drop_duplicates(["ground", "policy"], keep="last")
    new = both.index >= len(there)
    for name, told in ((OURS, ours), (BASELINE, both.columns[both.columns.str.startswith("p99_change")])):
        anew = both["ground"].isin(both.loc[new & (both["policy"] == name) & ~again[both.index], "ground"])
        both.loc[anew & ~new, told] = np.nan
    return both.sort_values(
        ["ground", "policy"], key=lambda names: names.map(places[names.name == "policy"].index), ignore_index=True
    )


def main() -> int:
    """Run what is missing, report."""
    parser = new_parser(__doc__, "arena")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--num-jobs", type=int, help="at most so many of a run; default: 40, with --all the ground's")
    parser.add_argument("--all", action="store_true", help="all grounds")
    parser.add_argument("--ground", action="append", choices=GROUNDS, help="these grounds")
    parser.add_argument("--topology", metavar="TEXT", help="in place of that of the grounds; give an --out of its own")
    parser.add_argument("--only", default="", metavar="REGEX", help="rivals whose names it matches, and the baseline")
    parser.add_argument("--tune", action="store_true", help="tune in place of playing")
    parser.add_argument("--leads", action="store_true", help="league and leads of the committed tables")
    parser.add_argument("--parts", action="store_true", help="make-room without each of its parts, in place of rivals")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")

    def made(given: argparse.Namespace) -> tuple[list[Ground], int, Path]:
        folder = given.out.resolve() / "workloads"
        asked = [GROUNDS[name] for name in given.ground or (GROUNDS if given.all else QUICK)]
        grounds = [replace(ground, topology=given.topology or ground.topology) for ground in asked]
        for trace in TRACES:
            if any(ground.jobs == trace for ground in grounds):
                imported(trace, given.data, folder)
        return grounds, given.num_jobs or (10**6 if given.all or given.ground else QUICK_JOBS), folder

    def playing(given: argparse.Namespace) -> list[Rival]:
        if given.parts:
            return list(PARTS)
        return [rival for rival in RIVALS if rival.name == BASELINE or re.search(given.only, rival.name)]

    def runs(given: argparse.Namespace) -> list[Run]:
        if given.leads:
            return []
        grounds, jobs, folder = made(given)
        if given.tune:
            table = tuned_on_all(grounds, playing(given), jobs, folder, given.jobs)
            write_tables(given.out / "tables", {"tuned": table}, float_format="%.5g")
            return []
        if not given.parts:
            same_jobs(given)
        return runs_of(grounds, playing(given), given.seeds, jobs, folder, pd.read_csv(TUNED))

    def same_jobs(given: argparse.Namespace) -> pd.DataFrame:
        grounds, jobs, folder = made(given)
        fingerprints = fingerprints_of(grounds, given.seeds, jobs, folder)
        return beside_same_jobs(fingerprints, given.out / "tables" / "jobs.csv", whole=not given.only)

    def report(done: Sweep, given: argparse.Namespace) -> None:
        if given.tune:
            return
        if given.parts:
            parts = beside_other_grounds(without_parts(done), given.out / "tables" / "parts.csv")
            write_tables(given.out / "tables", {"parts": parts}, float_format="%.5g")
            print(parts.to_string(index=False, float_format="{:.4g}".format))
            print(done.summaries().groupby(["ground", "policy"])["engine_s"].mean().to_string())
            return
        folder = EXPECTED if given.leads else given.out / "tables"
        if given.leads:
            both = {"seeds": pd.read_csv(folder / "seeds.csv")}
            facts = pd.read_csv(folder / "league.csv")
        else:
            grounds, jobs, workloads = made(given)
            facts = facts_of(done, bounds_of(grounds, playing(given), given.seeds, jobs, workloads))
            whole = not given.only  # else rows stand beside those of the same jobs that were there
            both = {"jobs": same_jobs(given)}
            both["seeds"] = beside_others(by_seeds(done.summaries()), folder / "seeds.csv", whole=whole)
            facts = beside_others(facts, folder / "league.csv", whole=whole)
        both["league"] = as_written(league(both["seeds"], facts))
        print(both["league"].to_string(index=False, float_format="{:.4g}".format))
        exact = [ground.name for ground in GROUNDS.values() if not ground.sampled]
        print(f"Exact: {', '.join(exact) or 'no ground'}; elsewhere rivals who scatter jobs are sampled.")
        both["leads"] = who_leads(both["seeds"], both["league"])
        write_tables(given.out / "tables", both, float_format="%.5g")
        print(both["leads"].to_string(index=False, float_format="{:.4g}".format))

    with reported():
        return sweep_command(parser, runs, report)


if __name__ == "__main__":
    sys.exit(main())
