"""What a main queue waits more because idle nodes are used, by whom: nobody, jobs that sleep, FreeTrain, MalleTrain.

    python experiments/slurm_live/run.py --out DIR [--jobs 24] [--quick] [--only NAME]
    python experiments/slurm_live/run.py --measured experiments/slurm_live/expected

The first runs each of the four for real under the same main queue, unless DIR holds it, on eight nodes of this host; it
needs Slurm's Debian packages (tests/slurm/run installs them) and PyTorch, and draws the nodes of MalleTrain into
DIR/nodes.png. --quick has 8 jobs. Both print the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from main_queue import FILLERS, TRAINING, run_beside
from nodes_chart import nodes_chart

from ddlsched.cli.output import emit, notice
from ddlsched.cli.reporting import reported
from ddlsched.comparisons.charts.style import save
from ddlsched.errors import InputError
from ddlsched.io.files import replacing

QUICK_JOBS = 8


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path)
    where.add_argument("--measured", type=Path)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=FILLERS)
    return parser.parse_args(given)


def measure(folder: Path, num_jobs: int, only: str | None) -> None:
    """Make the runs that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for filler in FILLERS if only is None else [only]:
        path = folder / f"{filler}-waits.csv"
        if path.exists():
            continue
        notice(f"idle nodes have: {filler}")
        waits, nodes = run_beside(filler, num_jobs, folder / f"{filler}-events")
        nodes.to_csv(folder / f"{filler}-nodes.csv", index=False)
        with replacing(path, "--out") as partial:
            waits.to_csv(partial, index=False)


def table(folder: Path) -> pd.DataFrame:
    """Return, by what idle nodes had, how long the main queue's jobs waited and how busy the nodes were."""
    rows = []
    for filler in FILLERS:
        if not (folder / f"{filler}-waits.csv").exists():
            continue
        waits = pd.read_csv(folder / f"{filler}-waits.csv")
        nodes = pd.read_csv(folder / f"{filler}-nodes.csv")
        wait_s = waits["start_s"] - waits["submit_s"]
        main, idle = (100 * float((nodes["partition"] == name).mean()) for name in ("main", "idle"))
        row = {"idle nodes have": filler, "jobs": len(waits), "mean_wait_s": round(float(wait_s.mean()), 2)}
        row |= {"p95_wait_s": round(float(wait_s.quantile(0.95)), 2)}
        row |= {"samples": int(waits["samples"].iloc[0]), "overhead_%": _overhead(waits, nodes)}
        row |= {"main_share_%": round(main, 1), "idle_share_%": round(idle, 1)}
        rows.append(row | {"load": float(waits["load"].iloc[0])})
    if not rows:
        raise InputError(f"{folder}: holds no runs; expected files such as nobody-waits.csv")
    return pd.DataFrame(rows)


def _overhead(waits: pd.DataFrame, nodes: pd.DataFrame) -> float | None:
    """Return the share of training's node time in which no step went on, per cent; None of the others."""
    useful_s, looks_s = float(waits["useful_node_s"].iloc[0]), sorted(nodes["time_s"].unique())
    lasts_s = dict(zip(looks_s, np.diff(looks_s, append=looks_s[-1]), strict=True))
    held_s = float(nodes.loc[nodes["partition"] == "idle", "time_s"].map(lasts_s).sum())
    return round(100 * (1 - useful_s / held_s), 1) if useful_s else None


def more_than_slurms_own(folder: Path, training: str) -> pd.Series:
    """Return how much longer each of the main queue's jobs waited for training than for jobs that only sleep."""
    ours, own = (pd.read_csv(folder / f"{name}-waits.csv").set_index("job") for name in (training, "sleeping"))
    more: pd.Series = (ours["start_s"] - ours["submit_s"]) - (own["start_s"] - own["submit_s"])
    return more


def main() -> None:
    """Measure, print, draw."""
    args = arguments()
    with reported():
        folder = args.out or args.measured
        if args.out is not None:
            measure(args.out, QUICK_JOBS if args.quick else args.jobs, args.only)
        found = table(folder)
        emit(found.to_string(index=False) + "\n")
        if args.out is not None:
            found.to_csv(args.out / "table.csv", index=False)
        for training in TRAINING:
            if all((folder / f"{name}-waits.csv").exists() for name in ("sleeping", training)):
                more_s = more_than_slurms_own(folder, training)
                share = f"{100 * float((more_s <= 2).mean()):.0f} % of jobs at most 2 s"
                emit(f"{training}, beyond Slurm's own preemption: mean {more_s.mean():.2f} s, {share}\n")
        if args.out is not None and (args.out / "MalleTrain-nodes.csv").exists():
            save(nodes_chart(args.out / "MalleTrain-nodes.csv"), args.out / "nodes")


if __name__ == "__main__":
    main()
