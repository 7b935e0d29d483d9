"""Contention models against measurements: pairs of jobs, concurrent all-reduces, placements.

    python experiments/contention_validity/run.py [--data DIR] [--halves N] [--out DIR]

Prints the tables; writes them to OUT/tables and the charts to OUT/charts. Without the measurements it says where it
looked for them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import charts
import latencies
import measured
import numpy as np
import pairs
import pandas as pd
import placements

from ddlsched.cli.output import status
from ddlsched.comparisons.charts.style import save

ROOT = Path(__file__).parents[2]
DATA = next((path for parent in ROOT.parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data"))
HALVES = 50
PLAIN = {"no contention", "one mean", "by row and column", "no communication", "mean by batch"}
"""What is predicted without simulating anything."""
BASELINES = {
    "pairs": "equal share = max-min",
    "latencies": "linear, preset 1gbe",
    "placements": "linear (whole message)",
}
SHOWN_PAIRS = ("equal share = max-min", "equal share of each connection")


def summary(data_set: str, errors: pd.DataFrame) -> pd.DataFrame:
    """Return mean and 95 % range over halves of each model's tested error, and of its difference to the baseline's.

    ``errors`` has a row a half and a column a model.
    """
    baseline = errors[BASELINES[data_set]]
    rows = []
    for model in errors.columns:
        low, high = np.quantile(errors[model], [0.025, 0.975])
        difference = errors[model] - baseline
        less, more = np.quantile(difference, [0.025, 0.975])
        rows.append(
            {
                "data": data_set,
                "model": model,
                "error": errors[model].mean(),
                "low": low,
                "high": high,
                "less_baseline": difference.mean(),
                "less_baseline_low": less,
                "less_baseline_high": more,
                "simulated": model not in PLAIN,
            }
        )
    return pd.DataFrame(rows)


def pair_part(data: Path, number: int, out: Path) -> dict[str, pd.DataFrame]:
    """Compare with the throughput ratios of job pairs."""
    ratios = measured.pairs(data)
    errors, predictions, fits = pairs.errors(ratios, number)
    tested = ~pairs.masks(len(ratios), 1)[0]
    shown = {name: predictions[name] for name in SHOWN_PAIRS}
    save(charts.pair_chart(ratios.to_numpy(), shown, tested), out / "pairs_measured")
    found = summary("pairs", errors)
    title = f"Throughput of {len(ratios)} jobs beside each of them"
    save(charts.error_chart(found, axis="Mean error of the throughput ratio", title=title), out / "pairs_errors")
    below, cut = float((ratios.to_numpy() < 0.5).mean()), float((ratios.to_numpy() == 1).mean())
    return {"errors": found, "pair_fits": fits.assign(measured_below_half=below, measured_at_one=cut)}


def latency_part(data: Path, number: int, out: Path) -> dict[str, pd.DataFrame]:
    """Compare with the latencies of concurrent all-reduces."""
    rows = measured.latencies(data)
    errors, constants = latencies.errors(rows, number)
    models = {**latencies.PRESETS, **latencies.FITTED_TO_ALL, **latencies.fitted_models(rows)}
    by_jobs = latencies.by_jobs(rows, models)
    shown = ["measured", *latencies.PRESETS, *latencies.FITTED_TO_ALL, "linear, no penalty, fitted"]
    save(charts.latency_chart(by_jobs[shown]), out / "latencies_by_jobs")
    found = summary("latencies", errors)
    title = "Latency of 1 to 16 all-reduces, 1 Gbit/s"
    save(charts.error_chart(found, axis="Mean relative error of the latency", title=title), out / "latencies_errors")
    return {
        "errors": found,
        "latency_constants": constants,
        "latencies_by_jobs": by_jobs.reset_index(),
        "latencies_alone": latencies.alone_table(measured.alone(data)),
    }


def placement_part(data: Path, number: int, out: Path) -> dict[str, pd.DataFrame]:
    """Compare with steps of single jobs by placement."""
    rows = measured.placements(data)
    by_app, predicted = placements.errors(rows, number)
    found = summary("placements", by_app.groupby("half").mean(numeric_only=True))
    sync = placements.sync_table(rows)
    save(charts.sync_chart(sync), out / "placements_sync")
    title = "Step of a job alone, by placement"
    save(charts.error_chart(found, axis="Mean relative error of the step", title=title), out / "placements_errors")
    apps = by_app.drop(columns="half").groupby("app", sort=False).mean().T.rename_axis("model").reset_index()
    return {
        "errors": found,
        "placement_apps": apps,
        "placement_sync": sync,
        "placement_sync_errors": placements.sync_errors(predicted),
        "placement_local": placements.local_table(rows),
    }


PARTS: dict[str, Callable[[Path, int, Path], dict[str, pd.DataFrame]]] = {
    "latencies": latency_part,
    "pairs": pair_part,
    "placements": placement_part,
}


def report(data: Path, number: int, out: Path) -> dict[str, pd.DataFrame]:
    """Carry out all parts, draw charts into ``out``/charts, write tables into ``out``/tables, and return those."""
    tables: dict[str, pd.DataFrame] = {}
    for name, part in PARTS.items():
        with status(f"{name}: simulating and fitting"):
            found = part(data, number, out / "charts")
        errors = [*([tables["errors"]] if tables else []), found.pop("errors")]
        tables |= {**found, "errors": pd.concat(errors, ignore_index=True)}
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / "tables" / f"{name}.csv", index=False, float_format="%.4g", lineterminator="\n")
    return tables


def main() -> int:
    """Compute, print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--halves", type=int, default=HALVES, metavar="N", help="random halves; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/contention_validity"), metavar="DIR")
    arguments = parser.parse_args()
    if arguments.halves < 2:
        parser.error("--halves: expected at least 2")
    if absent := measured.missing(arguments.data):
        print(
            f"{absent[0]}: the measurements are not there; get them as README.md says and give their folder by --data",
            file=sys.stderr,
        )
        return 2
    tables = report(arguments.data, arguments.halves, arguments.out)
    for name, table in tables.items():
        print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.4g}'.format, na_rep='-')}\n")
    print(f"Tables: {arguments.out / 'tables'}", f"Charts: {arguments.out / 'charts'}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
