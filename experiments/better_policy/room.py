"""The policy that learns from finished jobs, on all grounds: beside the best rival, SRTF, and what it learns from.

    python experiments/better_policy/room.py                   quick: 4 seeds of the two 64-GPU mixes
    python experiments/better_policy/room.py --ground Philly --seeds 12

Prints a row a ground and policy that knows no lengths, and one of SRTF on the same placement: how far its average is
above the bound and above the best SRTF of three placements, and what it changes against the best rival. Writes room.csv
to OUT/tables. Runs are kept beside those of run.py, and shared with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from grounds import GROUNDS, Ground, prepare
from policies import KNOWING, KNOWING_RACKS, LEARNING, OURS, RIVALS
from run import DATA, LARGE, QUICK, bounds_s, runs_of

from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.io.progress import progress_bar
from ddlsched.results.paired_comparison import interval_text, markdown
from ddlsched.results.statistics import Interval, by_seed, paired_change

SRTF = {name: KNOWING[name] for name in ("SRTF, HiveD", "SRTF, whole servers")} | KNOWING_RACKS
"""None of them stops jobs."""


def rivals_of(ground: Ground) -> dict[str, dict[str, str]]:
    """Return those that may be the best of a ground by average: on stars MonkeyTree is 2 to 6 times as far off."""
    return {name: RIVALS[name] for name in ("HiveD", "MonkeyTree") if name == "HiveD" or ground.spines}


def policies_of(ground: Ground) -> dict[str, dict[str, str]]:
    """Return what runs on a ground: where runs are long not the older placement, nor kinds, which jobs lack there."""
    every = rivals_of(ground) | OURS | LEARNING | SRTF
    left_out = {*OURS, "SRTF, whole servers", "Whole racks, kinds known"} if ground.name in LARGE else set()
    return {name: differs for name, differs in every.items() if name not in left_out}


def room(summaries: pd.DataFrame, bounds_s: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Return what each policy's average JCT is above the bound and SRTF, and what it changes against the rival, %.

    The rival and SRTF are those of the least mean of the average over the seeds. Changes are geometric means over the
    seeds, paired; ``low`` and ``high`` are the ends of the 95 % interval.
    """
    rows = []
    for ground, runs in summaries.groupby("ground", sort=False):
        jct, tail = by_seed(runs, "average_jct_s"), by_seed(runs, "p99_jct_s")
        rival = jct[list(rivals_of(GROUNDS[str(ground)]))].mean().idxmin()
        best = jct[[name for name in SRTF if name in jct]].mean().idxmin()
        bound = pd.Series(jct.index.map(bounds_s[str(ground)]), index=jct.index)
        for policy in (name for name in (rival, *OURS, *LEARNING, *KNOWING_RACKS) if name in jct):
            row = {"ground": ground, "policy": policy, "seeds": len(jct), "best_srtf": best}
            row |= {"average_jct_s": jct[policy].mean(), "p99_jct_s": tail[policy].mean()}
            row |= _ends("over_bound", jct[policy], bound) | _ends("over_srtf", jct[policy], jct[best])
            if policy != rival:
                row |= _ends("average_change", jct[policy], jct[rival]) | _ends("p99_change", tail[policy], tail[rival])
            rows.append(row)
    return pd.DataFrame(rows)


def _ends(name: str, values: pd.Series, against: pd.Series) -> dict[str, float]:
    if values.equals(against):
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), 0.0)
    change = paired_change(values, against).scaled(100)
    return {name: change.mean, f"{name}_low": change.low, f"{name}_high": change.high}


def shown(table: pd.DataFrame) -> str:
    """Return the table as Markdown."""
    rows = []
    for row in table.to_dict("records"):
        cells = {name: str(row[name]) for name in ("ground", "policy", "seeds")}
        cells |= {"average JCT (s)": f"{row['average_jct_s']:.1f}", "p99 (s)": f"{row['p99_jct_s']:.0f}"}
        titles = {"over_bound": "above the bound, %", "over_srtf": "above the best SRTF, %"}
        titles |= {"average_change": "average against the rival, %", "p99_change": "p99 against the rival, %"}
        rows.append(cells | {title: _text(row, name) for name, title in titles.items()})
    return markdown(rows)


def _text(row: Mapping[str, float], name: str) -> str:
    if pd.isna(row[name]):
        return ""
    found = Interval(row[name], row[f"{name}_low"], row[f"{name}_high"], int(row["seeds"]))
    return interval_text(found, decimals=1, sign=True)


def main() -> int:
    """Run what is missing, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--ground", action="append", choices=GROUNDS, help="these grounds")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/better_policy"), metavar="DIR")
    parser.add_argument("--processes", type=int, default=-1, metavar="N", help="default: one a core")
    given = parser.parse_args()
    folder = given.out.resolve() / "workloads"
    prepare(folder, given.data)
    grounds = [GROUNDS[name] for name in given.ground or QUICK]
    counts = dict.fromkeys(("most", "large", "slow"), given.seeds)
    runs = [run for one in grounds for run in runs_of([one], policies_of(one), folder, counts)]
    with progress_bar("simulating") as watch:
        done = sweep(runs, given.out / "runs", processes=given.processes, watch=watch)
    if done.failures:
        print("runs failed; no table without them:", *map(str, done.failures), sep="\n  ", file=sys.stderr)
        return 1
    summaries = done.summaries()
    played = summaries.groupby("ground")["seed"].unique()
    table = room(summaries, {ground.name: bounds_s(ground, played[ground.name].tolist(), folder) for ground in grounds})
    (given.out / "tables").mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out / "tables" / "room.csv", index=False, float_format="%.5g", lineterminator="\n")
    print(shown(table), f"Table: {given.out / 'tables' / 'room.csv'}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
