"""What is left of the gain where a GPU has one job at a time, beside policies that operators run.

python experiments/beyond_ada_srsf/exclusive.py          20 held seeds at 1/10 of iterations and arrivals
python experiments/beyond_ada_srsf/exclusive.py --full   100 held seeds at full size
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from bounds import distance_table, distances
from run import BASELINES, BLOCKS, LWF, METRICS, MIXES, Table

import ddlsched
from algorithms.placement.backfilling import EasyBackfill, InOrder
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.paired_comparison import compare_runs, readable
from ddlsched.results.statistics import mean_interval
from experiments.commands import new_parser, sweep_command, write_tables

ALONE = {"cluster": ddlsched.Cluster(exclusive=True)}
"""The 64-GPU cluster with one job a GPU."""
NO_OVERLAP = {"communication": "bounded-overlap:limit=1"}
FIFO = LWF | {"order": "fifo"} | NO_OVERLAP
BASELINES_ALONE = {"SRSF(1)": "srsf_1", "FIFO that skips": "fifo", "SRSF, cells up to servers": "srsf_cells"}
"""All on exclusive GPUs."""
CELLS = "hived:top_servers=1"
"""On the star no servers are neighbours, so that larger cells would only keep GPUs free."""
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
    "HiveD": FIFO | {"placement": "hived"} | ALONE,
    "HiveD, cells up to servers": FIFO | {"placement": CELLS} | ALONE,
    "SRTF, HiveD": FIFO | {"placement": "hived", "order": "srtf"} | ALONE,
    "SRTF, cells up to servers": FIFO | {"placement": CELLS, "order": "srtf"} | ALONE,
    "SRSF, cells up to servers": FIFO | {"placement": CELLS, "order": "srsf"} | ALONE,
    "SRTF, LWF-1, preemption by time": LWF | {"order": "srtf", "communication": "preemptive:by=time"} | ALONE,
    "FIFO that skips, blocks": FIFO | {"placement": "blocks"} | ALONE,
    "Block-SRTF, no preemption": BLOCKS | NO_OVERLAP | ALONE,
    "Block-SRTF": BLOCKS | ALONE,
    f"{SHARED}SRSF(1)": BASELINES["SRSF(1)"] | {"load_per_byte_s": None},
    f"{SHARED}Block-SRTF": BLOCKS,
    f"{PRICED}SRSF(1)": BASELINES["SRSF(1)"] | {"load_per_byte_s": None} | TURNS,
    f"{PRICED}Block-SRTF": BLOCKS | TURNS,
    **{f"{PRICED}Block-SRTF, at most {most} jobs": BLOCKS | TURNS for most in (4, 2)},
    f"{PRICED}Block-SRTF, LAS for SRTF": BLOCKS | {"order": "las"} | TURNS,
}
"""All but the last seven on exclusive GPUs. FIFO and LAS know no length of a job; EASY estimates it as the time alone.
The order says whose turn it is on a shared GPU, which a driver by itself does not ask."""
BLIND = ("FIFO, strict", "FIFO that skips", "FIFO that skips, blocks", "HiveD", "HiveD, cells up to servers")
"""They know no length, nor does LAS; all others do."""
MORE: dict[str, dict[str, Any]] = {
    "Block-SRTF, lengths 0.3 off": BLOCKS | ALONE | {"disturbances": ddlsched.Disturbances(prediction_error=0.3)},
    "Block-SRTF, lengths 1.0 off": BLOCKS | ALONE | {"disturbances": ddlsched.Disturbances(prediction_error=1.0)},
}
"""On exclusive GPUs, in the quick form only: policies see each length wrong by a log-normal factor of that standard
deviation."""


@dataclass(frozen=True, kw_only=True)
class CappedTable(Table):
    """Policies of which some have at most so many jobs on a GPU: each job takes that part of its memory."""

    def runs(self, seeds: int) -> Iterator[Run]:
        """Yield the runs."""
        for run in super().runs(seeds):
            most = re.search(r"at most (\d+)", run.labels["policy"])
            capped = f"{MIXES}:capped:jobs_per_gpu={most[1]},scale={self.scale}" if most else run.workload
            yield replace(run, workload=capped)


QUICK = CappedTable(name="exclusive", title="One job a GPU", policies=POLICIES | MORE, scale=0.1, most_seeds=20)
FULL = replace(QUICK, name="exclusive_full", policies=POLICIES, scale=1.0, most_seeds=100)


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


def report(done: Sweep, table: Table, out: Path) -> None:
    """Print the tables and write them as CSV files."""
    summaries = done.summaries()
    summaries[list(METRICS)] /= table.scale
    print(f"## {table.title}, times x {1 / table.scale:.0f}\n")
    tables = {f"{table.name}_fairness": fairness(done)}
    print(tables[f"{table.name}_fairness"].to_string(index=False), "\n")
    for baseline, name in BASELINES_ALONE.items():
        comparison = compare_runs(summaries, baseline=baseline, metrics=list(METRICS))
        print(readable(comparison, baseline=baseline), "\n")
        tables[f"{table.name}_against_{name}"] = comparison
    shared = [policy for policy in POLICIES if policy.startswith((SHARED, PRICED))]
    tables[f"{table.name}_bound"] = distances(summaries, table.scale, shared)
    print(distance_table(tables[f"{table.name}_bound"]))
    write_tables(out / "tables", tables)


def main() -> int:
    """Run what is missing, print the table and write it as a CSV file."""
    parser = new_parser(__doc__, "beyond_ada_srsf")
    parser.add_argument("--full", action="store_true", help="100 held seeds at full size")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="at most so many held seeds")

    def table(given: argparse.Namespace) -> Table:
        return FULL if given.full else QUICK

    return sweep_command(
        parser,
        lambda given: list(table(given).runs(given.seeds)),
        lambda done, given: report(done, table(given), given.out),
    )


if __name__ == "__main__":
    sys.exit(main())
