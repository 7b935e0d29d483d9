"""Path policies and migration on the network and the mix of jobs that MonkeyTree was evaluated with.

1,024 GPUs in 16 racks under 16 spines, a card of 400 Gbit/s a GPU: 4:1. Jobs of 16 to 64 GPUs, of one ring or, with
tensor parallelism, eight a pipeline stage, one at a time on a GPU, best fit by rack, first come first served. A
slowdown is a job's time on its GPUs over what it takes there alone; ``published`` are the paper's.
"""

from __future__ import annotations

import time

import numpy as np
import typer
from benchmark_tables import Table, say

import ddlsched
from algorithms.ordering.monkeytree import MonkeyTreeOrder
from algorithms.placement.monkeytree import MonkeyTreePlacement
from ddlsched.workload.generators.monkeytree_mix import MODELS, monkeytree_mix

SCALE = 0.1
"""Of the iterations, 100 to 1,000 a job."""
VARIANTS = {
    "ecmp": ("ecmp", False, "1.606 / 3.743"),
    "crux:paths-only": ("crux", False, "1.259 / 2.114"),
    "crux:paths-only, intensity=sum": ("crux:intensity=sum", False, "1.259 / 2.114"),
    "perfect": ("perfect", False, "1.202 / 1.911"),
    "sglb": ("sglb", False, "1.148 / 1.654"),
    "monkeytree": ("perfect", True, "1.004 / 1.044"),
}
"""Of each row the path policy, whether jobs move, and what is published at load 1.0, mean / 99th percentile."""
ONLY = list(VARIANTS)


def slowdowns(workload: ddlsched.Workload, path: str | None, moves: bool, seed: int) -> np.ndarray:
    """Return each job's slowdown."""
    result = ddlsched.simulate(
        workload,
        ddlsched.Cluster(
            num_servers=1024, gpus_per_server=1, topology="monkeytree:servers_per_rack=64", exclusive=True
        ),
        placement=MonkeyTreePlacement(moves_jobs=moves, time_limit_s=60.0),
        order=MonkeyTreeOrder(time_limit_s=60.0) if moves else "fifo",
        communication="bounded-overlap:limit=100000",
        contention="max-min",
        path=path,
        seed=seed,
    )
    on_gpus_s = (result.jobs["jct_s"] - result.jobs["queueing_s"]).to_numpy()
    model = {each.name: each for each in MODELS}
    return on_gpus_s / np.array([model[str(j.model)].alone_s(j.num_gpus) * j.iterations for j in workload])


def main(seeds: int = 2, jobs: int = 300, load: float = 1.0, only: list[str] = ONLY) -> None:
    """Print the table; a third of the jobs, the first, is not counted."""
    if unknown := [name for name in only if name not in VARIANTS]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(VARIANTS)}", param_hint="--only")
    rows = []
    for name in only:
        path, moves, published = VARIANTS[name]
        say(f"load {load}, {name}")
        begin_s = time.process_time()
        workloads = [monkeytree_mix(seed=seed, jobs=jobs, load=load, scale=SCALE) for seed in range(seeds)]
        runs = [slowdowns(made, path, moves, seed)[int(0.33 * jobs) :] for seed, made in enumerate(workloads)]
        every, means = np.concatenate(runs), [run.mean() for run in runs]
        spread = f"{min(means):.3f} to {max(means):.3f}"
        rows.append([name, every.mean(), spread, np.quantile(every, 0.99), published, time.process_time() - begin_s])
    columns = ("paths", "mean slowdown", "of a seed", "99th percentile", "published", "CPU, s")
    note = f"Load {load}, iterations x {SCALE:g}, {seeds} seeds of {jobs} jobs."
    print(Table(title="MonkeyTree's network, 1,024 GPUs", columns=columns, rows=rows, notes=[note]))


if __name__ == "__main__":
    typer.run(main)
