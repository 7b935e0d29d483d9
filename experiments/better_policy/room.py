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
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from grounds import GROUNDS, Ground
from policies import KNOWING, KNOWING_RACKS, LEARNING, OURS, RIVALS
from run import LARGE, command, runs_of

from ddlsched.comparisons.sweeps.sweep import Run
from ddlsched.results.statistics import by_seed, paired_change
from experiments.commands import new_parser

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


def main() -> int:
    """Run what is missing, report."""

    def runs(grounds: Sequence[Ground], given: argparse.Namespace, folder: Path) -> list[Run]:
        counts = dict.fromkeys(("most", "large", "slow"), given.seeds)
        return [run for one in grounds for run in runs_of([one], policies_of(one), folder, counts)]

    parser = new_parser(__doc__, "better_policy")
    return command(parser, runs, lambda summaries, bounds: {"room": room(summaries, bounds)})


if __name__ == "__main__":
    sys.exit(main())
