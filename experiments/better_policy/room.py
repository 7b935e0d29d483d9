"""How much there is to win: the best policies without lengths beside the bound, SRTF, and the best that know lengths.

    python experiments/better_policy/room.py                   quick: 4 seeds of the two 64-GPU mixes
    python experiments/better_policy/room.py --ground Philly --seeds 12

Prints a row a ground and policy that knows no lengths: the best rival, and whole servers with narrow jobs or short
iterations first, and what these two change against it. Writes room.csv to OUT/tables. Runs are kept beside those of
run.py, and shared with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from grounds import GROUNDS, prepare
from policies import KNOWING, OURS, PROFILED, RIVALS, WHOLE
from run import DATA, QUICK, bounds_s, runs_of

from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.io.progress import progress_bar
from ddlsched.results.paired_comparison import interval_text, markdown
from ddlsched.results.statistics import Interval, by_seed, paired_change

BLIND = {name: RIVALS[name] for name in ("HiveD", "MonkeyTree")}
"""The rivals that are the best of some ground."""
SRTF = {name: KNOWING[name] for name in ("SRTF, HiveD", "SRTF, whole servers")}
SRSF = {
    "SRSF, HiveD": {"placement": "hived", "order": "srsf"},
    "SRSF, whole servers": WHOLE | {"order": "srsf"},
}
"""By what is left times GPUs."""
LENGTHS = SRTF | SRSF
"""None of them stops jobs: SRTF that does is worse on all grounds but MonkeyTree's mix and Philly's (run.py)."""


def room(summaries: pd.DataFrame, bounds_s: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Return by how much, %, the average JCT without lengths is above what it is held against, paired by seed.

    The best of several policies is that of the least mean over the seeds. ``low`` and ``high`` are the ends of the 95 %
    interval.
    """
    rows = []
    for ground, runs in summaries.groupby("ground", sort=False):
        jct = by_seed(runs, "average_jct_s")
        best = {name: jct[[*names]].mean().idxmin() for name, names in (("SRTF", SRTF), ("lengths", LENGTHS))}
        rival = jct[[name for name in BLIND if name in jct]].mean().idxmin()
        tail = by_seed(runs, "p99_jct_s")
        for policy in (rival, *OURS, *PROFILED):
            against = {"bound": jct.index.map(bounds_s[str(ground)]), **{name: jct[best[name]] for name in best}}
            row = {"ground": ground, "policy": policy, "seeds": len(jct), "best_with_lengths": best["lengths"]}
            for name, held in against.items():
                change = paired_change(jct[policy], pd.Series(held, index=jct.index)).scaled(100)
                row |= _ends(f"over_{name}", change)
            for name, values in (("average", jct), ("p99", tail)) if policy != rival else ():
                row |= _ends(f"{name}_change", paired_change(values[policy], values[rival]).scaled(100))
            rows.append(row)
    return pd.DataFrame(rows)


def _ends(name: str, change: Interval) -> dict[str, float]:
    return {name: change.mean, f"{name}_low": change.low, f"{name}_high": change.high}


def shown(table: pd.DataFrame) -> str:
    """Return the table as Markdown, with whether the best that know lengths are better for certain."""
    rows = []
    for row in table.to_dict("records"):
        cells = {name: str(row[name]) for name in ("ground", "policy", "seeds")}
        for name, title in (("bound", "the bound"), ("SRTF", "SRTF"), ("lengths", "the best with lengths")):
            cells[f"above {title}, %"] = _text(row, f"over_{name}")
        cells |= {"which is": row["best_with_lengths"], "to win": _verdict(row)}
        changes = {f"its {name} against the rival's, %": _text(row, f"{name}_change") for name in ("average", "p99")}
        rows.append(cells | changes)
    return markdown(rows)


def _text(row: Mapping[str, float], name: str) -> str:
    if pd.isna(row[name]):
        return ""
    found = Interval(row[name], row[f"{name}_low"], row[f"{name}_high"], int(row["seeds"]))
    return interval_text(found, decimals=1, sign=True)


def _verdict(row: Mapping[str, float]) -> str:
    if row["over_lengths_low"] > 0:
        return "something"
    return "nothing" if row["over_lengths_high"] < 0 else "not told apart from nothing"


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
    runs = runs_of(grounds, BLIND | OURS | PROFILED | LENGTHS, folder, counts)
    with progress_bar("simulating") as watch:
        done = sweep(runs, given.out / "runs", processes=given.processes, watch=watch)
    if done.failures:
        print("runs failed; no table without them:", *map(str, done.failures), sep="\n  ", file=sys.stderr)
        return 1
    summaries = done.summaries()
    seeds = sorted(summaries["seed"].unique())
    table = room(summaries, {ground.name: bounds_s(ground, seeds, folder) for ground in grounds})
    (given.out / "tables").mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out / "tables" / "room.csv", index=False, float_format="%.5g", lineterminator="\n")
    print(shown(table), f"Table: {given.out / 'tables' / 'room.csv'}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
