"""What a main queue waits more because idle nodes are used: by nobody, by jobs that sleep, by training.

    python experiments/slurm_live/run.py --out DIR [--jobs 24] [--only NAME]
    python experiments/slurm_live/run.py --measured experiments/slurm_live/expected

The first runs each of the three for real, unless DIR holds it, on eight nodes of this host; it needs Slurm's Debian
packages (tests/slurm/run installs them), and draws the nodes into DIR/nodes.png. Both print the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from main_queue import FILLERS, run_beside
from nodes_chart import nodes_chart

from ddlsched.cli.output import emit, notice
from ddlsched.cli.reporting import reported
from ddlsched.comparisons.charts.style import save
from ddlsched.errors import InputError
from ddlsched.io.files import replacing


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path)
    where.add_argument("--measured", type=Path)
    parser.add_argument("--jobs", type=int, default=24)
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
        row |= {"p95_wait_s": round(float(wait_s.quantile(0.95)), 2), "steps": int(waits["steps"].iloc[0])}
        row |= {"main_share_%": round(main, 1), "idle_share_%": round(idle, 1)}
        rows.append(row | {"load": float(waits["load"].iloc[0])})
    if not rows:
        raise InputError(f"{folder}: holds no runs; expected files such as nobody-waits.csv")
    return pd.DataFrame(rows)


def more_than_slurms_own(folder: Path) -> pd.Series:
    """Return how much longer each of the main queue's jobs waited for training than for jobs that only sleep."""
    ours, own = (pd.read_csv(folder / f"{name}-waits.csv").set_index("job") for name in ("training", "sleeping"))
    more: pd.Series = (ours["start_s"] - ours["submit_s"]) - (own["start_s"] - own["submit_s"])
    return more


def main() -> None:
    """Measure, print, draw."""
    args = arguments()
    with reported():
        folder = args.out or args.measured
        if args.out is not None:
            measure(args.out, args.jobs, args.only)
        found = table(folder)
        emit(found.to_string(index=False) + "\n")
        if args.out is not None:
            found.to_csv(args.out / "table.csv", index=False)
        if (folder / "sleeping-waits.csv").exists() and (folder / "training-waits.csv").exists():
            more_s = more_than_slurms_own(folder)
            share = 100 * float((more_s <= 2).mean())
            emit(f"beyond Slurm's own preemption: mean {more_s.mean():.2f} s, {share:.0f} % of jobs at most 2 s\n")
        if args.out is not None and (args.out / "training-nodes.csv").exists():
            save(nodes_chart(args.out / "training-nodes.csv"), args.out / "nodes")


if __name__ == "__main__":
    main()
