"""Elastic scaling with batch sizes against the same optimiser with fixed batches.

python experiments/elastic_scaling/run.py            40 GPUs, some minutes on one core
python experiments/elastic_scaling/run.py --full     also 400 GPUs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from charts import lines, ratios

from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.charts.style import save
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.paired_comparison import interval_text, markdown
from ddlsched.results.statistics import Interval, by_seed, mean_interval, paired_ratio
from ddlsched.workload.generators.elastic_mix import ARRIVALS, CATEGORIES
from ddlsched.workload.rescale import ConstantRescaleCost
from experiments.commands import sweep_and_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = Path(__file__).resolve().with_name("measures.py")
POLICIES = {"elastic": "best", "smallest batch": "min", "largest batch": "max", "random batch": "random"}
BASELINES = [policy for policy in POLICIES if policy != "elastic"]
ROOM = {"drop": "false", "queue": "true"}
HOURS = 4.0
"""For how long jobs arrive."""
SEEDS = {40: 6, 400: 3}
"""By GPUs: a run on 400 takes several seconds."""
SWEEP_SEEDS = 3
INTERVALS_MIN = (1, 5, 10, 30)
COSTS_S = (10, 30, 60)
DEFAULT_MIN, DEFAULT_S = 10, 30
SWEPT = ("balanced", "high", 40)
SWEPT_POLICIES = ["elastic", "smallest batch", "largest batch"]
METRICS = {
    "completed": "Completed",
    "dropped_share": "Dropped (%)",
    "average_completion_s": "Completion time (s)",
    "average_queueing_s": "Queueing (s)",
    "utilisation": "GPUs busy (%)",
    "restart_share": "Time in restarts (%)",
    "changes_per_job": "Changes a job",
}
PERCENT = {"dropped_share", "utilisation", "restart_share"}
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
    """Yield the grid of workloads on each cluster, and the sweeps on one workload, whose jobs wait."""
    for gpus in clusters:
        for seed in range(1, (seeds or SEEDS[gpus]) + 1):
            for room in ROOM:
                for category in CATEGORIES:
                    for arrivals in ARRIVALS:
                        for policy in POLICIES:
                            yield run_of((category, arrivals, gpus), room, policy, seed, DEFAULT_MIN, DEFAULT_S)
        if gpus == SWEPT[2]:
            settings = {(interval, DEFAULT_S) for interval in INTERVALS_MIN} | {(1, cost) for cost in COSTS_S}
            settings |= {(DEFAULT_MIN, cost) for cost in COSTS_S}
            for interval_min, cost_s in sorted(settings):
                for seed in range(1, (seeds or SWEEP_SEEDS) + 1):
                    for policy in SWEPT_POLICIES:
                        yield run_of(SWEPT, "queue", policy, seed, interval_min, cost_s)


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

    def sweep_seeds(self) -> list[int]:
        """Return the seeds of the sweeps, which may be fewer than the grid's."""
        swept_runs = self.table[self.table["interval_min"] != DEFAULT_MIN]
        return sorted(int(seed) for seed in swept_runs["seed"].unique())

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
    """Print the tables, write them as CSV files, and draw the charts."""
    (out / "tables").mkdir(parents=True, exist_ok=True)
    rows = []
    charts: list[Path] = []
    for name, (room, metric, elastic_over, claim, axis) in QUESTIONS.items():
        panels = {
            f"{gpus} GPUs": grid_ratios(measured, gpus, room, metric, elastic_over=elastic_over) for gpus in clusters
        }
        charts += save(ratios(panels, axis=axis, claim=claim), out / "charts" / name)
        for cluster, workloads in panels.items():
            print(f"## {axis}, {cluster}; the abstract: up to {claim:g}\n")
            print(ratio_table(workloads), "\n")
            for workload, found in workloads.items():
                for baseline, ratio in found.items():
                    row = {"claim": name, "cluster": cluster, "workload": workload, "baseline": baseline}
                    rows.append(row | {"ratio": ratio.mean, "low": ratio.low, "high": ratio.high, "seeds": ratio.seeds})
    for gpus in clusters:
        print(means_text(measured, gpus))
    charts += save(sweep_chart(measured), out / "charts" / "sweeps")
    print(sweep_text(sweep_table(measured)))
    write(pd.DataFrame(rows), out / "tables" / "ratios.csv")
    write(measured.means(), out / "tables" / "means.csv")
    write(sweep_table(measured), out / "tables" / "sweeps.csv")
    print("Tables:", *sorted((out / "tables").glob("*.csv")), sep="\n  ")
    print("Charts:", *charts, sep="\n  ")


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV."""
    table.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


def ratio_table(workloads: dict[str, dict[str, Interval]]) -> str:
    """Return the ratios of a cluster's workloads."""
    return markdown(
        [
            {"workload": workload} | {f"against the {b}": interval_text(r, decimals=2) for b, r in found.items()}
            for workload, found in workloads.items()
        ]
    )


def means_text(measured: Measured, gpus: int) -> str:
    """Return the means of the metrics on one cluster."""
    means = measured.means()
    default = (means["interval_min"] == DEFAULT_MIN) & (means["cost_s"] == DEFAULT_S) & (means["gpus"] == gpus)
    rows = []
    for (category, arrivals, room, policy), part in means[default].groupby(
        ["category", "arrivals", "room", "policy"], sort=False
    ):
        mean = part.set_index("metric")["mean"]
        cells = {title: cell(metric, mean[metric]) for metric, title in METRICS.items()}
        rows.append({"category": category, "arrivals": arrivals, "no room": room, "policy": policy} | cells)
    return f"## Means, {gpus} GPUs\n\n{markdown(rows)}\n"


def cell(metric: str, value: float) -> str:
    """Return a number of a table, in its unit."""
    if metric in PERCENT:
        return f"{100 * value:.1f}"
    return f"{value:.1f}" if metric in ("changes_per_job", "completed") else f"{value:.0f}"


def swept(measured: Measured, fixed: dict[str, float], varied: str) -> dict[str, dict[float, Interval]]:
    """Return the average completion time over that of the defaults, by policy, then by the value that is varied."""
    labels = {"category": SWEPT[0], "arrivals": SWEPT[1], "gpus": SWEPT[2], "room": "queue"}
    defaults = {"interval_min": DEFAULT_MIN, "cost_s": DEFAULT_S}
    seeds = measured.sweep_seeds()
    usual = measured.of("average_completion_s", **labels, **defaults).loc[seeds]
    found: dict[str, dict[float, Interval]] = {policy: {} for policy in SWEPT_POLICIES}
    for value in INTERVALS_MIN if varied == "interval_min" else COSTS_S:
        table = measured.of("average_completion_s", **labels, **fixed, **{varied: value}).loc[seeds]
        for policy, points in found.items():
            points[value] = paired_ratio(table[policy], usual[policy])
    return found


RELATIVE = "Average completion time over that at 10 min and 30 s"
SWEEPS = {
    "Restart cost 30 s": ({"cost_s": DEFAULT_S}, "interval_min", "Interval (min)"),
    "Interval 1 min": ({"interval_min": 1}, "cost_s", "Restart cost (s)"),
    "Interval 10 min": ({"interval_min": DEFAULT_MIN}, "cost_s", "Restart cost (s)"),
}


def sweep_chart(measured: Measured) -> Figure:
    """Return the sweeps' chart."""
    panels = {title: swept(measured, fixed, varied) for title, (fixed, varied, _) in SWEEPS.items()}
    return lines(panels, axis=RELATIVE, x_axis={title: x for title, (_, _, x) in SWEEPS.items()})


def sweep_table(measured: Measured) -> pd.DataFrame:
    """Return the sweeps: a row a policy and value."""
    return pd.DataFrame(
        {"sweep": title, "varied": axis, "value": value, "policy": policy}
        | {"ratio": ratio.mean, "low": ratio.low, "high": ratio.high, "seeds": ratio.seeds}
        for title, (fixed, varied, axis) in SWEEPS.items()
        for policy, points in swept(measured, fixed, varied).items()
        for value, ratio in points.items()
    )


def sweep_text(table: pd.DataFrame) -> str:
    """Return the sweeps' tables."""
    text = []
    workload = f"{SWEPT[0]}, {SWEPT[1]}, {SWEPT[2]} GPUs"
    for title, part in table.groupby("sweep", sort=False):
        rows: dict[str, dict[str, str]] = {}
        for point in part.itertuples():
            ratio = Interval(point.ratio, point.low, point.high, point.seeds)
            row = rows.setdefault(point.policy, {"policy": point.policy})
            row[f"{point.varied}: {point.value:g}"] = interval_text(ratio, decimals=2)
        text.append(f"## {RELATIVE}, {workload}; {title}\n\n{markdown(list(rows.values()))}\n")
    return "\n".join(text)


def main() -> int:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="400 GPUs, too")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 1 to N, at least 2")
    parser.add_argument(
        "--out", type=Path, default=Path("results/elastic_scaling"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    arguments = parser.parse_args()
    if arguments.seeds is not None and arguments.seeds < 2:
        parser.error(f"--seeds {arguments.seeds}: expected at least 2, since intervals are over seeds")
    clusters = [40, 400] if arguments.full else [40]
    planned = list(runs(clusters, arguments.seeds))
    return sweep_and_report(
        planned, arguments.out / "runs", arguments.jobs, lambda done: report(Measured(done), clusters, arguments.out)
    )


if __name__ == "__main__":
    sys.exit(main())
