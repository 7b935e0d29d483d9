"""What a main queue waits more because idle nodes are used, by whom: nobody, jobs that sleep, FreeTrain, MalleTrain.

    python experiments/slurm_live/run.py --out DIR [--jobs 24] [--first-seed 0] [--seeds 1] [--quick]
    python experiments/slurm_live/run.py --measured experiments/slurm_live/expected

The first runs each of the four for real under the same main queue, unless DIR holds it, on eight nodes of this host; it
needs Slurm's Debian packages (tests/real/slurm/run installs them) and PyTorch, and draws the nodes of MalleTrain into
DIR/nodes.png. --quick has 8 jobs. Both print the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from main_queue import FILLERS, TRAINING, run_beside
from nodes_chart import nodes_chart

from ddlsched.cli.reporting import emit, notice, reported
from ddlsched.comparisons.charts.style import save
from ddlsched.errors import InputError
from ddlsched.io.files import replacing
from ddlsched.results.paired_comparison import interval_text
from ddlsched.results.statistics import mean_interval, paired_change

QUICK_JOBS = 8


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path)
    where.add_argument("--measured", type=Path)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args(given)


def measure(folder: Path, num_jobs: int, seed: int) -> None:
    """Make the runs of a seed that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for filler in FILLERS:
        path = folder / f"{filler}-waits.csv"
        if path.exists():
            continue
        notice(f"seed {seed}, idle nodes have: {filler}")
        waits, nodes = run_beside(filler, num_jobs, seed, folder / f"{filler}-events")
        nodes.to_csv(folder / f"{filler}-nodes.csv", index=False)
        with replacing(path, "--out") as partial:
            waits.to_csv(partial, index=False)


def seeds_of(folder: Path) -> list[Path]:
    """Return the folders of the seeds that were run with everybody on the idle nodes.

    Raises
    ------
    InputError
        There are none.
    """
    files = [f"{filler}-waits.csv" for filler in FILLERS]
    found = sorted(seed for seed in folder.glob("seed*") if all((seed / name).exists() for name in files))
    if not found:
        raise InputError(f"{folder}: holds no runs; expected files such as seed0/{files[0]}")
    return found


def tables(folder: Path) -> pd.DataFrame:
    """Return the tables of all seeds."""
    numbered = [table(seed).assign(seed=int(seed.name.removeprefix("seed"))) for seed in seeds_of(folder)]
    return pd.concat(numbered, ignore_index=True)


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


def summary(folder: Path) -> pd.DataFrame:
    """Return what training made of idle nodes and what the main queue paid for it, means over seeds with intervals."""
    by_filler = tables(folder).set_index(["seed", "idle nodes have"])
    rows = []
    for training in TRAINING:
        own = by_filler.xs(training, level="idle nodes have")
        more_s = [more_than_slurms_own(seed, training) for seed in seeds_of(folder)]
        rows.append(
            {
                "idle nodes have": training,
                "seeds": len(own),
                "samples": round(float(own["samples"].mean())),
                "overhead, %": interval_text(mean_interval(own["overhead_%"]), decimals=1),
                "wait beyond Slurm's own, s": interval_text(mean_interval([s.mean() for s in more_s]), decimals=2),
                "at most 2 s, %": round(100 * float((pd.concat(more_s) <= 2).mean()), 1),
                "samples against FreeTrain, %": gain(folder) if training == "MalleTrain" else "",
            }
        )
    return pd.DataFrame(rows)


def gain(folder: Path) -> str:
    """Return how many samples more MalleTrain trained than FreeTrain, by seed in pairs, per cent."""
    found = tables(folder).pivot(index="seed", columns="idle nodes have", values="samples")
    return interval_text(paired_change(found["MalleTrain"], found["FreeTrain"]).scaled(100), decimals=0, sign=True)


def main() -> None:
    """Measure, print, draw."""
    args = arguments()
    with reported():
        folder = args.out or args.measured
        if args.out is not None:
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                measure(args.out / f"seed{seed}", QUICK_JOBS if args.quick else args.jobs, seed)
        found = tables(folder)
        emit(found.to_string(index=False) + "\n\n" + summary(folder).to_string(index=False) + "\n")
        if args.out is not None:
            found.to_csv(args.out / "table.csv", index=False)
            summary(args.out).to_csv(args.out / "summary.csv", index=False)
            save(nodes_chart(seeds_of(args.out)[0] / "MalleTrain-nodes.csv"), args.out / "nodes")


if __name__ == "__main__":
    main()
