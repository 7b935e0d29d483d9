"""Gavel on its own trace and measured throughputs, beside what its own simulator prints for them.

    python tests/rivals/gavel_trace.py              12 V100, 12 P100 and 24 K80, 96 jobs, rounds of 360 s

A job is its steps on its number of GPUs, at the throughput that Gavel measured of that on each kind; no traffic.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd

import ddlsched
from ddlsched.cluster.cluster import Server, Throughputs
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve
from experiments.commands import PUBLIC_DATA

GPUS = {"v100": 12, "p100": 12, "k80": 24}
REFERENCE = "v100"
ITERATION_S = 20.0
"""Steps are taken together to iterations of about so long on the reference kind, so that a run takes seconds."""
NONE = 1e-6
"""In place of a throughput of 0: the job does not fit that kind."""
ITS_SIMULATOR = {"blind": (19_243.681, 74_671.209), "throughputs": (13_783.124, 63_691.557)}
"""Average JCT and makespan, seconds: max_min_fairness and max_min_fairness_perf of stanford-futuredata/gavel @ c4fa400,
simulate_scheduler_with_trace.py, cluster 12:12:24, programmes solved by Clarabel."""

Measured = dict[tuple[str, int], dict[str, float]]


def measured(file: Path) -> Measured:
    """Return steps a second by job type and GPUs, on each kind."""
    with gzip.open(file, "rt") as stream:
        table: dict[str, dict[str, Any]] = json.load(stream)
    found: Measured = {}
    for kind in GPUS:
        for name, beside in table[kind].items():
            job_type, _, gpus = name[2:].partition("', ")
            found.setdefault((job_type, int(gpus.rstrip(")"))), {})[kind] = float(beside["null"])
    return found


def jobs_of(file: Path, rates: Measured) -> ddlsched.Workload:
    """Return the jobs of a trace of ten columns, each of a fixed size; a model is a job type on a number of GPUs."""
    made = []
    for number, line in enumerate(file.read_text().splitlines()):
        job_type, _, _, _, _, steps, gpus, _, _, arrival_s = line.split("\t")
        total_s = int(steps) / rates[job_type, int(gpus)][REFERENCE]
        iterations = max(round(total_s / ITERATION_S), 1)
        made.append(
            ElasticJob(
                job_id=str(number),
                arrival_s=float(arrival_s),
                samples=iterations * int(gpus),
                curve=LinearCurve(fixed_s=total_s / iterations, sample_s=0.0),
                gpu_batch=1,
                min_gpus=int(gpus),
                max_gpus=int(gpus),
                message_bytes=0.0,
                gpu_memory_mb=1.0,
                model=f"{job_type} on {gpus}",
            )
        )
    return ddlsched.Workload.of(made)


def cluster_of(rates: Measured) -> ddlsched.Cluster:
    """Return servers of one GPU each, with the throughputs."""
    values = tuple(
        (f"{job_type} on {gpus}", kind, max(rate, NONE))
        for (job_type, gpus), kinds in rates.items()
        if kinds.get(REFERENCE)
        for kind, rate in kinds.items()
    )
    servers = [Server(gpus=1, gpu_kind=kind) for kind, count in GPUS.items() for _ in range(count)]
    return ddlsched.Cluster(
        servers=servers, throughputs=Throughputs(values=values, reference_kind=REFERENCE), exclusive=True
    )


def compared(data: Path) -> pd.DataFrame:
    """Return average JCT and makespan, seconds, here and of its simulator, blind to kinds and not."""
    rates = measured(data / "simulation_throughputs.json.gz")
    workload = jobs_of(data / "physical_cluster" / "max_min_fairness.trace", rates)
    rows = []
    for name, policy in {"blind": "gavel:blind=True", "throughputs": "gavel"}.items():
        jobs = ddlsched.simulate(workload, cluster_of(rates), allocation=policy, seed=1).jobs
        theirs_s, makespan_s = ITS_SIMULATOR[name]
        rows.append({"policy": name, "average_jct_s": jobs["jct_s"].mean(), "its_average_jct_s": theirs_s})
        rows[-1] |= {"makespan_s": jobs["finish_s"].max(), "its_makespan_s": makespan_s}
    return pd.DataFrame(rows)


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA / "traces" / "gavel-osdi20", metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("results/rivals/gavel_trace.csv"), metavar="FILE")
    given = parser.parse_args()
    table = compared(given.data)
    print(table.to_string(index=False, float_format="{:,.0f}".format))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    main()
