"""What jumping over the periods of contending jobs' joint state gains.

python benchmarks/period_skipping.py FILE [--jobs N] [--repeats N]

``FILE`` is an imported workload (``ddlsched workload import philly ...``).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer
from benchmark_tables import Table, say, timed

import ddlsched
from ddlsched.engine.driver import Simulation
from ddlsched.results.result import Result

SCHEDULERS = ("srsf-1", "srsf-2", "ada-srsf")
GAIN = ("contended iterations", "jumped", "jumps", "CPU s without", "CPU s with", "finish times")


def gain(name: str, repeats: int, *simulated: Any, **policies: Any) -> list[Any]:
    """Return a row: the least CPU time of some runs with and without jumps, in turn."""
    cpu_s: dict[bool, float] = {}
    results: dict[bool, Result] = {}
    for repeat in range(repeats):
        say(f"{name}: {repeat + 1} of {repeats}")
        for jumping, rule in ((False, lambda _: "not asked for"), (True, Simulation._not_calm)):
            with patch.object(Simulation, "_not_calm", rule):
                results[jumping], _, now_s = timed(partial(ddlsched.simulate, *simulated, **policies))
                cpu_s[jumping] = min(cpu_s.get(jumping, 1e9), now_s)
    run = results[True].finished.state.run[0]
    finish_ns = [results[jumping].finished.state.jobs.finish_ns.tolist() for jumping in (False, True)]
    same = "identical" if finish_ns[0] == finish_ns[1] else "DIFFERENT"
    counts = [int(run.contended_iterations), int(run.jumped_iterations), int(run.jumps)]
    return [name, *counts, cpu_s[False], cpu_s[True], same]


def main(trace: Path, jobs: int = 3_000, repeats: int = 3) -> None:
    """Print what jumps gain for the first jobs of an imported workload."""
    first = [dataclasses.replace(job, gpu_memory_mb=1000.0) for job in ddlsched.read_workload(trace).jobs[:jobs]]
    given = ddlsched.Workload.of(first), ddlsched.Cluster(num_servers=40, gpus_per_server=8, gpu_memory_mb=1000.0)
    rows = [gain(f"first-fit, {each}", repeats, *given, placement="first-fit", scheduler=each) for each in SCHEDULERS]
    title = f"{trace.name}: the first {jobs:,} jobs on 40 servers of 8 GPUs used exclusively, SRSF"
    print(Table(title=title, columns=("", *GAIN), rows=rows), flush=True)


if __name__ == "__main__":
    typer.run(main)
