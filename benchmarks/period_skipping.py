"""What jumping over the periods of contending jobs' joint state gains.

python benchmarks/period_skipping.py [--only experiment|trace] [--trace FILE] [--jobs N] [--repeats N]

``FILE`` is an imported workload (``ddlsched workload import philly ...``); without one, its table is left out.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import typer
from benchmark_tables import Table, say, timed

import ddlsched
from ddlsched.engine.driver import Simulation
from ddlsched.results.result import Result
from ddlsched.workload.generators.microsoft import microsoft_160

SCHEDULERS = ("srsf-1", "srsf-2", "ada-srsf")
GAIN = ("contended iterations", "jumped", "jumps", "CPU s without", "CPU s with", "finish times")


def gain(name: str, repeats: int, *simulated: Any, **policies: Any) -> list[Any]:
    """Return a row: the least CPU time of some runs with and without jumps, in turn."""
    cpu_s: dict[bool, float] = {}
    results: dict[bool, Result] = {}
    for repeat in range(repeats):
        say(f"{name}: {repeat + 1} of {repeats}")
        for jumping, rule in ((False, lambda _: False), (True, Simulation._may_jump)):
            with patch.object(Simulation, "_may_jump", rule):
                results[jumping], _, now_s = timed(partial(ddlsched.simulate, *simulated, **policies))
                cpu_s[jumping] = min(cpu_s.get(jumping, 1e9), now_s)
    run = results[True].finished.state.run[0]
    finish_ns = [results[jumping].finished.state.jobs.finish_ns.tolist() for jumping in (False, True)]
    same = "identical" if finish_ns[0] == finish_ns[1] else "DIFFERENT"
    counts = [int(run.contended_iterations), int(run.jumped_iterations), int(run.jumps)]
    return [name, *counts, cpu_s[False], cpu_s[True], same]


def experiment_table(repeats: int) -> Table:
    rows = [gain(scheduler, repeats, microsoft_160(seed=1), scheduler=scheduler) for scheduler in SCHEDULERS]
    return Table(title="160 jobs at full size, 64 GPUs, LWF-1", columns=("", *GAIN), rows=rows)


def trace_table(file: Path, num_jobs: int, repeats: int) -> Table:
    jobs = [dataclasses.replace(job, gpu_memory_mb=1000.0) for job in ddlsched.read_workload(file).jobs[:num_jobs]]
    cluster = ddlsched.Cluster(num_servers=40, gpus_per_server=8, gpu_memory_mb=1000.0)
    workload = ddlsched.Workload.of(jobs)
    rows = [
        gain(f"first-fit, {each}", repeats, workload, cluster, placement="first-fit", scheduler=each)
        for each in SCHEDULERS
    ]
    title = f"{file.name}: the first {num_jobs:,} jobs on 40 servers of 8 GPUs used exclusively, SRSF"
    return Table(title=title, columns=("", *GAIN), rows=rows)


def main(
    only: Literal["experiment", "trace"] | None = None, trace: Path | None = None, jobs: int = 3_000, repeats: int = 3
) -> None:
    """Print the tables of the experiment, and of the first jobs of an imported workload."""
    if only in (None, "experiment"):
        print(f"{experiment_table(repeats)}\n", flush=True)
    if only in (None, "trace") and trace:
        print(f"{trace_table(trace, jobs, repeats)}\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
