"""What jobs that share a GPU cost each other, from measured rates: ``run.py [--measured DIR] [--out DIR]``; seconds.

Prints and writes ``throughput.csv`` and ``by_count.csv`` (how much of its throughput a shared GPU keeps),
``penalties.csv`` (what a job of one model costs one of another, for ``--interference
pairs:file=penalties.csv,once=true``), ``restarts.csv`` (what a stop costs) and a picture.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm

from ddlsched.cli.reporting import reported
from ddlsched.comparisons.charts.style import in_style, new_panels, save
from ddlsched.results.paired_comparison import markdown

HERE = Path(__file__).parent
MODELS = ("VGG-16", "ResNet-50", "Inception-V3", "LSTM-PTB", "GPT")
SIZES = {"paper": "batch of the 64-GPU jobs", "large": "batch eight times as large"}
CSV = {"index": False, "float_format": "%.4f", "lineterminator": "\n"}


def read(folder: Path) -> pd.DataFrame:
    """Return a row a job of a combination and run: steps a second, and what it makes alone.

    ``share`` is the part of its own throughput alone that the job makes. Combinations that were cut off are left out.
    """
    runs = [pd.read_csv(path).assign(run=path.stem) for path in sorted(folder.glob("rates_*.csv"))]
    rates = pd.concat(runs).fillna({"others": ""})
    alone = rates[rates["others"] == ""].set_index(["run", "batches", "model"])["steps_per_s"]
    key = pd.MultiIndex.from_frame(rates[["run", "batches", "model"]])
    rates["alone_per_s"] = alone.reindex(key).to_numpy()
    rates["jobs"] = rates["combination"].str.count(r"\+") + 1
    rates["share"] = rates["steps_per_s"] / rates["alone_per_s"]
    together = rates.groupby(["run", "batches", "combination"])["share"]
    return rates[together.transform("count") == rates["jobs"]]


def throughput(rates: pd.DataFrame) -> pd.DataFrame:
    """Return a row a combination: its throughput over that of turns at no cost, least and greatest of its runs.

    1 is what a GPU makes that has one job after the other.
    """
    together = rates.groupby(["batches", "jobs", "combination", "run"], sort=False)["share"].sum()
    found = together.groupby(level=["batches", "jobs", "combination"], sort=False).agg(["mean", "min", "max", "count"])
    found.columns = ["throughput", "least", "greatest", "runs"]
    return found.reset_index()


def penalties(rates: pd.DataFrame) -> pd.DataFrame:
    """Return by how much longer a step takes beside another job than half of the turns would have it, large batches.

    A pair that fills what the other leaves idle costs nothing; that it gains is not said.
    """
    pairs = rates[(rates["batches"] == "large") & (rates["jobs"] == 2)]
    share = pairs.groupby(["model", "others"], sort=False)["share"].mean()
    found = (1 / (2 * share) - 1).clip(lower=0).rename("penalty_share").reset_index()
    return found.rename(columns={"others": "other"})


def by_count(found: pd.DataFrame) -> pd.DataFrame:
    """Return a row a size of batches and number of jobs: mean, least and greatest throughput of its combinations."""
    rows = found.groupby(["batches", "jobs"], sort=False)["throughput"].agg(["count", "mean", "min", "max"])
    rows.columns = ["combinations", "throughput", "least", "greatest"]
    return rows.reset_index().sort_values(["batches", "jobs"], ascending=[False, True])


def restarts(folder: Path) -> pd.DataFrame:
    """Return a row a model: the parts of a stop and their sum, seconds."""
    found = pd.read_csv(folder / "restarts.csv").drop(columns="repetition")
    return found.assign(stop_s=found.filter(regex="_s$").sum(axis=1))


def picture(found: pd.DataFrame, path: Path) -> None:
    """Draw the throughput of each pair, a panel a size of batches."""
    with in_style():
        figure, panels = new_panels(4.0, 2, width_inches=10.5)
        for panel, (size, title) in zip(panels, SIZES.items(), strict=True):
            pairs = found[(found["batches"] == size) & (found["jobs"] == 2)].set_index("combination")["throughput"]
            values = [[pairs.get(f"{a}+{b}", pairs.get(f"{b}+{a}")) for b in MODELS] for a in MODELS]
            drawn = panel.imshow(values, cmap="RdBu", norm=TwoSlopeNorm(1.0, vmin=0.8, vmax=2.2))
            for (row, column), value in np.ndenumerate(np.array(values)):
                color = "white" if value > 1.8 else "black"
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
            panel.set_title(f"{title[0].upper()}{title[1:]}")
            panel.set_xticks(range(len(MODELS)), MODELS, rotation=30, ha="right")
            panel.set_yticks(range(len(MODELS)), MODELS)
        bar = figure.colorbar(drawn, ax=panels, shrink=0.9)
        bar.set_label("steps of both, each over its own alone\n(1: turns that cost nothing)")
        save(figure, path)


def main() -> int:
    """Print the tables and write them and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=HERE / "measured" / "h100", metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("results/gpu_sharing"), metavar="DIR")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rates = read(given.measured)
    found = throughput(rates)
    tables = {
        "by_count": by_count(found),
        "throughput": found,
        "penalties": penalties(rates),
        "restarts": restarts(given.measured),
    }
    for name, table in tables.items():
        texts = table.map(lambda value: f"{value:.3f}" if isinstance(value, float) else str(value))
        print(f"## {name}\n\n{markdown(texts.to_dict('records'))}\n")
        table.to_csv(given.out / f"{name}.csv", **CSV)
    picture(found, given.out / "pairs")
    print(f"tables and picture in {given.out}")
    return 0


if __name__ == "__main__":
    with reported():
        sys.exit(main())
