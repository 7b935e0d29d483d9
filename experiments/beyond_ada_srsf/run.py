"""Schedulers that earn, with bytes conserved, what Ada-SRSF's abstract claims.

python experiments/beyond_ada_srsf/run.py            6 held job sets at full size; about five minutes on two cores
python experiments/beyond_ada_srsf/run.py --full     100 held job sets
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from bounds import distance_table, distances

from ddlsched import Cluster
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.network.contention import ONE_GBE, Linear
from ddlsched.results.paired_comparison import compare_runs, readable
from ddlsched.results.statistics import by_seed
from experiments.commands import new_parser, sweep_command, write_tables
from topologies.fat_tree import FatTree
from topologies.star import Star

MIXES = Path(__file__).resolve().with_name("mixes.py")
METRICS = (
    "average_jct_s",
    "p95_jct_s",
    "jct_1_gpu_s",
    "jct_2_to_4_gpus_s",
    "jct_8_or_more_gpus_s",
    "makespan_s",
)
BASELINE_FILES = {"SRSF(1)": "srsf_1", "SRSF(2)": "srsf_2"}
"""What each baseline is called in the names of files."""
AUTHORS = {"load_per_byte_s": 7.8125e-9}
"""The authors' b in LWF's GPU load: what the published baselines use."""

LWF = {"placement": "lwf:kappa=1", "order": "srsf"}
BLOCKS: dict[str, Any] = {"scheduler": "block-srtf"}
NEW = "Block-SRTF"
SHARED = "GPUs shared by time-slicing at no cost"
"""What every table here supposes; exclusive.py has the others."""
BASELINES: dict[str, dict[str, Any]] = {
    "SRSF(1)": LWF | {"communication": "bounded-overlap:limit=1"} | AUTHORS,
    "SRSF(2)": LWF | {"communication": "bounded-overlap:limit=2"} | AUTHORS,
    "Ada-SRSF": LWF | {"communication": "adadual"} | AUTHORS,
    "LWF-1, preemptive": LWF | {"communication": "preemptive:by=service-per-gpu"} | AUTHORS,
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Policies compared on the same job sets."""

    name: str
    title: str
    policies: dict[str, dict[str, Any]]
    workload: str = "microsoft-160"
    scale: float = 1.0
    most_seeds: int = 100

    def runs(self, seeds: int) -> Iterator[Run]:
        """Yield the runs of held seeds 1, 2, ..."""
        for seed in range(1, min(seeds, self.most_seeds) + 1):
            for policy, options in self.policies.items():
                yield Run(
                    labels={"table": self.name, "policy": policy},
                    workload=f"{self.workload}:scale={self.scale}",
                    seed=seed,
                    options=options,
                    measures=(f"{MIXES}:by_size",),
                )


POLICIES = Table(
    name="policies",
    title="The paper's 64-GPU experiment at full size",
    policies=BASELINES
    | {
        "SRSF(1), 10 GbE's b": BASELINES["SRSF(1)"] | {"load_per_byte_s": None},
        "SRSF(2), 10 GbE's b": BASELINES["SRSF(2)"] | {"load_per_byte_s": None},
        NEW: BLOCKS,
    },
)
ABLATION = Table(
    name="ablation",
    title="Block-SRTF with one part changed",
    most_seeds=20,
    policies={
        "SRSF(1)": BASELINES["SRSF(1)"],
        NEW: BLOCKS,
        "LWF-1 in place of blocks": BLOCKS | {"placement": "lwf:kappa=1"},
        "blocks not aligned": BLOCKS | {"placement": "blocks:aligned=false"},
        "spanning jobs' compute counts": BLOCKS | {"placement": "blocks:spanning_weight=1"},
        "all of others' time in the price": BLOCKS | {"placement": "blocks:price=load"},
        "order by service (SRSF)": BLOCKS | {"order": "srsf"},
        "order by time with communication": BLOCKS | {"order": "srtf:communication=true"},
        "preemption by compute left": BLOCKS | {"communication": "preemptive:by=service-per-gpu"},
        "no preemption, no overlap": BLOCKS | {"communication": "bounded-overlap:limit=1"},
        "no preemption, AdaDUAL": BLOCKS | {"communication": "adadual"},
    },
)
EVERYWHERE = {name: BASELINES[name] | {"load_per_byte_s": None} for name in BASELINES} | {NEW: BLOCKS}
"""Away from the paper's own setting LWF counts communication at the network's own b."""


def elsewhere(**options: Any) -> dict[str, dict[str, Any]]:
    """Return the policies, all run with further options."""
    return {policy: own | options for policy, own in EVERYWHERE.items()}


@dataclass(frozen=True, kw_only=True)
class PublishedGigabit(Linear):
    """The published fit of 1 Gbit/s Ethernet: its b is of a card that is 2 % faster than its name."""

    exceeds_links: ClassVar[bool] = True


GIGABIT = PublishedGigabit(**ONE_GBE)
SCENARIOS = (
    Table(
        name="second_mix",
        title="Other models and message sizes",
        policies=elsewhere(),
        workload=f"{MIXES}:second_mix",
        scale=0.1,
        most_seeds=20,
    ),
    Table(
        name="gigabit",
        title="1 Gbit/s Ethernet",
        policies=elsewhere(contention=GIGABIT, cluster=Cluster(topology=Star(nic_gbps=1.0))),
        scale=0.1,
        most_seeds=20,
    ),
    Table(
        name="fat_tree",
        title="Fat-tree, 4:1 oversubscribed",
        policies=elsewhere(cluster=Cluster(topology=FatTree(oversubscription=4.0))),
        scale=0.1,
        most_seeds=20,
    ),
    Table(
        name="bucketed",
        title="Backward and all-reduce in four overlapping parts",
        policies=elsewhere(),
        workload=f"{MIXES}:bucketed",
        scale=0.1,
        most_seeds=20,
    ),
)
TABLES = (POLICIES, ABLATION, *SCENARIOS)


def comparisons(done: Sweep, table: Table) -> dict[str, pd.DataFrame]:
    """Return the comparison against each baseline by the name of its file: means, paired changes, intervals."""
    runs = done.summaries()
    runs = runs[runs["table"] == table.name].reset_index(drop=True)
    runs[list(METRICS)] /= table.scale
    baselines = [baseline for baseline in BASELINE_FILES if baseline in table.policies]
    return {file_name(table.name, b): compare_runs(runs, baseline=b, metrics=list(METRICS)) for b in baselines}


def file_name(table: str, baseline: str) -> str:
    """Return the name of a comparison's CSV file."""
    return f"{table}_against_{BASELINE_FILES[baseline]}"


def report(done: Sweep, given: argparse.Namespace) -> None:
    """Print the average JCTs of every table and write all metrics as CSV files."""
    written = {}
    for table in TABLES:
        found = comparisons(done, table)
        written |= found
        print(f"## {table.title}, {SHARED}\n")
        for comparison, baseline in zip(found.values(), BASELINE_FILES, strict=False):
            print(readable(comparison[comparison["metric"] == "average_jct_s"], baseline=baseline), "\n")
    runs = done.summaries()
    runs = runs[runs["table"] == POLICIES.name]
    per_seed = by_seed(runs, "average_jct_s")[list(POLICIES.policies)].round(9)
    from_bound = distances(runs, POLICIES.scale, POLICIES.policies)
    print(distance_table(from_bound))
    write_tables(given.out / "tables", written | {"policies_bound": from_bound})
    write_tables(given.out / "tables", {"average_jct_s_per_seed": per_seed}, index=True, float_format=None)


def main() -> int:
    """Run what is missing, then report."""
    parser = new_parser(__doc__, "beyond_ada_srsf")
    parser.add_argument("--full", action="store_true", help="100 held seeds (20 in the smaller tables)")
    parser.add_argument("--seeds", type=int, metavar="N", help="held seeds 1 to N")

    def runs(given: argparse.Namespace) -> list[Run]:
        seeds = given.seeds or (100 if given.full else 6)
        return [run for table in TABLES for run in table.runs(seeds)]

    return sweep_command(parser, runs, report)


if __name__ == "__main__":
    sys.exit(main())
