"""How seconds and memory grow with jobs; a whole trace, exact and sampled; 100 seeds of the 64-GPU experiment.

``scale.py [--only jobs|trace|sampled|exact|experiment] [--draws N] [--philly FILE]``; each run but the experiment's is
a process of its own. Seconds are wall-clock; CPU seconds are beside them, since other work may run. ``exact``, the run
beside which the sampled draws stand, takes more than an hour and is made only where it is asked for.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import typer
from benchmark_tables import Table, in_a_process, peak_mb, say, timed, workload_of

import ddlsched
from ddlsched.comparisons.sweeps.sweep import Run, sweep
from ddlsched.results.statistics import mean_interval
from ddlsched.workload.generators.microsoft import MODELS
from ddlsched.workload.traces.trace_import import import_trace
from experiments.contention_64gpu.run import COMMUNICATION, KAPPA, PLACEMENT

Part = Literal["jobs", "trace", "sampled", "exact", "experiment"]
GPUS_PER_SERVER, MEMORY_MB = 8, 16_000.0
SIZES = (1,) * 13 + (2, 2, 4, 4, 8, 8, 16)
PHILLY = Path(__file__).parents[2] / "shared/data/traces/pollux-osdi21/philly.csv.gz"
SRSF_1 = {"scheduler": "srsf-1"}
JOBS = (100, 1_000, 10_000, 100_000)
COLUMNS = ("", "loop, s", "CPU, s", "peak MB", "skipped, %", "iterations", "contended")
TRACE_RUNS: dict[str, dict[str, Any]] = {
    "SRSF(1), LWF-1": {"gpus": 2_504} | SRSF_1,
    "SRSF(2), LWF-1": {"gpus": 2_504, "scheduler": "srsf-2"},
    "Ada-SRSF": {"gpus": 2_504, "scheduler": "ada-srsf"},
}
FIRST_FIT: dict[str, Any] = {"gpus": 2_504, "placement": "first-fit"} | SRSF_1
EXPERIMENT = PLACEMENT.policies | {name: COMMUNICATION.policies[name] for name in ("SRSF(1)", "SRSF(2)", "SRSF(3)")}
EXPERIMENT |= {"LWF-4": KAPPA.policies["κ=4"]}
SEEDS = 100


def run(**spec: Any) -> dict[str, Any]:
    say(" ".join(f"{name}={value}" for name, value in spec.items() if name != "trace"))
    return in_a_process(measured, **spec)


def measured(*, gpus: int, jobs: int = 0, trace: Path | None = None, **policies: Any) -> dict[str, Any]:
    """Run ``jobs`` made jobs, or those of a workload file, on GPUs used exclusively."""
    workload = made(jobs, gpus) if trace is None else exclusive(ddlsched.read_workload(trace).jobs)
    servers = -(-gpus // GPUS_PER_SERVER)
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=GPUS_PER_SERVER, gpu_memory_mb=MEMORY_MB)
    ddlsched.simulate(ddlsched.Workload.of(workload.jobs[:1]), cluster)  # loads the compiled code
    result, _, cpu_s = timed(partial(ddlsched.simulate, workload, cluster, **policies))
    return result.summary() | {
        "cpu_s": cpu_s,
        "peak_mb": peak_mb(),
        "iterations": sum(job.iterations for job in workload),
        "skipped": result.skipped_iterations,
        "contended": result.contended_iterations,
        "computed": result.computed_iterations,
    }


def made(count: int, gpus: int, iterations: int = 10_000, load: float = 0.3) -> ddlsched.Workload:
    """Return jobs of the four measured models whose compute alone keeps a share ``load`` of the GPUs busy.

    They meet seldom: with more of them, contended iterations decide the time.
    """
    rng = np.random.default_rng(1)
    jobs = pd.DataFrame(MODELS).iloc[rng.integers(len(MODELS), size=count)].reset_index(drop=True)
    jobs["gpus"] = rng.choice(SIZES, count)
    jobs["iterations"] = np.maximum(1, np.rint(iterations * rng.uniform(0.5, 1.5, count))).astype(int)
    service_s = jobs["gpus"] * jobs["iterations"] * (jobs["forward_s"] + jobs["backward_s"])
    jobs["arrival_s"] = np.cumsum(rng.exponential(float(np.mean(service_s)) / (load * gpus), count))
    return workload_of(**dict(jobs.drop(columns="name").assign(gpu_memory_mb=MEMORY_MB)))


def exclusive(jobs: Sequence[ddlsched.Job]) -> ddlsched.Workload:
    return ddlsched.Workload.of([dataclasses.replace(job, gpu_memory_mb=MEMORY_MB) for job in jobs])


def row(label: str, found: dict[str, Any]) -> list[str | float | int | None]:
    share = f"{100 * found['skipped'] / found['iterations']:.1f}"
    counts = (found[name] for name in ("iterations", "contended"))
    return [label, found["engine_s"], found["cpu_s"], round(found["peak_mb"]), share, *counts]


def growth() -> Table:
    runs = [run(gpus=1_024, jobs=count, **SRSF_1) for count in JOBS]
    notes = [
        f"Exponent of {what} in jobs: {np.polyfit(np.log(JOBS), np.log([found[field] for found in runs]), 1)[0]:.2f}"
        for what, field in (("seconds", "engine_s"), ("CPU seconds", "cpu_s"), ("memory", "peak_mb"))
    ]
    notes.append("GPUs busy: " + ", ".join(f"{found['gpu_utilisation']:.0%}" for found in runs))
    rows = [row(f"{count:,}", found) for count, found in zip(JOBS, runs, strict=True)]
    title = "1,024 GPUs, about 10,000 iterations a job"
    return Table(title=title, columns=("jobs", *COLUMNS[1:]), rows=rows, notes=notes)


def trace(philly: Path, runs: dict[str, dict[str, Any]]) -> Table:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "philly.parquet"
        ddlsched.write_workload(import_trace("philly-csv", [philly], gpus_per_server=8).workload, workload)
        for spec in runs.values():
            found.append(run(trace=workload, **spec))
            say(str(found[-1]))
    return Table(
        title="Philly, 82,247 jobs, 313 servers of 8 GPUs used exclusively, star, 10 GbE",
        columns=COLUMNS,
        rows=[row(label, each) for label, each in zip(runs, found, strict=True)],
        notes=[
            *(
                f"{label}: average JCT {each['average_jct_s']:,.0f} s, makespan {each['makespan_s']:,.0f} s"
                for label, each in zip(runs, found, strict=True)
            ),
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
    rows = [experiment_row(kind, **more) for kind, more in {"exact": {}, "sampled": {"sample": True}}.items()]
    return Table(
        title=f"64-GPU experiment at full size, {SEEDS} seeds x {len(EXPERIMENT)} policies, all cores",
        columns=("iterations", "runs", "failed", "wall, s"),
        rows=rows,
        notes=["To reach: 120 s."],
    )


def experiment_row(kind: str, **more: Any) -> list[str | int | float]:
    runs = [
        Run(workload="microsoft-160", options=settings | more, seed=seed, labels={"policy": label})
        for label, settings in EXPERIMENT.items()
        for seed in range(1, SEEDS + 1)
    ]
    say(f"64-GPU experiment: {len(runs)} runs, {kind}")
    with tempfile.TemporaryDirectory() as folder:
        swept, seconds, _ = timed(partial(sweep, runs, Path(folder)))
    return [kind, len(runs), len(swept.failures), seconds]


def tables(only: Sequence[str], philly: Path, draws: int) -> Iterator[Table]:
    if "jobs" in only:
        yield growth()
    name = "SRSF(1), first-fit"
    drawn = {f"{name}, sampled, draw {draw}": FIRST_FIT | {"sample": True, "draw": draw} for draw in range(draws)}
    for part, runs in {"trace": TRACE_RUNS, "sampled": drawn, "exact": {name: FIRST_FIT}}.items():
        if part in only and philly.exists():
            yield trace(philly, runs)
        elif part in only:
            say(f"no trace at {philly}: give its place with --philly (docs/traces.md says where to get it)")
    if "experiment" in only:
        yield experiment()


def main(only: Part | None = None, draws: int = 1, philly: Path = PHILLY) -> None:
    """Print the tables; draws are of the sampled trace, whose lengths differ by a hair."""
    for table in tables([only] if only else [part for part in get_args(Part) if part != "exact"], philly, draws):
        print(table, end="\n\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
