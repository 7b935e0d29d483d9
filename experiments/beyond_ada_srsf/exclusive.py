"""What is left of the gain where a GPU has one job at a time, beside policies that operators run.

python experiments/beyond_ada_srsf/exclusive.py          20 held seeds at 1/10 of iterations and arrivals
python experiments/beyond_ada_srsf/exclusive.py --full   100 held seeds at full size
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from bounds import distance_table, distances
from run import BASELINES, BLOCKS, CSV, LWF, METRICS, Table

import ddlsched
from algorithms.placement.easy_backfill import EasyBackfill
from algorithms.placement.in_order import InOrder
from ddlsched.comparisons.sweeps.scripts import sweep_and_report
from ddlsched.comparisons.sweeps.sweep import Sweep
from ddlsched.results.paired_comparison import compare_runs, interval_of, interval_text, markdown
from ddlsched.results.statistics import Interval, mean_interval

ALONE = {"cluster": ddlsched.Cluster(exclusive=True)}
"""The 64-GPU cluster with one job a GPU."""
NO_OVERLAP = {"communication": "bounded-overlap:limit=1"}
FIFO = LWF | {"order": "fifo"} | NO_OVERLAP
BASELINES_ALONE = {"SRSF(1)": "srsf_1", "FIFO that skips": "fifo"}
"""Both on exclusive GPUs."""
SHARED = "GPUs shared at no cost: "
PRICED = "GPUs shared at the measured cost: "
PENALTIES = Path(__file__).resolve().parents[1] / "gpu_sharing" / "expected" / "penalties.csv"
TURNS = {"interference": f"pairs:file={PENALTIES},once=true"}
"""What turns on one GPU cost these models on an H100 that each of them fills (``experiments/gpu_sharing``)."""
POLICIES: dict[str, dict[str, Any]] = {
    "SRSF(1)": LWF | NO_OVERLAP | ALONE,
    "FIFO, strict": FIFO | {"placement": InOrder(placement="lwf:kappa=1")} | ALONE,
    "FIFO with EASY backfilling": FIFO | {"placement": EasyBackfill(placement="lwf:kappa=1", error_sigma=0.0)} | ALONE,
    "FIFO that skips": FIFO | ALONE,
    "SRTF, LWF-1, preemption by time": LWF | {"order": "srtf", "communication": "preemptive:by=time"} | ALONE,
    "FIFO that skips, blocks": FIFO | {"placement": "blocks"} | ALONE,
    "Block-SRTF, no preemption": BLOCKS | NO_OVERLAP | ALONE,
    "Block-SRTF": BLOCKS | ALONE,
    f"{SHARED}SRSF(1)": BASELINES["SRSF(1)"] | {"load_per_byte_s": None},
    f"{SHARED}Block-SRTF": BLOCKS,
    f"{PRICED}SRSF(1)": BASELINES["SRSF(1)"] | {"load_per_byte_s": None} | TURNS,
    f"{PRICED}Block-SRTF": BLOCKS | TURNS,
    f"{PRICED}Block-SRTF, LAS for SRTF": BLOCKS | {"order": "las"} | TURNS,
}
"""All but the last five on exclusive GPUs. FIFO and LAS know no length of a job; EASY estimates it as the time alone.
The order says whose turn it is on a shared GPU, which a driver by itself does not ask."""
MORE: dict[str, dict[str, Any]] = {
    "HiveD": FIFO | {"placement": "hived"} | ALONE,
    "Block-SRTF, lengths 0.3 off": BLOCKS | ALONE | {"disturbances": ddlsched.Disturbances(prediction_error=0.3)},
    "Block-SRTF, lengths 1.0 off": BLOCKS | ALONE | {"disturbances": ddlsched.Disturbances(prediction_error=1.0)},
}
"""On exclusive GPUs, in the quick form only. HiveD knows no length; where lengths are off, policies see each wrong by a
log-normal factor of that standard deviation."""
QUICK = Table(name="exclusive", title="One job a GPU", policies=POLICIES | MORE, scale=0.1, most_seeds=20)
FULL = replace(QUICK, name="exclusive_full", policies=POLICIES, scale=1.0, most_seeds=100)


def rows(comparison: pd.DataFrame, baseline: str) -> list[dict[str, str]]:
    """Return a row a policy: its average JCT, and its changes against the baseline on exclusive GPUs."""
    found = []
    for policy in comparison["policy"].unique():
        mean = interval_of(comparison, policy, "average_jct_s")
        row = {"policy": policy, METRICS["average_jct_s"]: interval_text(mean, decimals=0)}
        for metric, name in METRICS.items():
            change = interval_of(comparison, policy, metric, change=True).scaled(100.0)
            row[f"{name.rpartition(' (')[0]}, %"] = "" if policy == baseline else interval_text(change, sign=True)
        found.append(row)
    return found


def fairness(done: Sweep) -> pd.DataFrame:
    """Return a row a policy and measure, with its mean over seeds and 95 % interval.

    ``unfair_1_gpu`` and ``unfair_others`` are the share of jobs of one GPU and of more whose ρ is above 1 (they would
    have ended earlier with their share of the cluster to themselves), ``worst_slowdown`` the largest JCT / time alone.
    """
    found = []
    for policy in dict.fromkeys(run.labels["policy"] for run, _ in done.finished):
        jobs = done.jobs(policy=policy)
        jobs = jobs.assign(unfair=jobs["finish_time_fairness"] > 1.0 + 1e-9)
        one = jobs["gpus"] == 1
        measures = {
            "unfair_1_gpu": jobs[one].groupby("seed")["unfair"].mean(),
            "unfair_others": jobs[~one].groupby("seed")["unfair"].mean(),
            "worst_slowdown": jobs.groupby("seed")["slowdown"].max(),
        }
        for name, values in measures.items():
            mean = mean_interval(values)
            row = {"policy": policy, "measure": name, "mean": mean.mean, "mean_low": mean.low, "mean_high": mean.high}
            found.append(row | {"seeds": mean.seeds})
    return pd.DataFrame(found)


def fairness_rows(fair: pd.DataFrame) -> list[dict[str, str]]:
    """Return a row a policy, as texts."""
    names = {"unfair_1_gpu": "1-GPU jobs with ρ > 1, %", "unfair_others": "larger jobs with ρ > 1, %"}
    names |= {"worst_slowdown": "largest slowdown"}
    rows = []
    for policy, of_policy in fair.groupby("policy", sort=False):
        row = {"policy": str(policy)}
        for measure in of_policy.to_dict("records"):
            mean = Interval(measure["mean"], measure["mean_low"], measure["mean_high"], measure["seeds"])
            scale = 1.0 if measure["measure"] == "worst_slowdown" else 100.0
            row[names[measure["measure"]]] = interval_text(mean.scaled(scale))
        rows.append(row)
    return rows


def report(done: Sweep, table: Table, out: Path) -> None:
    """Print the tables and write them as CSV files."""
    summaries = done.summaries()
    summaries[list(METRICS)] /= table.scale
    size = "at full size" if table.scale == 1.0 else f"at 1/{1 / table.scale:.0f}, times x {1 / table.scale:.0f}"
    (out / "tables").mkdir(parents=True, exist_ok=True)
    fair = fairness(done)
    print(f"## Fairness, {size}\n\n{markdown(fairness_rows(fair))}\n")
    fair.to_csv(out / "tables" / f"{table.name}_fairness.csv", **CSV)
    for baseline, name in BASELINES_ALONE.items():
        comparison = compare_runs(summaries, baseline=baseline, metrics=list(METRICS))
        print(f"## {table.title}, {size}, against {baseline} with one job a GPU\n")
        print(f"{markdown(rows(comparison, baseline))}\n")
        comparison.to_csv(out / "tables" / f"{table.name}_against_{name}.csv", **CSV)
    found = distances(summaries, table.scale, [policy for policy in POLICIES if policy.startswith((SHARED, PRICED))])
    found.to_csv(out / "tables" / f"{table.name}_bound.csv", **CSV)
    print(distance_table(found))


def main() -> int:
    """Run what is missing, print the table and write it as a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="100 held seeds at full size")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="at most so many held seeds")
    parser.add_argument(
        "--out", type=Path, default=Path("results/beyond_ada_srsf"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    arguments = parser.parse_args()
    table = FULL if arguments.full else QUICK
    return sweep_and_report(
        list(table.runs(arguments.seeds)),
        arguments.out / "runs",
        arguments.jobs,
        lambda done: report(done, table, arguments.out),
    )


if __name__ == "__main__":
    sys.exit(main())
