"""Schedulers that earn, with bytes conserved, what Ada-SRSF's abstract claims.

python experiments/beyond_ada_srsf/run.py            6 held job sets at full size; about five minutes on two cores
python experiments/beyond_ada_srsf/run.py --full     100 held job sets
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from bounds import distance_table, distances

from ddlsched import Cluster
from ddlsched.comparisons.charts.jct_charts import Change, bars, changes, distributions
from ddlsched.comparisons.charts.style import PALETTE, save
from ddlsched.comparisons.sweeps.scripts import sweep_and_report
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.paired_comparison import compare_runs, interval_of, interval_text, markdown
from ddlsched.results.statistics import by_seed, paired_change
from topologies.fat_tree import FatTree
from topologies.star import Star

MIXES = Path(__file__).resolve().with_name("mixes.py")
METRICS = {
    "average_jct_s": "Average JCT (s)",
    "p95_jct_s": "95th percentile (s)",
    "jct_1_gpu_s": "1 GPU (s)",
    "jct_2_to_4_gpus_s": "2-4 GPUs (s)",
    "jct_8_or_more_gpus_s": "8+ GPUs (s)",
    "makespan_s": "Makespan (s)",
}
COLOURS = {
    "Block-SRTF": PALETTE["wine"],
    "LWF-1, preemptive": PALETTE["vermillion"],
    "SRSF(1), 10 GbE's b": PALETTE["sand"],
    "SRSF(2), 10 GbE's b": PALETTE["forest"],
}
"""The same in every chart, as the style's own of SRSF(1), SRSF(2) and Ada-SRSF are."""
TARGETS = {"SRSF(1)": -20.1, "SRSF(2)": -36.7}
CSV: dict[str, Any] = {"index": False, "float_format": "%.9g", "lineterminator": "\n"}
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
        policies=elsewhere(contention="1gbe", cluster=Cluster(topology=Star(nic_gbps=1.0))),
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
SETTINGS = tuple(zip((POLICIES, *SCENARIOS), ("10 GbE", "Other mix", "1 GbE", "Fat-tree", "4 buckets"), strict=True))
BSBF = {"placement": "sjf-bsbf", "order": "srtf", "communication": "bounded-overlap:limit=2"}
NEIGHBOURS = Table(
    name="neighbours",
    title="Neighbours, at 1/50 of the iterations and arrivals, times shown x 50",
    scale=0.02,
    most_seeds=10,
    policies={
        "SRSF(1)": BASELINES["SRSF(1)"],
        "SRSF(2)": BASELINES["SRSF(2)"],
        "Tiresias": LWF | {"order": "tiresias:threshold_gpu_s=100", "communication": "bounded-overlap:limit=1"},
        "LAS": LWF | {"order": "las", "communication": "bounded-overlap:limit=1"},
        "QSSF": LWF | {"order": "qssf", "communication": "bounded-overlap:limit=1"},
        "Themis": LWF | {"order": "themis", "communication": "bounded-overlap:limit=1"},
        "Dally": LWF | {"placement": "delay:server_s=2,rack_s=2", "communication": "bounded-overlap:limit=1"},
        "SJF-BSBF": BSBF,
        NEW: BLOCKS,
    },
)


def sharing(percent: int) -> Table:
    """Return the policies where each other job on a GPU makes compute tasks take so much longer; SJF-BSBF knows it."""
    known = BSBF | {"placement": f"sjf-bsbf:slowdown={1 + percent / 100:g}"}
    policies = {name: BASELINES[name] for name in ("SRSF(1)", "Ada-SRSF")} | {"SJF-BSBF": known, NEW: BLOCKS}
    interference = {"interference": f"uniform:share={percent / 100:g}"} if percent else {}
    return Table(
        name=f"interference_{percent}",
        title=f"Each other job on a GPU takes {percent} % of a job's compute time more",
        scale=0.1,
        most_seeds=20,
        policies={name: options | interference for name, options in policies.items()},
    )


INTERFERENCE = {percent: sharing(percent) for percent in (0, 5, 10, 30)}
TABLES = (POLICIES, ABLATION, *SCENARIOS, NEIGHBOURS, *INTERFERENCE.values())


def compared(done: Sweep, table: Table) -> dict[str, pd.DataFrame]:
    """Return the comparison against each baseline: means, paired changes, intervals."""
    runs = done.summaries()
    runs = runs[runs["table"] == table.name].reset_index(drop=True)
    runs[list(METRICS)] /= table.scale
    return {b: compare_runs(runs, baseline=b, metrics=list(METRICS)) for b in TARGETS if b in table.policies}


def text(table: Table, against: dict[str, pd.DataFrame]) -> str:
    """Return a table of means and, for each baseline, one of changes."""
    first = next(iter(against.values()))
    seeds = int(first["seeds"].max())
    parts = [f"## {table.title}, {SHARED} (mean [95 % interval] over {seeds} seeds)", markdown(_means(table, first))]
    for baseline, comparison in against.items():
        parts += [f"Change against {baseline}, paired by seed, %:", markdown(_changes(table, baseline, comparison))]
    return "\n\n".join(parts) + "\n"


def _means(table: Table, comparison: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {"policy": policy}
        | {n: interval_text(interval_of(comparison, policy, m), decimals=0) for m, n in METRICS.items()}
        for policy in table.policies
    ]


def _changes(table: Table, baseline: str, comparison: pd.DataFrame) -> list[dict[str, str]]:
    return [
        {"policy": policy}
        | {
            name.rpartition(" (")[0]: interval_text(_change(comparison, policy, metric), sign=True)
            for metric, name in METRICS.items()
        }
        for policy in table.policies
        if policy != baseline
    ]


def _change(comparison: pd.DataFrame, policy: str, metric: str) -> Any:
    return interval_of(comparison, policy, metric, change=True).scaled(100.0)


def answer(jct_s: pd.DataFrame) -> str:
    """Return what Block-SRTF changes against each baseline, from average JCTs by seed (s), beside what was claimed."""
    rows = []
    for baseline in (*TARGETS, "SRSF(1), 10 GbE's b"):
        claimed = f"{TARGETS[baseline]} %" if baseline in TARGETS else ""
        change = paired_change(jct_s[NEW], jct_s[baseline]).scaled(100.0)
        row = {"against, with LWF-1": baseline, "claimed for Ada-SRSF": claimed, NEW: interval_text(change, sign=True)}
        rows.append(row)
    return f"## Change of the average JCT at full size, {SHARED} ({len(jct_s)} seeds), %\n\n{markdown(rows)}\n"


def brief(table: Table, against: dict[str, pd.DataFrame]) -> str:
    """Return a table of average JCTs and their changes against the baselines."""
    first = next(iter(against.values()))
    rows = []
    for policy in table.policies:
        mean = interval_of(first, policy, "average_jct_s")
        row = {"policy": policy, METRICS["average_jct_s"]: interval_text(mean, decimals=0)}
        for baseline, comparison in against.items():
            change = (
                "" if policy == baseline else interval_text(_change(comparison, policy, "average_jct_s"), sign=True)
            )
            row[f"against {baseline}, %"] = change
        rows.append(row)
    return f"## {table.title}, {SHARED} ({int(first['seeds'].max())} seeds)\n\n{markdown(rows)}\n"


def settings(found: dict[str, dict[str, pd.DataFrame]]) -> str:
    """Return a row a setting: what Block-SRTF changes in each metric, and by average JCT against both baselines."""
    rows = []
    for table, setting in SETTINGS:
        one, two = (found[table.name][baseline] for baseline in TARGETS)
        row = {"setting": setting, "seeds": str(int(one["seeds"].max()))}
        row["Average JCT against SRSF(2)"] = interval_text(_change(two, NEW, "average_jct_s"), sign=True)
        for metric, name in METRICS.items():
            row[name.rpartition(" (")[0]] = interval_text(_change(one, NEW, metric), sign=True)
        rows.append(row)
    return f"## {NEW} in every setting, {SHARED}, against SRSF(1) unless said otherwise, %\n\n{markdown(rows)}\n"


def interference(found: dict[str, dict[str, pd.DataFrame]]) -> str:
    """Return a row a policy: its average JCT, and the change against SRSF(1), by how much jobs on one GPU cost."""
    rows = []
    for policy in INTERFERENCE[0].policies:
        row = {"policy": policy}
        for percent, table in INTERFERENCE.items():
            comparison = found[table.name]["SRSF(1)"]
            row[f"{percent} %: JCT (s)"] = interval_text(interval_of(comparison, policy, "average_jct_s"), decimals=0)
            change = (
                "" if policy == "SRSF(1)" else interval_text(_change(comparison, policy, "average_jct_s"), sign=True)
            )
            row[f"{percent} %: against SRSF(1), %"] = change
        rows.append(row)
    return f"## Average JCT where each other job on a GPU costs a share of the compute time\n\n{markdown(rows)}\n"


def headline(found: dict[str, dict[str, pd.DataFrame]]) -> str:
    """Return the tables that answer the question: the paper's experiment, every setting, the parts, the neighbours."""
    return "\n".join(
        [
            text(POLICIES, found[POLICIES.name]),
            settings(found),
            brief(ABLATION, found[ABLATION.name]),
            brief(NEIGHBOURS, found[NEIGHBOURS.name]),
            interference(found),
        ]
    )


def details(found: dict[str, dict[str, pd.DataFrame]]) -> str:
    """Return all metrics of the tables that the headline shortens."""
    return "\n".join(text(table, found[table.name]) for table in TABLES if table is not POLICIES)


def report(done: Sweep, out: Path) -> None:
    """Print the headline's tables, write all as files, and draw the charts."""
    (out / "tables").mkdir(parents=True, exist_ok=True)
    found = {}
    for table in TABLES:
        found[table.name] = compared(done, table)
        for baseline, comparison in found[table.name].items():
            comparison.to_csv(out / "tables" / file_name(table.name, baseline), **CSV)
    runs = done.summaries()
    per_seed = by_seed(runs[runs["table"] == POLICIES.name], "average_jct_s")[list(POLICIES.policies)].round(9)
    per_seed.to_csv(out / "tables" / "average_jct_s_per_seed.csv", lineterminator="\n")
    print(answer(per_seed), headline(found), sep="\n")
    from_bound = distances(runs[runs["table"] == POLICIES.name], POLICIES.scale, POLICIES.policies)
    from_bound.to_csv(out / "tables" / "policies_bound.csv", **CSV)
    print(distance_table(from_bound))
    (out / "tables" / "details.md").write_text(details(found), encoding="utf-8")
    print(f"All metrics of all tables: {out / 'tables' / 'details.md'}")
    drawn = charts(found, out / "charts")
    jct_s = {p: done.jobs(table="policies", policy=p)["jct_s"] for p in (NEW, "SRSF(1)", "SRSF(2)", "Ada-SRSF")}
    drawn += save(
        distributions(jct_s, axis="JCT (s)", title=POLICIES.title, colour=COLOURS), out / "charts" / "jct_cdf"
    )
    print("Charts:", *drawn, sep="\n  ")


def file_name(table: str, baseline: str) -> str:
    """Return the name of a comparison's CSV file."""
    return f"{table}_against_{re.sub(r'[^a-z0-9]+', '_', baseline.lower()).strip('_')}.csv"


def shades(policies: Iterable[str]) -> dict[str, str]:
    """Return a colour a policy: grey for those that are in one chart only, so that no colour means two of them."""
    return {policy: COLOURS.get(policy, PALETTE["grey"]) for policy in policies if policy not in BASELINES} | COLOURS


def charts(found: dict[str, dict[str, pd.DataFrame]], folder: Path) -> list[Path]:
    """Draw the average JCT of each table's policies, and the changes against both baselines in every setting."""
    drawn: list[Path] = []
    for table in (POLICIES, ABLATION, NEIGHBOURS):
        comparison = found[table.name]["SRSF(1)"]
        means = {policy: interval_of(comparison, policy, "average_jct_s") for policy in table.policies}
        figure = bars(means, axis="Average JCT (s)", title=table.title, colour=shades(table.policies))
        drawn += save(figure, folder / f"{table.name}_average_jct")
    rows = []
    for table, setting in SETTINGS:
        for baseline, claimed in TARGETS.items():
            comparison = found[table.name][baseline]
            shown = {p: _change(comparison, p, "average_jct_s") for p in ("Ada-SRSF", "LWF-1, preemptive", NEW)}
            rows.append(Change(f"{setting}\nagainst {baseline}", shown, claimed=claimed))
    return drawn + save(
        changes(rows, axis="Change of the average JCT (%)", claim="the abstract's claim", colour=COLOURS),
        folder / "settings",
    )


def main() -> int:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="100 held seeds (20 or 10 in the smaller tables)")
    parser.add_argument("--seeds", type=int, metavar="N", help="held seeds 1 to N")
    parser.add_argument(
        "--out", type=Path, default=Path("results/beyond_ada_srsf"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    arguments = parser.parse_args()
    seeds = arguments.seeds or (100 if arguments.full else 6)
    runs = [run for table in TABLES for run in table.runs(seeds)]
    return sweep_and_report(runs, arguments.out / "runs", arguments.jobs, lambda done: report(done, arguments.out))


if __name__ == "__main__":
    sys.exit(main())
