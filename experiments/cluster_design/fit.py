"""Fits the constants of nodes of eight A100s to a tenth of the measured rows, and tests them on the rest.

    python experiments/cluster_design/fit.py --data DIR [--splits N] [--out DIR]

``DIR`` has ``training_times/single.csv``, ``training_times/multi.csv`` and ``allreduce_times/*.csv``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from ddlsched.training.estimate.collectives import Span, collective_s
from ddlsched.training.estimate.fitting import Fitted, Link, draw_rows, fit_link, fit_rows, mean_error, stratum_weights
from ddlsched.training.estimate.rows import estimate_rows, read_rows

SHARE = 0.1
SEED = 0
STRATA = {"single": ["hidden", "tensor_parallel", "micro_batch"], "multi": ["hidden"]}
LEAST_BYTES = 8e6


def read(data: Path) -> dict[str, pd.DataFrame]:
    """Return the measured rows of both files."""
    return {name: read_rows(data / "training_times" / f"{name}.csv") for name in STRATA}


def fit(frames: dict[str, pd.DataFrame], seed: int) -> tuple[Fitted, dict[str, np.ndarray]]:
    """Return the constants of one split, and which rows were fitted."""
    drawn = drawn_rows(frames, seed)
    fitted = fit_rows([each.rows for each in drawn.values()], [each.weights for each in drawn.values()])
    return fitted, {name: frame.index.isin(drawn[name].rows.index) for name, frame in frames.items()}


class Drawn(NamedTuple):
    """Rows to fit, and how much each of them counts."""

    rows: pd.DataFrame
    weights: np.ndarray


def drawn_rows(frames: dict[str, pd.DataFrame], seed: int) -> dict[str, Drawn]:
    """Return the rows to fit of each file."""
    found = {}
    for name, frame in frames.items():
        which = draw_rows(frame, STRATA[name], share=SHARE, seed=seed)
        found[name] = Drawn(frame[which], stratum_weights(frame, STRATA[name], which))
    return found


def splits(frames: dict[str, pd.DataFrame], count: int) -> pd.DataFrame:
    """Return, a row a split, the constants and the error on the rows that were not fitted, %."""
    rows = []
    for seed in track(range(count), "fitting splits", console=Console(stderr=True)):
        fitted, drawn = fit(frames, seed)
        errors = {f"{name} %": 100 * mean_error(frame[~drawn[name]], fitted) for name, frame in frames.items()}
        rows.append({"seed": seed, **vars(fitted.efficiency), "network": fitted.network_bytes_per_s, **errors})
    return pd.DataFrame(rows)


def all_reduces(data: Path, machine: str) -> tuple[np.ndarray, np.ndarray]:
    """Return measured message sizes (bytes) and times (s), out of place, of 8 GPUs."""
    frame = pd.read_csv(data / "allreduce_times" / f"{machine}_8gpu_nvlink.csv")
    return frame.iloc[:, 0].to_numpy(np.float64), frame.iloc[:, 3].to_numpy(np.float64) * 1e-9


def link_errors(message_bytes: np.ndarray, seconds: np.ndarray, link: Link) -> np.ndarray:
    """Return the relative errors of the closed form with a link's constants."""
    span = Span(8, link.bytes_per_s, link.latency_s)
    errors: np.ndarray = np.abs(collective_s("all-reduce", message_bytes, (span,)) / seconds - 1)
    return errors


def least_maximum(message_bytes: np.ndarray, seconds: np.ndarray) -> float:
    """Return the least largest relative error that any latency and bandwidth can have (a linear programme)."""
    from scipy.optimize import linprog

    design = np.column_stack([np.ones_like(seconds), message_bytes / message_bytes.mean()]) / seconds[:, None]
    slack = -np.ones((len(seconds), 1))
    sides = np.vstack([np.hstack([design, slack]), np.hstack([-design, slack])])
    ends = np.concatenate([np.ones(len(seconds)), -np.ones(len(seconds))])
    return float(linprog([0, 0, 1], A_ub=sides, b_ub=ends, bounds=[(0, None)] * 3, method="highs").fun)


def report_links(data: Path) -> None:
    """Print latency and bandwidth of each machine, and how far its all-reduces above 8 MB are off."""
    for machine in ("a100", "v100"):
        message_bytes, seconds = all_reduces(data, machine)
        large = message_bytes > LEAST_BYTES
        link = fit_link(message_bytes[large], seconds[large], gpus=8)
        errors = link_errors(message_bytes[large], seconds[large], link)
        print(
            f"{machine}: {1e6 * link.latency_s:.2f} us a step, {link.bytes_per_s / 1e9:.1f} GB/s; above 8 MB off by "
            f"{100 * errors.mean():.2f} % on average, {100 * errors.max():.1f} % at most; "
            f"{100 * (errors <= 0.1).mean():.1f} % of {large.sum()} sizes within 10 %; "
            f"no line is less than {100 * least_maximum(message_bytes[large], seconds[large]):.1f} % off at most"
        )


def report_rows(frames: dict[str, pd.DataFrame], fitted: Fitted) -> None:
    """Print how linear the single-node times are in the micro-batches, and the multi-node rows that are far off."""
    same = ["gpus", "micro_batch", "hidden", "layers", "tensor_parallel", "data_parallel", "pipeline_parallel"]
    bent = []
    for _, rows in frames["single"].groupby(same):
        if len(rows) > 2:
            times = rows["iteration_ms"].to_numpy()
            line = np.polyval(np.polyfit(rows["global_batch"].to_numpy(), times, 1), rows["global_batch"].to_numpy())
            bent.append(np.abs(line / times - 1).max())
    print(f"\nsingle: {len(bent)} sets of three or more batches are linear in the batch within {max(bent):.1e}")
    multi = frames["multi"]
    step_s = estimate_rows(multi, fitted.machine(multi["gpus"].to_numpy())).step_s
    error = 1e3 * step_s / multi["iteration_ms"] - 1
    off = multi.assign(error=error)[error.abs() > 0.1].sort_values("error")
    print(f"multi: {len(off)} of {len(multi)} rows are more than 10 % off, {(error.abs() <= 0.06).sum()} within 6 %:")
    print(off.drop(columns=["heads", "sequence", "gpus"]).to_string(index=False, float_format="%.3g"))


def report_chart(frames: dict[str, pd.DataFrame], fitted: Fitted, drawn: dict[str, np.ndarray], out: Path) -> None:
    """Draw predicted against measured times of the rows that were not fitted."""
    from ddlsched.comparisons.charts.design_charts import predicted_against_measured
    from ddlsched.comparisons.charts.style import save

    series = {}
    for name, title in (("single", "2-8 GPUs"), ("multi", "64-512 GPUs")):
        rows = frames[name][~drawn[name]]
        step_s = estimate_rows(rows, fitted.machine(rows["gpus"].to_numpy())).step_s
        series[title] = (rows["iteration_ms"].to_numpy() / 1e3, step_s)
    print("Charts:", *save(predicted_against_measured(series), out / "predicted_against_measured"), sep="\n  ")


def main() -> int:
    """Fit, test, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--splits", type=int, default=20, metavar="N", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/cluster_design"), metavar="DIR")
    arguments = parser.parse_args()
    for folder in ("training_times", "allreduce_times"):
        if not (arguments.data / folder).is_dir():
            parser.error(f"--data {arguments.data}: has no folder {folder}; expected the measured times")
    report_links(arguments.data)
    frames = read(arguments.data)
    fitted, drawn = fit(frames, SEED)
    print(
        f"\nSplit {SEED}, {' and '.join(f'{drawn[name].sum()} of {len(drawn[name])} {name}' for name in drawn)} rows:"
    )
    print(f"  {fitted.efficiency}\n  {fitted.network_bytes_per_s / 1e9:.3f} GB/s a GPU between nodes")
    for name, frame in frames.items():
        for what, rows in (("fitted", drawn[name]), ("tested", ~drawn[name])):
            print(f"  {name}, {what} rows: off by {100 * mean_error(frame[rows], fitted):.2f} % on average")
    tested = frames["multi"][~drawn["multi"]]
    widths = (f"{width:,} {100 * mean_error(own, fitted):.1f} %" for width, own in tested.groupby("hidden"))
    print(f"  multi, tested rows by width: {', '.join(widths)}")
    report_rows(frames, fitted)
    table = splits(frames, arguments.splits)
    print(f"\n{table.to_string(index=False, float_format='%.4g')}\n")
    print(table[["single %", "multi %"]].agg(["mean", "min", "max"]).to_string(float_format="%.2f"))
    report_chart(frames, fitted, drawn, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
