"""What a 2,048-GPU Clos with 5,000 jobs takes to simulate: ``clos_2048.py``.

256 servers of 8 GPUs and 3.2 Tbit/s, three tiers, 2:1 at the racks and at the pods; LWF-1 placement, one job a GPU.
Jobs of 1 to 512 GPUs in the proportions of large clusters (most are small, most GPU time is in large ones) and of two
minutes to four hours of computing. They arrive so fast that the GPU time which they take alone, their communication
counted, is ``--load`` of the GPUs' time; at 0.6 they hold three quarters of the GPUs, as they slow each other down, and
the queue does not grow. ``--counts compute --load 0.8`` counts computing only: more than network and GPUs can carry.
``--errors`` prints how far sampled runs of 1,000 such jobs are from exact ones at the same GPUs and starts.
"""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
import pandas as pd
from benchmark_tables import Table, say, timed, workload_of
from sampling_error import beside_exact, measured, table_of

import ddlsched
from ddlsched.comparisons.alone import alone_s
from ddlsched.simulation import drawn
from ddlsched.workload.generators.streams import LARGE_CLUSTER_GPUS, LARGE_CLUSTER_SHARES

PATHS = (None, "ecmp", "least-congested")
CONTENTION = "max-min"
PLACEMENT = "lwf:kappa=1"
POLICIES = {"order": "srsf", "communication": "bounded-overlap:limit=1000", "contention": CONTENTION}
SEEDS = range(101, 104)
TOPOLOGY = "clos:servers_per_rack=8,racks_per_pod=4,rack_oversubscription=2,pod_oversubscription=2"


NOTE = (
    "Until the last job arrives, at up to 257 times: GPUs held by jobs, mean; jobs queued, last and most; "
    "transfers that run, mean and most."
)


def jobs(count: int, load: float, seed: int, compute_only: bool = False) -> ddlsched.Workload:
    """Return jobs; those that arrive in a time take ``load`` of the time of the GPUs, were each alone, or computing."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice(LARGE_CLUSTER_GPUS, count, p=LARGE_CLUSTER_SHARES)
    compute_s = rng.choice([0.1, 0.25, 0.5, 1.0], count)
    run_s = np.exp(rng.uniform(np.log(120), np.log(14_400), count))
    message_bytes = rng.choice([1e9, 4e9, 13e9, 26e9], count)
    arrivals = np.cumsum(rng.exponential(1.0, count))
    at_once = workload_of(
        gpus=gpus,
        iterations=np.maximum((run_s / compute_s).astype(int), 1),
        forward_s=compute_s / 3,
        backward_s=compute_s * 2 / 3,
        message_bytes=message_bytes,
    )
    lasts_s = run_s if compute_only else alone_s(at_once, cluster(), CONTENTION)
    arrivals_s = arrivals * float((gpus * lasts_s).mean()) / (2048 * load)
    return ddlsched.Workload.of(
        [dataclasses.replace(job, arrival_s=float(s)) for job, s in zip(at_once, arrivals_s, strict=True)]
    )


def cluster() -> ddlsched.Cluster:
    """Return the cluster."""
    return ddlsched.Cluster(num_servers=256, gpus_per_server=8, topology=TOPOLOGY, exclusive=True)


def run(workload: ddlsched.Workload, path: str | None, sample: bool = False) -> tuple[ddlsched.Result, float, float]:
    """Return a run's result, and its seconds of wall time and of CPU, building the network included."""
    given = POLICIES | {"placement": PLACEMENT, "path": path, "sample": sample}
    return timed(lambda: ddlsched.simulate(workload, cluster(), **given))


def errors() -> str:
    """Return how far sampled runs of 1,000 jobs, whose computing takes 0.8, are from exact ones at the same starts."""
    rows = []
    for seed in SEEDS:
        workload = drawn(jobs(1_000, 0.8, seed, compute_only=True), seed)
        rows.append({"seed": seed} | measured(*beside_exact(workload, cluster(), PLACEMENT, POLICIES, seed)))
    return str(table_of(pd.DataFrame(rows), ["class"]).to_string(index=False))


def crowd(result: ddlsched.Result) -> list[str]:
    """Return how full the cluster was until the last job arrived: GPUs held, jobs queued, transfers at a time."""
    last_s = result.workload.jobs[-1].arrival_s
    samples = result.samples[result.samples["time_s"] <= last_s]
    queued, sending = samples["queued_jobs"], samples["active_transfers"]
    held = f"{100 * samples['allocated_gpus'].mean() / 2048:.1f} %"
    return [held, f"{queued.iloc[-1]}, {queued.max()}", f"{sending.mean():.1f}, {sending.max()}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--counts", choices=("all", "compute"), default="all", help="what of a job's time is load")
    parser.add_argument("--sample", action="store_true", help="as sampled runs")
    parser.add_argument("--errors", action="store_true", help="of sampled runs")
    parser.add_argument("--path", action="append", help="by default route, ecmp and least-congested")
    given = parser.parse_args()
    if given.errors:
        print(errors())
        return
    of_compute = given.counts == "compute"
    workload, rows = jobs(given.jobs, given.load, 1, of_compute), []
    few = jobs(20, given.load, seed=1)
    for path in given.path or ("ecmp",):
        run(few, None if path == "route" else path, given.sample)  # loads the compiled code
    for path in [None if path == "route" else path for path in given.path] if given.path else PATHS:
        say(path or "the topology's route")
        result, wall_s, cpu_s = run(workload, path, given.sample)
        figures = [wall_s, cpu_s, result.summary()["average_jct_s"], *crowd(result)]
        rows.append([path or "route", *figures, result.contended_iterations, result.computed_iterations])
        say(str(rows[-1]))
    columns = ("paths", "wall, s", "CPU, s", "average JCT, s", "held", "queued", "transfers", "contended", "computed")
    title = f"{given.jobs:,} jobs on 2,048 GPUs, Clos, load {given.load}"
    print(Table(title=title, columns=columns, rows=rows, notes=[NOTE]))


if __name__ == "__main__":
    main()
