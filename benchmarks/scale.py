"""How seconds and memory grow with jobs, GPUs and iterations a job; a whole trace; 100 seeds of the 64-GPU experiment.

``scale.py [--only jobs gpus iterations trace sampled experiment] [--draws N] [--philly FILE] [--json FILE]``; each run
but the experiment's is a process of its own. Seconds are wall-clock; CPU seconds are beside them, since other work
may run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmark_tables import Table, say

from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.results.statistics import mean_interval

HERE = Path(__file__).parent
PHILLY = HERE.parents[1] / "shared/data/traces/pollux-osdi21/philly.csv.gz"
SRSF_1 = {"scheduler": "srsf-1"}
MIXED: dict[str, Any] = {"gpus": 1_024, "sizes": "mixed", "load": 0.3}
"""Jobs of 1 to 16 GPUs that meet seldom: with more of them, contended iterations decide the time."""
SINGLE: dict[str, Any] = {"sizes": "single", "load": 0.95}
JOBS = (100, 1_000, 10_000, 100_000)
GPUS = (64, 1_024, 8_192, 65_536)
ITERATIONS = (1_000, 10_000, 100_000, 1_000_000)
COLUMNS = ("", "loop, s", "CPU, s", "peak MB", "iterations", "skipped, %", "contended", "rounds")
TRACE_RUNS: dict[str, dict[str, Any]] = {
    "SRSF(1), LWF-1": {"gpus": 2_504} | SRSF_1,
    "SRSF(2), LWF-1": {"gpus": 2_504, "scheduler": "srsf-2"},
    "Ada-SRSF": {"gpus": 2_504, "scheduler": "ada-srsf"},
    "3,000 jobs, 320 GPUs, SRSF(1)": {"gpus": 320, "jobs": 3_000} | SRSF_1,
    "3,000 jobs, 320 GPUs, Ada-SRSF": {"gpus": 320, "jobs": 3_000, "scheduler": "ada-srsf"},
}
SAMPLED: dict[str, Any] = {"gpus": 2_504, "placement": "first-fit", "sample": True} | SRSF_1
EXPERIMENT: dict[str, dict[str, Any]] = {
    "Ada-SRSF": {"scheduler": "ada-srsf"},
    "SRSF(1)": {"scheduler": "srsf-1"},
    "SRSF(2)": {"scheduler": "srsf-2"},
    "SRSF(3)": {"scheduler": "ada-srsf", "communication": "bounded-overlap:limit=3"},
    "FF": {"scheduler": "ada-srsf", "placement": "first-fit"},
    "LS": {"scheduler": "ada-srsf", "placement": "list-scheduling"},
    "RAND": {"scheduler": "ada-srsf", "placement": "random"},
    "LWF-4": {"scheduler": "ada-srsf", "placement": "lwf:kappa=4"},
}
SEEDS = 100


def run(**spec: Any) -> dict[str, Any]:
    say(" ".join(f"{name}={value}" for name, value in spec.items() if name != "trace"))
    command = [sys.executable, str(HERE / "scale_run.py"), json.dumps(spec)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def row(label: str, found: dict[str, Any]) -> list[str | float | int | None]:
    share = f"{100 * found['skipped'] / found['iterations']:.1f}"
    return [
        label,
        found["engine_s"],
        found["cpu_s"],
        round(found["peak_mb"]),
        found["iterations"],
        share,
        found["contended"],
        found["rounds"],
    ]


def growth(title: str, name: str, values: Sequence[int], **fixed: Any) -> Table:
    runs = [run(**{name: value}, **fixed, **SRSF_1) for value in values]
    rows = [row(f"{value:,}", found) for value, found in zip(values, runs, strict=True)]
    notes = [
        f"Exponent of {what} in {name}: {exponent(values, [found[field] for found in runs]):.2f}"
        for what, field in (("seconds", "engine_s"), ("CPU seconds", "cpu_s"), ("memory", "peak_mb"))
    ]
    notes.append("GPUs busy: " + ", ".join(f"{found['utilisation']:.0%}" for found in runs))
    return Table(title=title, columns=(name, *COLUMNS[1:]), rows=rows, notes=notes)


def exponent(values: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of the straight line through the logarithms."""
    return float(np.polyfit(np.log(values), np.log(costs), 1)[0])


def import_philly(philly: Path, workload: Path) -> None:
    """Write the jobs of the trace as a workload file."""
    command = ["workload", "import", "philly-csv", str(philly), "--out", str(workload), "--gpus-per-server", "8"]
    subprocess.run([str(Path(sys.executable).with_name("ddlsched")), *command], check=True, capture_output=True)


def trace(philly: Path, runs: dict[str, dict[str, Any]]) -> Table:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "philly.parquet"
        import_philly(philly, workload)
        for spec in runs.values():
            found.append(run(trace=str(workload), **spec))
            say(json.dumps(found[-1]))
    return Table(
        title="Philly, 82,247 jobs, 313 servers of 8 GPUs used exclusively, star, 10 GbE; or the first 3,000 of them",
        columns=COLUMNS,
        rows=[row(label, each) for label, each in zip(runs, found, strict=True)],
        notes=[
            "To reach: 5 minutes and 4,000 MB, also with 1e8 contended iterations.",
            *(sampled(found) if all(spec.get("sample") for spec in runs.values()) else ()),
        ],
    )


def sampled(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what sampled runs of a trace computed, and how far draws of it are apart."""
    computed, contended = (sum(each[name] for each in found) for name in ("computed", "contended"))
    yield f"Computed: {100 * computed / contended:.2f} % of the contended iterations."
    for name in ("average_jct_s", "makespan_s") if len(found) > 1 else ():
        values = [each[name] for each in found]
        interval = mean_interval(values)
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        yield f"{name}: {interval.mean:,.0f} [{interval.low:,.0f}, {interval.high:,.0f}], draws from {spread}"


def experiment() -> Table:
    runs = [
        Run(workload="microsoft-160", options=settings, seed=seed, labels={"policy": label})
        for label, settings in EXPERIMENT.items()
        for seed in range(1, SEEDS + 1)
    ]
    say(f"64-GPU experiment: {len(runs)} runs")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        failures = sweep(runs, Path(folder)).failures
    seconds = time.perf_counter() - begin
    return Table(
        title=f"64-GPU experiment at full size, {SEEDS} seeds x {len(EXPERIMENT)} policies, all cores",
        columns=("runs", "failed", "wall, s"),
        rows=[[str(len(runs)), len(failures), seconds]],
        notes=["To reach: 600 s."],
    )


def tables(only: Sequence[str], philly: Path, draws: int) -> Iterator[Table]:
    if "jobs" in only:
        yield growth("1,024 GPUs, about 10,000 iterations a job", "jobs", JOBS, **MIXED, iterations=10_000)
    if "gpus" in only:
        yield growth("100,000 jobs of one GPU", "gpus", GPUS, jobs=100_000, **SINGLE, iterations=10_000)
    if "iterations" in only:
        yield growth("10,000 jobs, 1,024 GPUs", "iterations", ITERATIONS, jobs=10_000, **MIXED)
    drawn = {f"SRSF(1), first-fit, sampled, draw {draw}": SAMPLED | {"draw": draw} for draw in range(draws)}
    for part, runs in {"trace": TRACE_RUNS, "sampled": drawn}.items():
        if part in only and philly.exists():
            yield trace(philly, runs)
        elif part in only:
            say(f"no trace at {philly}: give its place with --philly (docs/traces.md says where to get it)")
    if "experiment" in only:
        yield experiment()


def main() -> None:
    parts = ("jobs", "gpus", "iterations", "trace", "sampled", "experiment")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--draws", type=int, default=1, help="of the sampled trace, whose lengths differ by a hair")
    parser.add_argument("--philly", type=Path, default=PHILLY, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    printed = []
    for table in tables(given.only, given.philly, given.draws):
        print(table, end="\n\n", flush=True)
        printed.append({"title": table.title, "columns": list(table.columns), "rows": [list(r) for r in table.rows]})
    if given.json:
        given.json.write_text(json.dumps(printed, indent=1))


if __name__ == "__main__":
    main()
