"""What jumping over the periods of contending jobs' joint state gains.

python benchmarks/period_skipping.py [--only nic|experiment|trace] [--trace FILE] [--jobs N] [--repeats N]

``FILE`` is an imported workload (``ddlsched workload import philly ...``); without one, its table is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmark_tables import Table, say

import ddlsched
from ddlsched.engine.driver import Simulation
from ddlsched.results.result import Result
from ddlsched.workload.generators.microsoft import microsoft_160

COMMUNICATIONS = ("bounded-overlap:limit=1", "bounded-overlap:limit=2", "bounded-overlap:limit=1000", "adadual")
SCHEDULERS = ("srsf-1", "srsf-2", "ada-srsf")
GAIN = ("contended iterations", "jumped", "jumps", "CPU s without", "CPU s with", "finish times")


class OneAServer:
    """A worker on the first eligible GPU of each server."""

    def place(self, job: ddlsched.JobView, cluster: ddlsched.ClusterView) -> list[int]:
        """Return a GPU of each server."""
        first = {cluster.server_of(gpu): gpu for gpu in reversed(cluster.eligible_gpus(job))}
        return [first[server] for server in sorted(first)]


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def on_one_nic(num_jobs: int, communication: str, seed: int) -> Result:
    """Run jobs of the 64-GPU experiment's models over the network cards of the same two servers."""
    rng = random.Random(seed)
    models = list(dict.fromkeys(job.iteration for job in microsoft_160(seed=1)))
    jobs = [
        ddlsched.Job(
            job_id=str(number),
            arrival_s=round(rng.random(), 9),
            num_gpus=2,
            iterations=rng.randrange(5_000, 10_000),
            iteration=rng.choice(models),
            gpu_memory_mb=1000.0,
        )
        for number in range(num_jobs)
    ]
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=num_jobs, gpu_memory_mb=1000.0)
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs), cluster, placement=OneAServer(), order="srsf", communication=communication
    )


def gain(name: str, repeats: int, *simulated: Any, **policies: Any) -> list[Any]:
    """Return a row: the least CPU time of some runs with and without jumps, in turn."""
    cpu_s: dict[bool, float] = {}
    results: dict[bool, Result] = {}
    for repeat in range(repeats):
        say(f"{name}: {repeat + 1} of {repeats}")
        for jumping, rule in ((False, lambda _: False), (True, Simulation._may_jump)):
            with patched(Simulation, "_may_jump", rule):
                begin = time.process_time()
                results[jumping] = ddlsched.simulate(*simulated, **policies)
                cpu_s[jumping] = min(cpu_s.get(jumping, 1e9), time.process_time() - begin)
    run = results[True].finished.state.run[0]
    finish_ns = [results[jumping].finished.state.jobs.finish_ns.tolist() for jumping in (False, True)]
    same = "identical" if finish_ns[0] == finish_ns[1] else "DIFFERENT"
    counts = [int(run.contended_iterations), int(run.jumped_iterations), int(run.jumps)]
    return [name, *counts, cpu_s[False], cpu_s[True], same]


def nic_gains(repeats: int) -> Table:
    rows = []
    for communication in COMMUNICATIONS:
        for num_jobs in (2, 6):
            name = f"{communication}, {num_jobs} jobs"
            cpu_s = {}
            for jumping, rule in ((False, lambda _: False), (True, Simulation._may_jump)):
                with patched(Simulation, "_may_jump", rule):
                    on_one_nic(num_jobs, communication, 0)
                    begin = time.process_time()
                    for seed in range(repeats * 5):
                        on_one_nic(num_jobs, communication, seed)
                    cpu_s[jumping] = time.process_time() - begin
            rows.append([name, cpu_s[False], cpu_s[True], f"{1 - cpu_s[True] / cpu_s[False]:.0%}"])
    title = f"Jobs on the network cards of the same two servers, {repeats * 5} seeds"
    return Table(title=title, columns=("", "CPU s without jumps", "CPU s with", "gain"), rows=rows)


def experiment_table(repeats: int) -> Table:
    rows = [gain(scheduler, repeats, microsoft_160(seed=1), scheduler=scheduler) for scheduler in SCHEDULERS]
    return Table(title="160 jobs at full size, 64 GPUs, LWF-1", columns=("", *GAIN), rows=rows)


def trace_table(file: Path, num_jobs: int, repeats: int) -> Table:
    jobs = [dataclasses.replace(job, gpu_memory_mb=1000.0) for job in ddlsched.read_workload(file).jobs[:num_jobs]]
    cluster = ddlsched.Cluster(num_servers=40, gpus_per_server=8, gpu_memory_mb=1000.0)
    workload = ddlsched.Workload.of(jobs)
    rows = [
        gain(f"{placement}, {rule}", repeats, workload, cluster, placement=placement, communication=rule)
        for placement in ("lwf:kappa=1", "first-fit")
        for rule in (COMMUNICATIONS[0], "adadual")
    ]
    title = f"{file.name}: the first {num_jobs:,} jobs on 40 servers of 8 GPUs used exclusively, SRSF"
    return Table(title=title, columns=("", *GAIN), rows=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("nic", "experiment", "trace"), help="measure one part")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="an imported workload")
    parser.add_argument("--jobs", type=int, default=3_000, metavar="N", help="of the trace; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: %(default)s")
    wanted = parser.parse_args()
    if wanted.only in (None, "nic"):
        print(f"{nic_gains(wanted.repeats)}\n", flush=True)
    if wanted.only in (None, "experiment"):
        print(f"{experiment_table(wanted.repeats)}\n", flush=True)
    if wanted.only in (None, "trace") and wanted.trace:
        print(f"{trace_table(wanted.trace, wanted.jobs, wanted.repeats)}\n", flush=True)


if __name__ == "__main__":
    main()
