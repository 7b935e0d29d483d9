"""What was tried for Block-SRTF and not kept, on the tuning seeds; the held ones are not touched.

python experiments/beyond_ada_srsf/tried.py            tuning seeds 1001 to 1020 at 1/50; some minutes on two cores
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from run import AUTHORS, BASELINES, BLOCKS, CSV, LWF, METRICS, MIXES, NEW, file_name

from ddlsched.comparisons.sweeps.scripts import sweep_and_report
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.paired_comparison import compare_runs, interval_of, interval_text, markdown

VARIANTS = Path(__file__).resolve().with_name("variants.py")
SCALE = 0.02
FIRST_SEED, SEEDS = 1001, 20
GREEDY = "LWF-1, preemptive by time"
TWO = BLOCKS | {"communication": "bounded-overlap:limit=2"}


def _few(**limits: float) -> dict[str, Any]:
    """Return Block-SRTF with limits on who shares; seconds are given at full size."""
    if "wait_s" in limits:
        limits["wait_s"] *= SCALE
    return BLOCKS | {"placement": f"{VARIANTS}:FewOnAGpu:" + ",".join(f"{n}={v:g}" for n, v in limits.items())}


def _transfers(parameters: str) -> dict[str, Any]:
    return BLOCKS | {"communication": f"{VARIANTS}:ChosenSet:{parameters}"}


TRIED: dict[str, dict[str, Any]] = {
    "SRSF(1)": BASELINES["SRSF(1)"],
    NEW: BLOCKS,
    GREEDY: LWF | {"communication": "preemptive:by=time"} | AUTHORS,
    "LWF-1, heaviest set of transfers": LWF | {"communication": f"{VARIANTS}:ChosenSet:exact=true"} | AUTHORS,
    "heaviest set of transfers": _transfers("exact=true"),
    "transfers by communication left": _transfers("by=communication"),
    "transfers by time x links": _transfers("by=time x links"),
    "transfers by time x root of links": _transfers("by=time x root of links"),
    "spanning jobs' compute x 0.7": BLOCKS | {"order": f"{VARIANTS}:SpanningFirst:factor=0.7"},
    "spanning jobs' compute x 0.25": BLOCKS | {"order": f"{VARIANTS}:SpanningFirst:factor=0.25"},
    "spanning jobs first on GPUs": BLOCKS | {"order": f"{VARIANTS}:SpanningFirst"},
    "price of CASSINI": BLOCKS | {"placement": f"{VARIANTS}:CompatibleBlocks"},
    "two transfers overlap": TWO,
    "two overlap, price of CASSINI": TWO | {"placement": f"{VARIANTS}:CompatibleBlocks"},
    "at most 2 jobs on a GPU": _few(jobs=2),
    "at most 4 jobs on a GPU": _few(jobs=4),
    "at most 6 jobs on a GPU": _few(jobs=6),
    "spanning jobs join none": _few(spanning=1),
    "spanning jobs join at most 1": _few(spanning=2),
    "spanning jobs join at most 3": _few(spanning=4),
    "spanning jobs join none for 60 s": _few(spanning=1, wait_s=60),
    "spanning jobs join none for 300 s": _few(spanning=1, wait_s=300),
}
AGAINST = ("SRSF(1)", NEW)
SHOWN = [metric for metric in METRICS if metric.startswith("jct_")]


def runs(seeds: int) -> list[Run]:
    """Return the runs of the tuning seeds 1001, 1002, ..."""
    return [
        Run(
            labels={"policy": policy},
            workload=f"microsoft-160:scale={SCALE}",
            seed=seed,
            options=options,
            measures=(f"{MIXES}:by_size",),
        )
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for policy, options in TRIED.items()
    ]


def rows(against: dict[str, pd.DataFrame]) -> list[dict[str, str]]:
    """Return a row a policy: its average JCT, its change against both, and each size's against Block-SRTF."""
    shown: list[tuple[str, str, str]] = [
        ("against SRSF(1), %", "SRSF(1)", "average_jct_s"),
        (f"against {NEW}, %", NEW, "average_jct_s"),
        *((f"{METRICS[m].removesuffix(' (s)')}, %", NEW, m) for m in SHOWN),
    ]
    found = []
    for policy in TRIED:
        mean = interval_of(against[NEW], policy, "average_jct_s")
        row = {"policy": policy, METRICS["average_jct_s"]: interval_text(mean, decimals=0)}
        for column, baseline, metric in shown:
            change = interval_of(against[baseline], policy, metric, change=True).scaled(100.0)
            row[column] = "" if policy == baseline else interval_text(change, sign=True)
        found.append(row)
    return found


def report(done: Sweep, out: Path) -> None:
    """Print the table and write it as CSV files."""
    table = done.summaries()
    table[list(METRICS)] /= SCALE
    against = {b: compare_runs(table, baseline=b, metrics=list(METRICS)) for b in AGAINST}
    print(
        f"## Tried on {int(against[NEW]['seeds'].max())} tuning seeds at 1/{1 / SCALE:.0f}, times x {1 / SCALE:.0f}\n"
    )
    print(markdown(rows(against)))
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for baseline, comparison in against.items():
        comparison.to_csv(out / "tables" / file_name("tried", baseline), **CSV)


def main() -> int:
    """Run what is missing, print the table and write it as CSV files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="tuning seeds (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/beyond_ada_srsf"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    arguments = parser.parse_args()
    return sweep_and_report(
        runs(arguments.seeds), arguments.out / "runs", arguments.jobs, lambda done: report(done, arguments.out)
    )


if __name__ == "__main__":
    sys.exit(main())
