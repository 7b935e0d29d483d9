"""Stopping and resuming by order, at a price, beside FIFO, EASY and the same order without stops, over paired seeds.

    python experiments/backfilling/stop_and_resume.py --out results/stop_and_resume [--load 0.8] [--seeds 20]

Writes ``runs.csv`` (a row a run), ``comparison.csv`` (a row a policy) and ``average_jct.png``. GPUs are exclusive.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from algorithms.ordering.stopping_srtf import StoppingShortestRemainingTimeFirst
from algorithms.ordering.stopping_tiresias import StoppingTiresias
from ddlsched import Disturbances, simulate
from ddlsched.comparisons.charts.style import in_style, new_figure
from ddlsched.results.statistics import mean_interval, paired_change
from experiments.backfilling.stream import CLUSTER, CONTENTION, steady_stream

STATE_MB = 2000.0
SRTF, TIRESIAS = StoppingShortestRemainingTimeFirst(), StoppingTiresias(threshold_gpu_s=100.0, interval_s=5.0)
POLICIES: dict[str, tuple[Any, str, float]] = {
    "FIFO": ("fifo", "in-order", 0.0),
    "FIFO that skips": ("fifo", "first-fit", 0.0),
    "EASY": ("fifo", "easy-backfill", 0.0),
    "SRTF": ("srtf", "first-fit", 0.0),
    "SRTF, stops, restart 1 s": (SRTF, "first-fit", 1.0),
    "SRTF, stops, restart 5 s": (SRTF, "first-fit", 5.0),
    "Tiresias, stops, restart 1 s": (TIRESIAS, "first-fit", 1.0),
    "Tiresias, stops, restart 5 s": (TIRESIAS, "first-fit", 5.0),
}
"""Order, placement, and what going on after a stop takes, seconds."""


def run(policy: str, seed: int, load: float) -> dict[str, Any]:
    """Return the measures of a run."""
    order, placement, restart_s = POLICIES[policy]
    result = simulate(
        steady_stream(seed=seed, load=load),
        replace(CLUSTER, exclusive=True),
        order=order,
        placement=placement,
        communication="bounded-overlap:limit=2",
        contention=CONTENTION,
        disturbances=Disturbances(restart_s=restart_s, state_mb=STATE_MB),
        seed=seed,
    )
    jobs = result.jobs
    large = jobs["gpus"] >= 8
    return {
        "policy": policy,
        "seed": seed,
        "average_jct_s": jobs["jct_s"].mean(),
        "average_jct_of_8_gpus_or_more_s": jobs.loc[large, "jct_s"].mean(),
        "p95_jct_s": jobs["jct_s"].quantile(0.95),
        "stops_a_job": jobs["restarts"].mean(),
        "lost_share": jobs["lost_s"].sum() / jobs["compute_s"].sum(),
        "most_jobs_on_a_gpu": result.most_jobs_on_a_gpu,
    }


def compared(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return each policy's mean of a metric, and its change against FIFO, paired by seed, with 95 % intervals."""
    by_seed = runs.pivot(index="seed", columns="policy", values=metric)
    rows = []
    for policy in POLICIES:
        mean, change = mean_interval(by_seed[policy]), paired_change(by_seed[policy], by_seed["FIFO"]).scaled(100)
        rows.append(
            {
                "policy": policy,
                "metric": metric,
                "mean": mean.mean,
                "low": mean.low,
                "high": mean.high,
                "change_percent": change.mean,
                "change_low": change.low,
                "change_high": change.high,
            }
        )
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, load: float, seeds: int, path: Path) -> None:
    """Draw the average JCT of each policy with its interval."""
    mpl.use("Agg")
    with in_style():
        figure, axes = new_figure(3.0)
        places = np.arange(len(table))[::-1]
        errors = [table["mean"] - table["low"], table["high"] - table["mean"]]
        axes.errorbar(table["mean"], places, xerr=errors, fmt="o", capsize=3)
        axes.set_yticks(places, table["policy"])
        axes.set_xlim(left=0.0)
        axes.set_xlabel("average JCT (s), 95 % interval")
        axes.set_title(f"64 exclusive GPUs, a steady stream of load {load:g}, {seeds} paired seeds", fontsize="small")
        figure.savefig(path, bbox_inches="tight", dpi=160)


def main() -> None:
    """Run all policies on all seeds, and write tables and the chart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/stop_and_resume"))
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    runs = pd.DataFrame([run(name, seed, given.load) for seed in range(1, given.seeds + 1) for name in POLICIES])
    runs.to_csv(given.out / "runs.csv", index=False)
    metrics = ("average_jct_s", "average_jct_of_8_gpus_or_more_s", "p95_jct_s")
    table = pd.concat([compared(runs, metric) for metric in metrics])
    table.to_csv(given.out / "comparison.csv", index=False, float_format="%.4g")
    print(table.to_string(index=False, float_format=lambda number: f"{number:.1f}"))
    print(runs.groupby("policy", sort=False)[["stops_a_job", "lost_share", "most_jobs_on_a_gpu"]].mean())
    draw(table[table["metric"] == "average_jct_s"], given.load, given.seeds, given.out / "average_jct.png")


if __name__ == "__main__":
    main()
