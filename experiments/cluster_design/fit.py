"""Fits the constants of nodes of eight A100s to two thirds of the measured rows, tests them on the rest, and fits all.

    python experiments/cluster_design/fit.py --data DIR [--splits N] [--ship]

``DIR`` has ``training_times/single.csv``, ``training_times/multi.csv`` and ``allreduce_times/*.csv``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from fitting import PRIORS, Fitted, Link, fit_link, fit_rows, log_ratios, mean_error
from rich.console import Console
from rich.progress import track

from ddlsched.training.estimate.collectives import Span, collective_s
from ddlsched.training.estimate.rows import COLUMNS, MEASURED, RunsAlike, estimate_rows, read_rows

SHARE = 2 / 3
COUNTED = {"single": 1.0, "multi": 10.0}
"""How often a row counts: those of several nodes are 17 times as rare."""
LEAST_BYTES = 8e6


def read(data: Path) -> dict[str, pd.DataFrame]:
    """Return the measured rows of both files."""
    return {name: read_rows(data / "training_times" / f"{name}.csv").said for name in COUNTED}


def fit(frames: dict[str, pd.DataFrame], seed: int) -> tuple[Fitted, dict[str, np.ndarray]]:
    """Return the constants of one split, and which rows were fitted."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.permutation(len(frame)) < SHARE * len(frame) for name, frame in frames.items()}
    return fit_all({name: frame[drawn[name]] for name, frame in frames.items()}), drawn


def fit_all(frames: dict[str, pd.DataFrame]) -> Fitted:
    """Return the constants that all rows of some tables give."""
    return fit_rows(list(frames.values()), [np.full(len(frame), COUNTED[name]) for name, frame in frames.items()])


def splits(frames: dict[str, pd.DataFrame], count: int) -> pd.DataFrame:
    """Return, a row a split, the constants and the error on the rows that were not fitted, %."""
    rows = []
    for seed in track(range(count), "fitting splits", console=Console(stderr=True)):
        fitted, drawn = fit(frames, seed)
        errors = {f"{name} %": 100 * mean_error(frame[~drawn[name]], fitted) for name, frame in frames.items()}
        for name, frame in frames.items():
            left = log_ratios(frame, fitted)
            smoothed = np.abs(np.expm1(left + smooth(frame, -left, drawn[name])))
            errors[f"{name} smoothed %"] = 100 * float(smoothed[~drawn[name]].mean())
        constants = {name: getattr(fitted.efficiency, name) for name in PRIORS if name != "network_bytes_per_s"}
        rows.append({"seed": seed, **constants, "network": fitted.network_bytes_per_s, **errors})
    return pd.DataFrame(rows)


def smooth(frame: pd.DataFrame, left: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return for each row what is left of it by the runs alike among those that are known."""
    sizes = frame[list(COLUMNS)].to_numpy(np.float64)
    return RunsAlike(sizes[known], left[known]).left_of(sizes)


def all_reduces(data: Path, machine: str) -> tuple[np.ndarray, np.ndarray]:
    """Return measured message sizes (bytes) and times (s), out of place, of 8 GPUs."""
    frame = pd.read_csv(data / "allreduce_times" / f"{machine}_8gpu_nvlink.csv")
    return frame.iloc[:, 0].to_numpy(np.float64), frame.iloc[:, 3].to_numpy(np.float64) * 1e-9


def link_errors(message_bytes: np.ndarray, seconds: np.ndarray, link: Link) -> np.ndarray:
    """Return the relative errors of the closed form with a link's constants."""
    span = Span(8, link.bytes_per_s, link.latency_s)
    errors: np.ndarray = np.abs(collective_s("all-reduce", message_bytes, (span,)) / seconds - 1)
    return errors


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
            f"{100 * (errors <= 0.1).mean():.1f} % of {large.sum()} sizes within 10 %"
        )


def write_left(frames: dict[str, pd.DataFrame]) -> None:
    """Write the sizes of measured runs, and the logarithms of measured over estimated steps."""
    frame = pd.concat(frames.values())
    left = np.log(frame["iteration_ms"] / 1e3 / estimate_rows(frame).step_s)
    frame[list(COLUMNS)].assign(log_measured_over_estimated=left.round(4)).to_csv(MEASURED, index=False)


def report_hindsight(frame: pd.DataFrame) -> None:
    """Print what the constants leave of rows that they were fitted to: no held-out error can be expected below it."""
    odd = (frame["hidden"] == 8192) & (frame["tensor_parallel"] < 8)
    for what, rows in (("all", odd | True), ("without the 39-billion model's with tensor 2 or 4", ~odd)):
        fitted = fit_rows([frame[rows]])
        left = f", {100 * mean_error(frame[~rows], fitted):.2f} % on the others" if not rows.all() else ""
        print(
            f"Fitted to {rows.sum()} multi rows ({what}): {100 * mean_error(frame[rows], fitted):.2f} % on them{left}"
        )


def main() -> int:
    """Fit, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "expected" / "splits.csv", metavar="FILE.csv"
    )
    parser.add_argument("--splits", type=int, default=20, metavar="N", help="default: %(default)s")
    parser.add_argument("--ship", action="store_true", help="write the runs that 'estimate --rows' asks")
    arguments = parser.parse_args()
    for folder in ("training_times", "allreduce_times"):
        if not (arguments.data / folder).is_dir():
            parser.error(f"--data {arguments.data}: has no folder {folder}; expected the measured times")
    report_links(arguments.data)
    frames = read(arguments.data)
    fitted = fit_all(frames)
    print(f"\nAll rows:\n  {fitted.efficiency}\n  {fitted.network_bytes_per_s / 1e9:.3f} GB/s a GPU between nodes")
    for name, frame in frames.items():
        print(f"  {name}: off by {100 * mean_error(frame, fitted):.2f} % on average")
    report_hindsight(frames["multi"])
    if arguments.ship:
        write_left(frames)
    table = splits(frames, arguments.splits)
    table.to_csv(arguments.out, index=False, float_format="%.4g")
    print(f"\n{table.to_string(index=False, float_format='%.4g')}\n")
    kinds = [name for name in table if name.endswith("%")]
    summary = table[kinds].agg(["mean", "min", "max"]).T.rename_axis("rows").assign(splits=len(table)).reset_index()
    summary.to_csv(arguments.out.with_name("measured_rows.csv"), index=False, float_format="%.4g")
    print(summary.to_string(index=False, float_format="%.2f"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
