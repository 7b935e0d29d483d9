"""Does it pay to stop jobs? Tiresias with and without, on exclusive GPUs, beside policies that share GPUs.

python experiments/beyond_ada_srsf/stopping.py         held seeds 1 to 10 at 1/50 of iterations and arrivals
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from run import BASELINES, BLOCKS, CSV, LWF, METRICS, MIXES, NEW

from ddlsched.comparisons.sweeps.scripts import sweep_and_report
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.paired_comparison import compare_runs, interval_of, interval_text, markdown

SCALE, SEEDS = 0.02, 10
THRESHOLD_GPU_S = 5000 * SCALE
"""At full size 5000: of 100, 500, 2000, 5000 and 20,000 the best for Tiresias that stops jobs, on six tuning seeds."""
NO_OVERLAP = {"communication": "bounded-overlap:limit=1"}
EXCLUSIVE = {"placement": "delay:server_s=0,rack_s=0"} | NO_OVERLAP
SHARED: dict[str, dict[str, Any]] = {
    "SRSF(1)": BASELINES["SRSF(1)"],
    "Tiresias's order, GPUs shared": LWF | {"order": f"tiresias:threshold_gpu_s={THRESHOLD_GPU_S:g}"} | NO_OVERLAP,
    "Tiresias's order, GPUs exclusive": EXCLUSIVE | {"order": f"tiresias:threshold_gpu_s={THRESHOLD_GPU_S:g}"},
    "first come first served, GPUs exclusive": EXCLUSIVE | {"order": "fifo"},
    NEW: BLOCKS,
}
"""Nobody is stopped."""


def stopped(restart_s: float) -> dict[str, Any]:
    """Return Tiresias that stops jobs, each of which takes so long to resume, seconds at full size."""
    return NO_OVERLAP | {
        "allocation": f"tiresias:threshold_gpu_s={THRESHOLD_GPU_S:g}",
        "rescale_cost": f"restart_s={restart_s * SCALE:g}",
    }


STOPPED = {f"Tiresias, restart takes {restart_s} s": stopped(restart_s) for restart_s in (0, 10, 60)}


def runs(seeds: int) -> list[Run]:
    """Return the runs: the same jobs, where they are stopped as elastic jobs of a fixed size."""
    return [
        Run(
            labels={"policy": policy},
            workload=f"{workload}:scale={SCALE}",
            seed=seed,
            options=options,
            measures=(f"{MIXES}:by_size", f"{MIXES}:stops"),
        )
        for seed in range(1, seeds + 1)
        for workload, policies in (("microsoft-160", SHARED), (f"{MIXES}:fixed_size", STOPPED))
        for policy, options in policies.items()
    ]


def rows(comparison: pd.DataFrame) -> list[dict[str, str]]:
    """Return a row a policy: its average JCT, its changes against SRSF(1), and how often a job is stopped."""
    found = []
    for policy in SHARED | STOPPED:
        mean = interval_of(comparison, policy, "average_jct_s")
        row = {"policy": policy, METRICS["average_jct_s"]: interval_text(mean, decimals=0)}
        for metric, name in METRICS.items():
            change = interval_of(comparison, policy, metric, change=True).scaled(100.0)
            row[f"{name.rpartition(' (')[0]}, %"] = "" if policy == "SRSF(1)" else interval_text(change, sign=True)
        row["Stops a job"] = f"{interval_of(comparison, policy, 'stops_a_job').mean:.2f}"
        found.append(row)
    return found


def report(done: Sweep, out: Path) -> None:
    """Print the table and write it as a CSV file."""
    table = done.summaries()
    table[list(METRICS)] /= SCALE
    comparison = compare_runs(table, baseline="SRSF(1)", metrics=[*METRICS, "stops_a_job"])
    print(f"## Stopping jobs, at 1/{1 / SCALE:.0f}, times x {1 / SCALE:.0f}, against SRSF(1)\n")
    print(markdown(rows(comparison)))
    (out / "tables").mkdir(parents=True, exist_ok=True)
    comparison.to_csv(out / "tables" / "stopping_against_srsf_1.csv", **CSV)


def main() -> int:
    """Run what is missing, print the table and write it as a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="held seeds (default: %(default)s)")
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
