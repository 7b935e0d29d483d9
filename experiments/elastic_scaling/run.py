"""Elastic scaling with batch sizes against the same optimiser with fixed batches.

python experiments/elastic_scaling/run.py            40 GPUs, some minutes on one core
python experiments/elastic_scaling/run.py --full     also 400 GPUs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from charts import ratios

from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.charts.style import save
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.statistics import Interval, by_seed, mean_interval, paired_ratio
from ddlsched.workload.elastic_job import ConstantRescaleCost
from ddlsched.workload.generators.elastic_mix import ARRIVALS, CATEGORIES
from experiments.commands import new_parser, sweep_command, write_tables

MEASURES = Path(__file__).resolve().with_name("measures.py")
POLICIES = {"elastic": "best", "smallest batch": "min", "largest batch": "max", "random batch": "random"}
BASELINES = [policy for policy in POLICIES if policy != "elastic"]
ROOM = {"drop": "false", "queue": "true"}
HOURS = 4.0
"""For how long jobs arrive."""
SEEDS = {40: 6, 400: 3}
"""By GPUs: a run on 400 takes several seconds."""
DEFAULT_MIN, DEFAULT_S = 10, 30
METRICS = (
    "completed",
    "dropped_share",
    "average_completion_s",
    "average_queueing_s",
    "utilisation",
    "restart_share",
    "changes_per_job",
)
TABLE = ["gpus", "category", "arrivals", "room", "interval_min", "cost_s", "policy"]


def run_of(
    workload: tuple[str, str, int], room: str, policy: str, seed: int, interval_min: float, cost_s: float
) -> Run:
    """Return one run; everything that tells it from others is a label."""
    category, arrivals, gpus = workload
    values = (gpus, category, arrivals, room, interval_min, cost_s, policy)
    allocation = f"elastic-scaling:interval_s={60 * interval_min},queue={ROOM[room]},batch={POLICIES[policy]}"
    return Run(
        labels={name: str(value) for name, value in zip(TABLE, values, strict=True)},
        workload=f"elastic-mix:category={category},arrivals={arrivals},gpus={gpus},hours={HOURS}",
        seed=seed,
        options={
            "cluster": Cluster(num_servers=gpus // 4, gpus_per_server=4),
            "communication": f"bounded-overlap:limit={gpus}",
            "allocation": allocation,
            "rescale_cost": ConstantRescaleCost.restart(cost_s),
        },
        measures=(f"{MEASURES}:elastic_measures",),
    )


def runs(clusters: list[int], seeds: int | None) -> Iterator[Run]:
    """Yield the grid of workloads on each cluster."""
    for gpus in clusters:
        for seed in range(1, (seeds or SEEDS[gpus]) + 1):
            for room in ROOM:
                for category in CATEGORIES:
                    for arrivals in ARRIVALS:
                        for policy in POLICIES:
                            yield run_of((category, arrivals, gpus), room, policy, seed, DEFAULT_MIN, DEFAULT_S)


class Measured:
    """The runs' metrics, one row a run."""

    def __init__(self, done: Sweep) -> None:
        table = done.summaries().drop_duplicates([*TABLE, "seed"])
        self.table = table.astype({"gpus": int, "interval_min": float, "cost_s": float})

    def of(self, metric: str, **labels: object) -> pd.DataFrame:
        """Return a metric with a row a seed and a column a policy."""
        chosen = self.table
        for name, value in labels.items():
            chosen = chosen[chosen[name] == value]
        return by_seed(chosen, metric)

    def means(self) -> pd.DataFrame:
        """Return means over seeds with intervals: a row a setting, policy and metric."""
        rows = []
        for labels, part in self.table.groupby(TABLE, sort=True):
            for metric in METRICS:
                found = mean_interval(part[metric])
                values = {"metric": metric, "mean": found.mean, "low": found.low, "high": found.high}
                rows.append(dict(zip(TABLE, labels, strict=True)) | values | {"seeds": found.seeds})
        return pd.DataFrame(rows)

    def ratio(self, metric: str, baseline: str, *, elastic_over: bool, **labels: object) -> Interval:
        """Return elastic over baseline, or the other way round, paired by seed."""
        table = self.of(metric, **labels)
        pair = (table["elastic"], table[baseline])
        return paired_ratio(*(pair if elastic_over else pair[::-1]))


def grid_ratios(
    measured: Measured, gpus: int, room: str, metric: str, *, elastic_over: bool
) -> dict[str, dict[str, Interval]]:
    """Return by workload, then baseline, how many times as good elastic scaling is."""
    default = {"interval_min": DEFAULT_MIN, "cost_s": DEFAULT_S, "gpus": gpus, "room": room}
    return {
        f"{category}, {arrivals}": {
            baseline: measured.ratio(
                metric, baseline, elastic_over=elastic_over, category=category, arrivals=arrivals, **default
            )
            for baseline in BASELINES
        }
        for category in CATEGORIES
        for arrivals in ARRIVALS
    }


DROPPED = "Times as many jobs completed (jobs without room are dropped)"
WAITING = "Times as short an average completion time (jobs wait)"
QUESTIONS = {
    "completed": ("drop", "completed", True, 2.0, DROPPED),
    "completion_time": ("queue", "average_completion_s", False, 10.0, WAITING),
}
"""Of each claim: whether jobs wait, the metric, which way round the ratio is, the abstract's number, the axis."""


def report(measured: Measured, clusters: list[int], out: Path) -> None:
    """Print the ratios, write the tables as CSV files, and draw the charts."""
    rows = []
    for name, (room, metric, elastic_over, claim, axis) in QUESTIONS.items():
        panels = {
            f"{gpus} GPUs": grid_ratios(measured, gpus, room, metric, elastic_over=elastic_over) for gpus in clusters
        }
        save(ratios(panels, axis=axis, claim=claim), out / "charts" / name)
        for cluster, workloads in panels.items():
            for workload, found in workloads.items():
                for baseline, ratio in found.items():
                    row = {"claim": name, "cluster": cluster, "workload": workload, "baseline": baseline}
                    rows.append(row | {"ratio": ratio.mean, "low": ratio.low, "high": ratio.high, "seeds": ratio.seeds})
    tables = {"ratios": pd.DataFrame(rows), "means": measured.means()}
    print(tables["ratios"].round(2).to_string(index=False))
    write_tables(out / "tables", tables)


def main() -> int:
    """Run what is missing, then report."""
    parser = new_parser(__doc__, "elastic_scaling")
    parser.add_argument("--full", action="store_true", help="400 GPUs, too")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 1 to N, at least 2")

    def clusters(given: argparse.Namespace) -> list[int]:
        return [40, 400] if given.full else [40]

    def planned(given: argparse.Namespace) -> list[Run]:
        if given.seeds is not None and given.seeds < 2:
            parser.error(f"--seeds {given.seeds}: expected at least 2, since intervals are over seeds")
        return list(runs(clusters(given), given.seeds))

    return sweep_command(parser, planned, lambda done, given: report(Measured(done), clusters(given), given.out))


if __name__ == "__main__":
    sys.exit(main())
